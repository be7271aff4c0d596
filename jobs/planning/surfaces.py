"""The curves of a campaign: cases of one kernel that differ in their sizes alone, as points of a
surface whose durations can be learnt from some of them. Pure."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from collector.case import Case
from collector.gang_case import is_of_gangs
from collector.ops.refusals import UNFORESEEN, FindOperator, refusal
from collector.surface.shape_features import Floats, Points

# Whose tiles share how many cores is not known of every device; trees find the steps of another.
_CORES = 24


@dataclass(frozen=True, slots=True)
class Surface:
    """Cases that differ in their sizes alone, by the order of their ids, and their points."""

    case_ids: tuple[str, ...]
    points: Points


def _alike(case: Case) -> tuple[str, Hashable, Hashable, str, tuple[tuple[str, str], ...]]:
    """What cases share that differ in their sizes alone."""
    inputs, outputs = (
        tuple((slot.dtype, slot.format, len(slot.shape or ())) for slot in slots or ())
        for slots in (case.inputs, case.outputs)
    )
    return case.kernel_type, inputs, outputs, case.op_state, case.attributes


def _sizes(case: Case) -> list[int]:
    """All lengths of a case's tensors, those of its outputs first."""
    slots = (*(case.outputs or ()), *(case.inputs or ()))
    return [size for slot in slots for size in slot.shape or ()]


def find_surfaces(
    cases: Iterable[tuple[str, Case]], find: FindOperator, backend: str, least: int
) -> list[Surface]:
    """The surfaces of at least so many points among cases, by id. What runs over ranks, what no
    device would run, and what has an empty tensor is on none."""
    groups: dict[Hashable, list[tuple[str, Case]]] = defaultdict(list)
    for case_id, case in cases:
        if case.inputs is not None and not is_of_gangs(case):
            groups[_alike(case)].append((case_id, case))
    large = (sorted(group) for group in groups.values() if len(group) >= least)
    found = (_surface(group, find, backend) for group in large)
    return [surface for surface in found if len(surface.case_ids) >= least]


def _surface(group: Sequence[tuple[str, Case]], find: FindOperator, backend: str) -> Surface:
    ids, lengths, work = [], [], []
    for case_id, case in group:
        told = _work(case, find, backend)
        of_case = _sizes(case)
        if told is not None and min(of_case, default=0) > 0:
            ids.append(case_id)
            lengths.append(of_case)
            work.append(told)
    if not ids:
        return Surface((), Points(np.empty((0, 0)), np.empty(0), np.empty(0), _CORES))
    operations, traffic = np.maximum(np.array(work, np.float64), 1.0).T
    return Surface(tuple(ids), Points(_axes(lengths), operations, traffic, _CORES))


def _work(case: Case, find: FindOperator, backend: str) -> tuple[float, float] | None:
    """Operations and bytes of a launch; None where no device will run it, or nobody knows."""
    op = find(case.kernel_type)
    if op is None or refusal(case, find, backend) is not None:
        return None
    try:
        return op.flops(case), op.traffic(case)
    except UNFORESEEN:
        return None


def _axes(lengths: Sequence[Sequence[int]]) -> Floats:
    """The lengths that tell points apart, each once."""
    columns = np.array(lengths, np.float64).T
    told: list[Floats] = []
    for column in columns:
        if np.ptp(column) > 0 and not any(np.array_equal(column, known) for known in told):
            told.append(column)
    return np.stack(told or [columns[0]], axis=1)
