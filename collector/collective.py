"""What a collective is here: its operation, its bytes by the consumer's convention, its group.

`message_bytes` is what the existing consumer looks up: of all_gather one rank's input, of
reduce_scatter one rank's share of the output, of everything else one rank's whole tensor. Bus
bandwidth is as in nccl-tests' PERFORMANCE.md: the bytes that have to cross the slowest link of a
ring, by time, so that it can be held against a link's own.
"""

from collections.abc import Callable
from dataclasses import dataclass

from collector.errors import BadInput


@dataclass(frozen=True, slots=True)
class Operation:
    """`file` is the CSV's name in a tree. `sends` and `receives` say how many times its message a
    rank's input and output tensors hold, by the group's size; `crosses` is the same of what a ring
    carries over each link. `is_split` where each rank gets its part of the message."""

    name: str
    file: str
    sends: Callable[[int], int]
    receives: Callable[[int], int]
    crosses: Callable[[int], float]
    is_split: bool = False

    @property
    def kernel_type(self) -> str:
        """As a profiler calls it."""
        return self.file.removesuffix(".csv")


def _once(size: int) -> int:
    return 1


def _each(size: int) -> int:
    return size


OPERATIONS = {
    one.name: one
    for one in (
        Operation(
            "all_reduce", "hcom_allReduce_.csv", _once, _once, lambda size: 2 * (size - 1) / size
        ),
        Operation("all_gather", "hcom_allGather_.csv", _once, _each, lambda size: size - 1),
        Operation("reduce_scatter", "hcom_reduceScatter_.csv", _each, _once, lambda size: size - 1),
        Operation(
            "all_to_all", "hcom_alltoall_.csv", _once, _once, lambda size: (size - 1) / size, True
        ),
        Operation(
            "all_to_allv", "hcom_alltoallv_.csv", _once, _once, lambda size: (size - 1) / size, True
        ),
        Operation("broadcast", "hcom_broadcast_.csv", _once, _once, lambda size: 1.0),
        # Each rank to the next one of its group, and the last to the first.
        Operation("send_recv", "hcom_batchSendRecv_.csv", _once, _once, lambda size: 1.0),
    )
}

BY_KERNEL_TYPE = {one.kernel_type: one for one in OPERATIONS.values()}

# As the consumer's files spell them, and the bytes of an element.
DTYPES = {
    "bfloat16": ("DT_BF16", 2),
    "float16": ("DT_FP16", 2),
    "float32": ("DT_FLOAT", 4),
    "int8": ("DT_INT8", 1),
}


@dataclass(frozen=True, slots=True)
class Collective:
    """One case: `dtype` is a key of DTYPES. With `together` every group of the tier works at the
    same time, else one alone while the others rest."""

    operation: str
    message_bytes: int
    dtype: str
    group_size: int
    tier: int
    together: bool = False

    def __str__(self) -> str:
        how = ", all groups at once" if self.together else ""
        what = f"{self.operation} of {self.message_bytes} bytes of {self.dtype}"
        return f"{what} over {self.group_size} ranks of tier {self.tier}{how}"

    @property
    def elements(self) -> int:
        """How many elements a message holds."""
        return self.message_bytes // DTYPES[self.dtype][1]

    @property
    def input_bytes(self) -> int:
        """What one rank's input tensor holds."""
        return self.message_bytes * OPERATIONS[self.operation].sends(self.group_size)

    @property
    def output_bytes(self) -> int:
        return self.message_bytes * OPERATIONS[self.operation].receives(self.group_size)

    @property
    def bus_bytes(self) -> float:
        """What a ring carries over each of its links."""
        return self.message_bytes * OPERATIONS[self.operation].crosses(self.group_size)


def check(collective: Collective) -> None:
    """Raise BadInput for a message that is not a whole number of elements: the label of its row
    would state a wrong number of bytes."""
    whole = whole_bytes(collective)
    if collective.message_bytes < whole or collective.message_bytes % whole:
        is_split = OPERATIONS[collective.operation].is_split
        each = f" for each of {collective.group_size} ranks" if is_split else ""
        raise BadInput(
            f"{collective}: expected a multiple of {whole} bytes (whole elements{each}), got "
            f"{collective.message_bytes}"
        )


def whole_bytes(collective: Collective) -> int:
    """Return the bytes that a message must be a multiple of: one element, or one for each rank if
    the operation splits the message."""
    parts = collective.group_size if OPERATIONS[collective.operation].is_split else 1
    return DTYPES[collective.dtype][1] * parts


def parts_v(elements: int, ranks: int) -> tuple[int, ...]:
    """How many elements of an uneven all_to_all go to each rank: one to two times as many to the
    last as to the first, and all of them together. Every rank sends alike, so that a rank gets as
    many times its own part as there are ranks."""
    weights = [ranks + at for at in range(ranks)]
    found = [elements * weight // sum(weights) for weight in weights]
    found[-1] += elements - sum(found)
    return tuple(found)


def dtype_named(text: str) -> str:
    """Return the dtype of `torch.bfloat16`, `bfloat16` or `DT_BF16`. Raises BadInput for others."""
    plain = text.removeprefix("torch.")
    by_cell = {cell: name for name, (cell, _) in DTYPES.items()}
    found = plain if plain in DTYPES else by_cell.get(plain)
    if found is None:
        raise BadInput(f"dtype: expected one of {', '.join(DTYPES)}, got {text!r}")
    return found
