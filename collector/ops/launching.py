"""How the calls that a host records launch a kernel: where each has the kernel's arguments, and
what becomes of an argument until a profile shows it.

    launched_by={"aclnnIndexSelect": arguments_at(indices=2, outputs=3)}
    shown={"axis": As.ONE_NUMBER}

    aclnnIndexSelect(f32[20,6]:ND, 0, i64[5]:ND, f32[5,6]:ND)    table 0, indices 2, output 3
    Input Shapes "20,6;5;1"   Output Shapes "5,6"
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class As(StrEnum):
    """What a kernel gets for an argument of its call, where that is not the tensor as it is seen.

    An argument of the host needs none: a list is a tensor of as many numbers, a scalar a tensor
    without dimensions."""

    STORED = "the tensor as it is in memory: a transposed view is the matrix that it views"
    MATRICES = "the same for each matrix of a batch"
    ROWS = "one dimension of rows for all dimensions but the last"
    STORED_ROWS = "the same for a dense tensor of more than two dimensions, others as in memory"
    FLAT = "all elements in one dimension"
    VIEWED = "as it is seen, also in a private format"
    INT4 = "as in memory, where each INT32 is eight INT4"
    UINT64 = "as in memory, where INT64 is UINT64: packed scales"
    COUNT = "one number for each of a list, or for each dimension of a tensor"
    ONE_NUMBER = "a tensor of one number, whether the call has it or not"
    LISTS = "every list of tensors, and the number of the host, in FLOAT"
    LEFT_OUT = "the tensor, and no slot if it is absent"


@dataclass(frozen=True, slots=True)
class Positions:
    """Where a call has the arguments of a kernel.

    at       the positions of arguments by name; others are where the signature has them. Negative
             positions are from the end
    outputs  the position of the first output, which the others follow, or that of each; of calls
             without any position, the last tensors are the outputs
    slots    the number of arguments that are shown, if it is not that of the signature without
             those at the end that are not replayed
    absent   the arguments that the call has not
    empty    the outputs that are not written: tensors without a shape
    unknown  the sides that a call does not determine: `inputs`, `outputs`, `inputs and outputs`
    settings the positions of numbers and texts that columns of a row record, by column"""

    at: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    outputs: int | tuple[int, ...] | None = None
    slots: int | None = None
    absent: Sequence[str] = ()
    empty: Sequence[str] = ()
    unknown: str = ""
    settings: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def is_in_order(self) -> bool:
        """Return whether the tensors of the call are the arguments, in their order."""
        return not self.at and self.outputs is None


# (the texts of a call's arguments) -> where its arguments are
PositionsOf = Callable[[Sequence[str]], Positions]
LaunchedBy = Mapping[str, Positions | PositionsOf]


def arguments_at(
    outputs: int | tuple[int, ...] | None = None,
    slots: int | None = None,
    absent: Sequence[str] = (),
    empty: Sequence[str] = (),
    unknown: str = "",
    settings: Mapping[str, int] = MappingProxyType({}),
    **positions: int,
) -> Positions:
    """Return where a call has the arguments of its kernel."""
    at = MappingProxyType(positions)
    return Positions(at, outputs, slots, absent, empty, unknown, settings)


def calls(*names: str) -> LaunchedBy:
    """Return calls whose tensors are the kernel's arguments, in their order."""
    return dict.fromkeys(names, Positions())
