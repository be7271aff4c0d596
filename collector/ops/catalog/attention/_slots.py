"""Slots of attention identified by kind, and rules that a row's reading must satisfy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from collector.codec.errors import CaseRejected
from collector.model.case import Case, Slot
from collector.model.vocabulary import GRAPH, LAUNCHED_BY, STATIC
from collector.ops import rules
from collector.ops.spec import Constraint, OpSpec

# Slots identified by kind, where their position is not enough.
#
# A graph omits absent optional inputs from a row. An operator that is called by itself leaves their
# cells empty:
#
#     q;k;v;mask             a graph's row of IncreFlashAttention, whose fourth slot is pse_shift
#     q;k;v;;mask;;;;;;;;;;  the same, launched by itself
#
# A row is read as a graph's if each tensor after the required ones fits one slot, in order, and no
# other, by its dtype and number of dimensions.
ABSENT = Slot(None, "", "")


@dataclass(frozen=True, slots=True)
class Kind:
    """The dtypes and numbers of dimensions of an optional slot, and the slots it requires."""

    dtypes: frozenset[str]
    dims: frozenset[int]
    requires: frozenset[int] = frozenset()

    def takes(self, slot: Slot) -> bool:
        known = slot.known_dtype
        dims = len(slot.shape or ())
        return known is not None and known.spelling in self.dtypes and dims in self.dims


def kind(dtypes: str, *dims: int, requires: int | None = None) -> Kind:
    """Return a kind, as in `kind("BOOL INT8", 2, 4)`."""
    return Kind(
        frozenset(dtypes.split()),
        frozenset(dims),
        frozenset(() if requires is None else (requires,)),
    )


def seen_as(op: OpSpec, view: Callable[[Case], Case]) -> OpSpec:
    """Return the operator that reads a case as another one, which `view` returns."""
    return replace(
        op,
        build=lambda case, make: op.build(view(case), make),
        flops=lambda case: op.flops(view(case)),
        traffic=lambda case: op.traffic(view(case)),
        runtime=lambda case: op.runtime(view(case)),
        missing_metadata=lambda case: op.missing_metadata(view(case)),
        constraints=tuple(_on(rule, view) for rule in op.constraints),
    )


def by_kind(op: OpSpec, kinds: Mapping[int, Kind]) -> OpSpec:
    """Return the operator for rows that may be a graph's, which are read by the kinds of the
    optional slots. A kernel that was compiled for its sizes is launched by that graph."""
    required, spelled = min(op.optional), op.placed

    def place(case: Case) -> Case:
        case = spelled(case)
        found = _placings(case, required, kinds)
        if len(found) != 1:
            return case
        placed = _placed(case, required, found[0], len(op.slots))
        if case.op_state != STATIC or case.attribute(LAUNCHED_BY):
            return placed
        return replace(placed, attributes=tuple(sorted((*case.attributes, (LAUNCHED_BY, GRAPH)))))

    def ambiguous(case: Case) -> str:
        if len(_placings(case, required, kinds)) < 2:
            return ""
        return (
            "expected inputs that fit one order of slots: a graph omits absent inputs, and these "
            "fit several slots"
        )

    return replace(op, placed=place, ambiguous=ambiguous)


def _on(rule: Constraint, view: Callable[[Case], Case]) -> Constraint:
    return Constraint(rule.text, lambda case: rule.holds(view(case)))


def _placings(case: Case, required: int, kinds: Mapping[int, Kind]) -> list[tuple[int, ...]]:
    """Return the possible slots of the tensors after the required ones, one tuple per possibility.

    Empty if the tensors are in their own slots already."""
    slots = case.inputs or ()
    behind = slots[required:]
    if not behind or any(slot.shape is None for slot in slots):
        return []  # no input was omitted, or the row has only required inputs
    orders = _rising(behind, required, kinds)
    found = [order for order in orders if all(kinds[i].requires <= set(order) for i in order)]
    unchanged = tuple(range(required, len(slots)))
    return [] if found == [unchanged] else found


def _rising(
    tensors: Sequence[Slot], first: int, kinds: Mapping[int, Kind]
) -> Iterator[tuple[int, ...]]:
    """Yield ascending positions at which each tensor is of its slot's kind."""
    if not tensors:
        yield ()
        return
    for position in sorted(p for p in kinds if p >= first and kinds[p].takes(tensors[0])):
        for rest in _rising(tensors[1:], position + 1, kinds):
            yield (position, *rest)


def _placed(case: Case, required: int, order: Sequence[int], width: int) -> Case:
    slots = case.inputs or ()
    seen = [ABSENT] * width
    seen[:required] = slots[:required]
    for position, slot in zip(order, slots[required:], strict=True):
        seen[position] = slot
    return replace(case, inputs=tuple(seen))


# Rules of a row's reading, which finds either all sizes of a call or the rule that the row breaks:
# the same reading decides whether a case can be launched, and with which arguments.

_Call = TypeVar("_Call")


class Misfit(CaseRejected):
    """A row that breaks a rule."""

    def __init__(self, rule: StrEnum):
        super().__init__(rule.value)
        self.rule = rule


def rules_of(read: Callable[[Case], object], rules: type[StrEnum]) -> tuple[Constraint, ...]:
    """Return each rule of the reading as a constraint."""
    return tuple(_is_kept(read, rule) for rule in rules)


def _is_kept(read: Callable[[Case], object], rule: StrEnum) -> Constraint:
    return Constraint(rule.value, lambda case: read(case) is not rule)


def limit(
    read: Callable[[Case], _Call | StrEnum], text: str, holds: Callable[[_Call], bool]
) -> Constraint:
    """Return a limit of the function, which is checked after the rules of the reading."""
    return Constraint(text, lambda case: holds(rules.accepted(read(case))))
