"""Paged caches of keys and values: writing, reading, and kernels that compute what they write."""
