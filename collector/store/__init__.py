"""store knows bytes: keys, objects, and who wrote first."""

from collector.store.opening import open_store

__all__ = ["open_store"]
