"""What a campaign says of a launch where no row of a profile does."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from collector.measurement import Library
from collector.vocabulary import CAUSAL_MASK, FULL_MASK
from jobs.campaign.document import Entry

_KEYS = ("kv_length", "mask", "library")
_MASKS = (CAUSAL_MASK, FULL_MASK)
_LIBRARIES = (Library.CANN.value, Library.VLLM_ASCEND.value)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class RuntimeValues:
    """`kv_lengths`: how many keys each request of a paged cache has, where a row does not say; a
    row becomes one case for each. `masks`: what attention leaves out beside a whole mask, in the
    same way. `libraries`: whose kernel is wanted where CANN and vLLM-Ascend
    both have one of its type; none for whichever the stack serves with."""

    kv_lengths: tuple[int, ...] = ()
    masks: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()


def read_runtime(entry: Entry) -> RuntimeValues:
    """The values of a campaign file's `runtime`. BadInput, with the line, for anything else."""
    found = entry.fields(_KEYS)
    if not found:
        raise entry.refusal(f"expected at least one of {', '.join(_KEYS[:-1])} and {_KEYS[-1]}")
    lengths: tuple[int, ...] = ()
    masks: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    if "kv_length" in found:
        lengths = _each(found["kv_length"], "length", lambda item: item.integer(1))
    if "mask" in found:
        masks = _each(found["mask"], "mask", lambda item: item.choice(_MASKS))
    if "library" in found:
        libraries = _each(found["library"], "library", lambda item: item.choice(_LIBRARIES))
    return RuntimeValues(lengths, masks, libraries)


def _each(entry: Entry, what: str, read: Callable[[Entry], Value]) -> tuple[Value, ...]:
    """The items of a list, one at least, each once."""
    values = tuple(read(item) for item in entry.items())
    if not values:
        raise entry.refusal(f"expected at least one {what}, got an empty list")
    if len(set(values)) < len(values):
        raise entry.refusal(f"a {what} is listed twice")
    return values
