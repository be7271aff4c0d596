"""Reading what was promised by hash: the one way an object enters the database or leaves it."""

from collector.canonical import sha256_hex
from collector.errors import BadInput, NotFound
from collector.store.base import Store


def read_sealed(store: Store, key: str, sha256: str, *, named_by: str) -> bytes:
    """The object's bytes. Raises BadInput, saying who promised them, where they are not those."""
    try:
        data = store.get(key)
    except NotFound as error:
        raise BadInput(f"it is not there, and {named_by} names it", path=key) from error
    if (came := sha256_hex(data)) != sha256:
        raise BadInput(
            f"sha256 {sha256} was promised by {named_by}, {came} came: "
            "the object was changed after it was written",
            path=key,
        )
    return data
