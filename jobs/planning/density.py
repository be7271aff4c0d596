"""Which cases of a campaign's curves a round measures, where the model of each surface is to tell
the others. Pure, and without memory: what is answered decides what comes next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collector.ops.refusals import FindOperator
from collector.surface.rounds import LEAST_BUDGET, Budget, Known, next_round
from jobs.campaign.density import DensitySettings
from jobs.planning.candidates import Candidate, HeadAnswer
from jobs.planning.surfaces import Surface, find_surfaces


@dataclass(frozen=True, slots=True)
class Spared:
    """The cases that a round leaves out; `unsure` of them are not known to the tolerance. It asks
    for `learning` cases of surfaces: another round follows those."""

    left_out: frozenset[str] = frozenset()
    unsure: int = 0
    learning: int = 0


def spared(
    candidates: Sequence[Candidate],
    answered: Mapping[str, HeadAnswer],
    settings: DensitySettings,
    find: FindOperator,
    backend: str,
) -> Spared:
    """What the next round leaves out of the candidates. What is on no surface large enough to be
    learnt is left in.

    Example: of a curve of 1,000 cases and a share of 25 % the first round asks for 110 that teach
    and 50 that check how well the others are known, and leaves out 840. Two more ask for 90 between
    them where the model is unsure, unless it is sure before.
    """
    cases = (
        (candidate.record.case_id, candidate.record.case)
        for candidate in candidates
        if not candidate.weight.in_tree or candidate.record.case_id in answered
    )
    least = int(np.ceil(LEAST_BUDGET / settings.share))
    return _together(
        [
            _spared_of(surface, answered, settings)
            for surface in find_surfaces(cases, find, backend, least)
        ]
    )


def _together(found: Sequence[Spared]) -> Spared:
    return Spared(
        frozenset().union(*(one.left_out for one in found)),
        sum(one.unsure for one in found),
        sum(one.learning for one in found),
    )


def _spared_of(
    surface: Surface, answered: Mapping[str, HeadAnswer], settings: DensitySettings
) -> Spared:
    known, budget = _known(surface, answered, settings)
    found = next_round(surface.points, known, budget, settings.tolerance)
    is_left = ~known.asked
    is_left[found.ask] = False
    left = np.flatnonzero(is_left)
    unsure = int(np.sum(found.half_widths[left] > np.log1p(settings.tolerance)))
    return Spared(frozenset(surface.case_ids[at] for at in left), unsure, len(found.ask))


def _known(
    surface: Surface, answered: Mapping[str, HeadAnswer], settings: DensitySettings
) -> tuple[Known, Budget]:
    """What is known of a surface. Case ids are hashes: the first so many are drawn by chance."""
    told = [answered.get(case_id) for case_id in surface.case_ids]
    budget = Budget(int(settings.share * len(told)))
    known = Known(
        asked=np.array([answer is not None for answer in told]),
        duration_us=np.array([_duration_us(answer) for answer in told], np.float64),
        checks=np.arange(len(told)) < budget.checks,
    )
    return known, budget


def _duration_us(answer: HeadAnswer | None) -> float:
    """A doubted number teaches, too: it is a few percent off, and is measured again anyway."""
    return (answer.mean_us or np.nan) if answer is not None and answer.is_good else np.nan
