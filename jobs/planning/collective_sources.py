"""The collectives that a campaign names as records of cases."""

from collections.abc import Sequence
from math import prod

from collector.collective import Collective
from collector.collective_case import CollectiveCase
from collector.comm.bench_plan import LeftOut, collectives_of, default_mode
from collector.comm.sizes import chosen_sizes
from collector.record import CaseRecord
from jobs.campaign.collectives import AUTO, CollectivesSource


def collective_records(
    source: CollectivesSource, backend: str
) -> tuple[tuple[CaseRecord, ...], Sequence[LeftOut]]:
    """The cases of a source in the order of its words, and those that cannot be: a size that no
    whole elements make, a group that the ranks do not hold. BadInput for a grid of sizes that
    nobody knows."""
    found, left_out = collectives_of(
        source.operations,
        chosen_sizes(source.sizes, source.max_bytes),
        source.dtype,
        source.groups,
        source.tiers,
        grid=source.grid,
        world=source.ranks,
    )
    return tuple(_record(one, source, backend) for one in found), left_out


def _record(one: Collective, source: CollectivesSource, backend: str) -> CaseRecord:
    ranks = source.ranks if one.together else ranks_alone(one, source)
    mode = source.mode
    if mode == AUTO:
        mode = default_mode(one.operation, one.message_bytes, backend)
    return CollectiveCase(one, source.grid, ranks, mode, source.environment).record()


def ranks_alone(one: Collective, source: CollectivesSource) -> int:
    """How many ranks hold the first group of a tier: whole parts of the grid, so that each rank of
    the group lies where it belongs."""
    first = source.grid.groups(one.group_size, one.tier, source.ranks)[0]
    part = prod(source.grid.extents[one.tier + 1 :])
    return min(source.ranks, -(-(first[-1] + 1) // part) * part)
