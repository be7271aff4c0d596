"""The collectives that a campaign names, or that a profile's step has sent, as records of cases."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from statistics import fmean, median, stdev

from collector.collective import Collective
from collector.collective_case import CollectiveCase
from collector.comm.bench_plan import LeftOut, collectives_of, default_mode
from collector.comm.profiled import Profiled, profiled_collectives
from collector.comm.sizes import chosen_sizes
from collector.distribute_call import DISTRIBUTE_KERNELS
from collector.distribute_row import tells_ranks
from collector.errors import BadInput
from collector.expert_call import KERNELS
from collector.gang_case import ranks_of
from collector.plan import devices_for
from collector.profiles.transfers import find_transfers, read_transfers
from collector.record import CaseRecord, ProfileStatistics
from collector.topology import Grid
from collector.vocabulary import EP_SIZE
from jobs.campaign.campaign_file import Campaign
from jobs.campaign.collectives import AUTO, CollectivesSource, StepCollectives

_OF_EXPERTS = (*KERNELS, *DISTRIBUTE_KERNELS)


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
    cases = (_case(one, source, source.ranks, backend) for one in found)
    return tuple(case.record() for case in cases), left_out


def check_gangs(records: Iterable[CaseRecord], campaign: Campaign) -> None:
    """Raise BadInput where what a campaign asks for by name could never be measured. (Rows that
    only happen to be in a source are answered instead.)"""
    ranks = max((ranks_of(record.case) for record in records), default=1)
    if devices_for(ranks, campaign.backend) > campaign.devices:
        raise BadInput(
            f"campaign {campaign.name}: devices: expected at least {ranks}, the number of ranks "
            f"of its collectives, got {campaign.devices}"
        )
    if ranks > 1 and campaign.measure.cache != "warm":
        raise BadInput(
            f"campaign {campaign.name}: measure.cache: expected warm, because it has collectives, "
            f"got {campaign.measure.cache}"
        )


def step_records(
    profile: Path, step: StepCollectives, backend: str
) -> tuple[tuple[CaseRecord, ...], tuple[Profiled, ...]]:
    """The collectives that the ranks of a profile have sent, each once, and all of its rows.
    What a profile says of their durations holds the waiting for other ranks: it stays there."""
    transfers = [one for folder in find_transfers(profile) for one in read_transfers(folder)]
    found = profiled_collectives(transfers, step.grid, step.dtype)
    records = tuple(
        collective_record(one.collective, step, step.grid.size, backend)
        for one in found
        if one.collective is not None
    )
    return records, found


def messages_in_situ(profile: Path, step: StepCollectives, backend: str) -> tuple[CaseRecord, ...]:
    """The same collectives with how long they took in the run, waiting for other ranks and all."""
    records, found = step_records(profile, step, backend)
    told = (one for one in found if one.collective is not None)
    return tuple(
        replace(record, profile=_statistics(one.durations_us))
        for record, one in zip(records, told, strict=True)
    )


def _statistics(durations_us: Sequence[float]) -> ProfileStatistics:
    mean_us, count = fmean(durations_us), len(durations_us)
    std_us = stdev(durations_us) if count > 1 else 0.0
    return ProfileStatistics(count, mean_us, median(durations_us), std_us)


def collective_record(
    one: Collective, said: StepCollectives, world: int, backend: str
) -> CaseRecord:
    """The record of a collective that a step sends among so many ranks."""
    return _case(one, said, world, backend).record()


def with_ep_size(record: CaseRecord, ep_size: int | None) -> CaseRecord:
    """The record of a kernel that goes to ranks of experts with how many have them, where only
    somebody else says; every other one as it is, for `EP Size` is part of what tells a case."""
    if ep_size is None or record.kernel_type not in _OF_EXPERTS or record.extra.get(EP_SIZE):
        return record
    if record.kernel_type in DISTRIBUTE_KERNELS and tells_ranks(record.case):
        return record
    return replace(record, extra={**record.extra, EP_SIZE: str(ep_size)})


def _case(
    one: Collective, said: CollectivesSource | StepCollectives, world: int, backend: str
) -> CollectiveCase:
    ranks = world if one.together else ranks_alone(one, said.grid, world)
    mode = said.mode
    if mode == AUTO:
        mode = default_mode(one.operation, one.message_bytes, backend)
    return CollectiveCase(one, said.grid, ranks, mode, said.environment)


def ranks_alone(one: Collective, grid: Grid, world: int) -> int:
    """How many ranks hold the first group of a tier: whole parts of the grid, so that each rank of
    the group lies where it belongs."""
    first = grid.groups(one.group_size, one.tier, world)[0]
    part = prod(grid.extents[one.tier + 1 :])
    return min(world, -(-(first[-1] + 1) // part) * part)
