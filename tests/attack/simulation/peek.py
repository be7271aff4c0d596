"""The store as it is, seen at once and over nobody's network: for checks after the play."""

from collector.store.in_memory import MemoryStore


def stored(objects: dict[str, bytes], *prefixes: str) -> MemoryStore:
    """A copy of what lies under some prefixes, or of all of it."""
    store = MemoryStore()
    store._objects = {
        key: data for key, data in objects.items() if not prefixes or key.startswith(prefixes)
    }
    return store
