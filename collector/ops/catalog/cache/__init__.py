"""Paged caches of keys and values: written, read, and what is computed only to be written there."""
