"""Stores of bytes: keys, objects, and create-only writes."""

from collector.store.opening import open_store

__all__ = ["open_store"]
