"""Read the store at once and without a network: for checks after the simulation."""

from collector.store.in_memory import MemoryStore


def stored(objects: dict[str, bytes], *prefixes: str) -> MemoryStore:
    """Return a copy of the objects below some prefixes, or of all."""
    store = MemoryStore()
    store._objects = {
        key: data for key, data in objects.items() if not prefixes or key.startswith(prefixes)
    }
    return store
