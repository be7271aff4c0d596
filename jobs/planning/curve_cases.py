"""The curves of a campaign: cases of one kernel that differ only in their sizes are points of a
surface, and its durations can be learnt from a part of the points. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collector.model.case import Case
from collector.ops.refusals import DECLARATION_ERRORS, FindOperator, refusal
from collector.ops.sizes import SizeGroup, dimension_count, length_lists, list_sizes, size_group
from collector.ops.together import lengths_of
from collector.ranks.gangs import is_of_gangs
from collector.surfaces.axes import axes_of
from collector.surfaces.base import Work, by_tensor, monomial_through, work_on
from collector.surfaces.rounds import LEAST_BUDGET, Known, PointBudget, Points, next_round
from jobs.campaign.campaign_file import SamplingSettings
from jobs.planning.candidates import (
    Candidate,
    HeadResult,
)
from jobs.planning.plan_cases import PlanRequest


@dataclass(frozen=True, slots=True)
class Surface:
    """Cases that differ only in their sizes, ordered by case id, and their points."""

    case_ids: tuple[str, ...]
    points: Points


def find_surfaces(
    cases: Iterable[tuple[str, Case]], find: FindOperator, backend: str, least: int
) -> list[Surface]:
    """Return the surfaces with at least `least` points among the cases.

    Cases over several ranks, refused cases and cases with an empty tensor are not on any surface.
    """
    groups: dict[SizeGroup, list[tuple[str, Case]]] = defaultdict(list)
    for case_id, case in cases:
        if case.inputs is not None and not is_of_gangs(case):
            groups[size_group(case)].append((case_id, case))
    large = (sorted(group) for group in groups.values() if len(group) >= least)
    found = (_surface(group, find, backend) for group in large)
    return [surface for surface in found if len(surface.case_ids) >= least]


def _surface(group: Sequence[tuple[str, Case]], find: FindOperator, backend: str) -> Surface:
    ids, rows, operations = [], [], []
    for case_id, case in group:
        known = _operations(case, find, backend)
        lengths = lengths_of(case)
        if known is not None and min(lengths, default=0) > 0:
            ids.append(case_id)
            rows.append([*lengths, *list_sizes(length_lists(case))])
            operations.append(known)
    if not ids:
        return Surface((), Points(np.empty((0, 0)), Work()))
    case, columns = group[0][1], np.array(rows, np.int64)
    columns[:, list(size_group(case).free)] = 0
    axes = axes_of(columns, range(len(lengths_of(case)), columns.shape[1])).axes or (0,)
    sizes = columns[:, axes].astype(np.float64)
    slots = (*(case.inputs or ()), *(case.outputs or ()))
    tensors, count = by_tensor(list(map(dimension_count, slots)), columns), len(case.inputs or ())
    power_law = monomial_through(sizes, np.array(operations, np.float64))
    return Surface(
        tuple(ids), Points(sizes, work_on(sizes, tensors[:count], tensors[count:], power_law))
    )


def _operations(case: Case, find: FindOperator, backend: str) -> float | None:
    op = find(case.kernel_type)
    if op is None or refusal(case, find, backend) is not None:
        return None
    try:
        return op.flops(case)
    except DECLARATION_ERRORS:
        return None


# Which cases of a campaign's curves a round measures if the model of each surface predicts the
# others. Pure and stateless: the next round follows from the results so far.


@dataclass(frozen=True, slots=True)
class CasesLeftOut:
    """The cases that a round leaves out.

    `unsure` of them are not known to the tolerance. The round requests `learning` cases of
    surfaces; if there are any, another round follows."""

    left_out: frozenset[str] = frozenset()
    unsure: int = 0
    learning: int = 0


def left_out_cases(
    candidates: Sequence[Candidate], request: PlanRequest, find: FindOperator
) -> CasesLeftOut:
    """Return the candidates that the next round leaves out.

    Candidates that are on no surface large enough for a model are not left out.

    Example: for a curve of 1,000 cases and a share of 25 %, the first round requests 110 cases that
    train the model and 50 that check how well it predicts the others, and leaves out 840. Two more
    rounds request 90 in total where the model is unsure, unless it is sure before."""
    head_results, settings = request.head_results, request.campaign.sampling
    if settings is None:
        return CasesLeftOut()
    cases = (
        (candidate.record.case_id, candidate.record.case)
        for candidate in candidates
        if not candidate.weight.in_tree or candidate.record.case_id in head_results
    )
    least = int(np.ceil(LEAST_BUDGET / settings.share))
    surfaces = find_surfaces(cases, find, request.campaign.backend, least)
    found = [_spared_of(surface, head_results, settings) for surface in surfaces]
    return CasesLeftOut(
        frozenset().union(*(one.left_out for one in found)),
        sum(one.unsure for one in found),
        sum(one.learning for one in found),
    )


def _spared_of(
    surface: Surface, head_results: Mapping[str, HeadResult], settings: SamplingSettings
) -> CasesLeftOut:
    known, budget = _known(surface, head_results, settings)
    found = next_round(surface.points, known, budget, settings.tolerance)
    is_left = ~known.requested
    is_left[found.points_to_measure] = False
    left = np.flatnonzero(is_left)
    unsure = int(np.sum(found.half_widths[left] > np.log1p(settings.tolerance)))
    return CasesLeftOut(
        frozenset(surface.case_ids[at] for at in left), unsure, len(found.points_to_measure)
    )


def _known(
    surface: Surface, head_results: Mapping[str, HeadResult], settings: SamplingSettings
) -> tuple[Known, PointBudget]:
    """Return the known points of a surface.

    Case ids are hashes, so the first ids are a random sample."""
    values = [head_results.get(case_id) for case_id in surface.case_ids]
    budget = PointBudget(int(settings.share * len(values)))
    known = Known(
        requested=np.array([result is not None for result in values]),
        duration_us=np.array([_duration_us(result) for result in values], np.float64),
        checks=np.arange(len(values)) < budget.checks,
    )
    return known, budget


def _duration_us(result: HeadResult | None) -> float:
    """Return the duration of a good result. Suspect results are used too.

    A suspect duration is a few percent off, and its case is measured again anyway."""
    return (result.mean_us or np.nan) if result is not None and result.is_good else np.nan
