"""What ran in place of the call that a case asks for: another kernel, or the kernel on other
tensors, in another state, on another core.

Its launches are a measurement all the same wherever it is known of what: they are filed under the
kernel and the tensors that were recorded. A call of K = 1 that CANN turns into Mul, a Sort of BF16
whose kernel is given FLOAT: both are numbers, of Mul and of Sort in FLOAT.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from collector.case import Case, is_kernel_type, normal_kernel_type
from collector.errors import BadInput
from collector.quality.identity import (
    Cells,
    Comparison,
    Identity,
    are_told,
    have_dtypes,
    tensor_cells,
)
from collector.vocabulary import ACCELERATOR_CORE, NOT_KNOWN, OP_STATE, core_class


class DeviceRow(Protocol):
    """What attribution reads of a row of op_summary."""

    @property
    def op_type(self) -> str: ...

    @property
    def duration_us(self) -> float: ...

    @property
    def cells(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a session issued for a case: `launches` in all (warm-ups, pilot, repeats, in this
    order), of which the last `repeats` count. `family` are the kernel types among which the
    runtime chooses, `op_state` the one that the case names, if any, and `core` what it says that
    the kernel runs on: AI_CPU or AI_CORE, or nothing. `case` is None where records do not tell
    what a launch was given: those that a session made itself say only what it asked for. `before`
    are the launches before each of its own, in order, as the kernel types that each may have."""

    ordinal: int
    kernel_type: str
    launches: int
    repeats: int
    family: frozenset[str] = frozenset()
    op_state: str = ""
    core: str = ""
    case: Case | None = None
    placed: Case | None = None  # with each tensor at its own slot, where that is another
    before: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class Substitution:
    """What ran instead of the kernel asked for. Its launches are measurements of `kernel_type` on
    the tensors of `cells` (the case's own where that is empty), where it is known what that is
    (`is_filed`): of another operator only where all its tensors were recorded."""

    kernel_type: str
    is_filed: bool
    reason: str
    cells: Cells = ()


def ran_instead(
    expected: Expectation, by_type: Mapping[str, Sequence[DeviceRow]]
) -> tuple[str, ...]:
    """The other types that came exactly as often as was launched: those of the family, where
    there is one."""
    as_often = [name for name, rows in by_type.items() if len(rows) == expected.launches]
    family = [name for name in as_often if name in expected.family]
    return tuple(sorted(family or as_often))


def substitution_of(
    expected: Expectation, asked: str, instead: Sequence[str], counted: Sequence[DeviceRow]
) -> tuple[Substitution | None, Identity | None]:
    """What ran in place of the case, in all its repeats; None where the case itself did, and then
    how well that is proved."""
    identity, cells = _identity(expected, counted)
    differs = identity.differences if identity else ()
    states = {state_of(row) for row in counted}
    cores = {core_class(row.cells.get(ACCELERATOR_CORE, "")) for row in counted}
    reasons = (
        _instead_text(instead, asked),
        _difference(OP_STATE, states, "" if instead else expected.op_state),
        _difference(ACCELERATOR_CORE, cores, "" if instead else expected.core),
        *differs,
    )
    reason = "; ".join(filter(None, reasons))
    if not reason:
        return None, identity
    ran = instead[0] if instead else asked
    if instead and ran not in expected.family:
        cells = _whole(expected, counted) if is_kernel_type(ran) else ()
        is_known = bool(cells)
    else:
        is_known = bool(cells) or not differs
    is_one = len(instead) <= 1 and len(cores - {""}) <= 1 and len(states) == 1
    is_filed = is_known and is_one
    more = ", which is not measured for it" if instead and not is_filed else ""
    return Substitution(ran, is_filed, reason + more, cells), identity


def _identity(expected: Expectation, counted: Sequence[DeviceRow]) -> tuple[Identity | None, Cells]:
    """How the tensors of all counted launches compare with the case's, and which those were where
    they differ and are the same in all of them."""
    if expected.case is None:
        return None, ()
    told = Comparison(expected.case, expected.placed)
    found = list(dict.fromkeys(told.of(row.cells) for row in counted))
    if not any(identity.differences for identity in found):
        return next((identity for identity in found if identity.untold), found[0]), ()
    if len(found) > 1:
        return Identity(differences=("its launches differ from each other",)), ()
    cells = {tensor_cells(row.cells) for row in counted}
    told_cells = cells.pop() if len(cells) == 1 else ()
    return found[0], told_cells if have_dtypes(told_cells) else ()


def _instead_text(instead: Sequence[str], asked: str) -> str:
    return f"{' and '.join(instead)} ran instead of {asked}" if instead else ""


def _whole(expected: Expectation, counted: Sequence[DeviceRow]) -> Cells:
    """What all launches of another operator were given, where that was recorded as a whole: what
    the case names says nothing of it."""
    recorded = {tensor_cells(row.cells) for row in counted}
    cells = recorded.pop() if expected.case is not None and len(recorded) == 1 else ()
    return cells if are_told(cells) else ()


def _difference(what: str, got: set[str], asked: str) -> str:
    """Launches of two kinds have no mean, whatever the case says of it."""
    told = sorted(got - {""})
    others = " and ".join(name for name in told if name != asked)
    if asked and others:
        return f"{what}: expected {asked}, got {others}"
    return f"{what}: got {others} in different launches" if len(told) > 1 else ""


def type_of(row: DeviceRow) -> str:
    return normal_type(row.op_type)


def normal_type(kernel_type: str) -> str:
    """The type as cases know it; what could be none (`N/A`) as it is."""
    try:
        return normal_kernel_type(kernel_type)
    except BadInput:
        return kernel_type


def state_of(row: DeviceRow) -> str:
    state = row.cells.get(OP_STATE, "").strip().lower()
    return "" if state == NOT_KNOWN.lower() else state
