"""Generated cases: the steps of a model, and collectives by size and group."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from pathlib import Path
from statistics import fmean, median, stdev

from collector.codec.errors import BadInput
from collector.comm.bench_plan import LeftOut, chosen_sizes, collectives_of, default_mode
from collector.comm.profiled import Profiled, profiled_collectives
from collector.model.plan import devices_for
from collector.model.record import CaseRecord, ProfileStatistics
from collector.ops.expression import align
from collector.profiles.transfers import find_transfers, read_transfers
from collector.ranks.collective import (
    DTYPES,
    OPERATIONS,
    Collective,
    CollectiveCase,
    check_collective,
    whole_bytes,
)
from collector.ranks.gangs import ranks_needed
from collector.ranks.topology import Grid
from collector.workloads.deployments import model_step
from collector.workloads.models import Decoder, read_decoder
from collector.workloads.recorded_step import Recording, read_recording
from collector.workloads.serving import Batch, passes
from collector.workloads.step import Step, StepCollective, StepKernel
from jobs.campaign.campaign_file import Campaign
from jobs.campaign.source_kinds import (
    AUTO,
    CollectivesSource,
    ModelSource,
    RecordingSource,
    StepCollectives,
)

# Collectives that a campaign names, or that a profile's step sent, as records of cases.


def collective_records(
    source: CollectivesSource, backend: str
) -> tuple[tuple[CaseRecord, ...], Sequence[LeftOut]]:
    """Return the cases of a source, in the order of its settings, and those that are not possible.

    A size that is not a whole number of elements or a group that the ranks do not hold is not
    possible. Raise BadInput for an unknown grid of sizes."""
    found, left_out = collectives_of(
        source.operations,
        chosen_sizes(source.sizes, source.max_bytes),
        source.dtype,
        source.groups,
        source.tiers,
        grid=source.grid,
        world=source.ranks,
    )
    records = (collective_record(one, source, source.ranks, backend) for one in found)
    return tuple(records), left_out


def check_named_collectives(records: Iterable[CaseRecord], campaign: Campaign) -> None:
    """Raise BadInput if a campaign requests collectives by name that it can never measure.

    (Rows that are only present in a source get an outcome instead.)"""
    ranks = max((ranks_needed(record.case) for record in records), default=1)
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


def profiled_at(path: Path, grid: Grid, dtype: str) -> tuple[Profiled, ...]:
    """Return the collectives that the runs at or below a path recorded."""
    transfers = [one for folder in find_transfers(path) for one in read_transfers(folder)]
    return profiled_collectives(transfers, grid, dtype)


def step_records(
    profile: Path, step: StepCollectives, backend: str
) -> tuple[tuple[CaseRecord, ...], tuple[Profiled, ...]]:
    """Return the collectives that the ranks of a profile sent, each once, and all of its rows.

    The durations in a profile include waiting for other ranks and are not used."""
    found = profiled_at(profile, step.grid, step.dtype)
    records = tuple(
        collective_record(one.collective, step, step.grid.size, backend)
        for one in found
        if one.collective is not None
    )
    return records, found


def messages_in_situ(profile: Path, step: StepCollectives, backend: str) -> tuple[CaseRecord, ...]:
    """Return the same collectives with their durations in the run, including waiting."""
    records, found = step_records(profile, step, backend)
    recorded = (one for one in found if one.collective is not None)
    return tuple(
        replace(record, profile=_statistics(one.durations_us))
        for record, one in zip(records, recorded, strict=True)
    )


def _statistics(durations_us: Sequence[float]) -> ProfileStatistics:
    mean_us, count = fmean(durations_us), len(durations_us)
    std_us = stdev(durations_us) if count > 1 else 0.0
    return ProfileStatistics(count, mean_us, median(durations_us), std_us)


def collective_record(
    one: Collective, reported: CollectivesSource | StepCollectives, world: int, backend: str
) -> CaseRecord:
    """Return the record of a collective among `world` ranks."""
    ranks = world if one.together else ranks_alone(one, reported.grid, world)
    mode = reported.mode
    if mode == AUTO:
        mode = default_mode(one.operation, one.message_bytes, backend)
    return CollectiveCase(one, reported.grid, ranks, mode, reported.environment).record()


def ranks_alone(one: Collective, grid: Grid, world: int) -> int:
    """Return how many ranks hold the first group of a tier.

    The result is a number of whole parts of the grid, so that each rank of the group is in its
    place."""
    first = grid.groups(one.group_size, one.tier, world)[0]
    part = prod(grid.extents[one.tier + 1 :])
    return min(world, -(-(first[-1] + 1) // part) * part)


# The steps of a model under its serving load, as records of cases.

# The origin of a row. It is not part of the case, because other models may have the same case.
MODEL_STEPS = "Model Steps"


@dataclass(frozen=True, slots=True)
class ModelCases:
    """The model, its forward passes, and the cases of all passes, each once.

    `launches` is how often a case is launched if every number of requests is served once. A record
    lists in MODEL_STEPS the position of its case in each pass, and how often it occurs there."""

    decoder: Decoder
    batches: tuple[Batch, ...]
    records: tuple[CaseRecord, ...]
    launches: tuple[int, ...]


def model_records(source: ModelSource, backend: str) -> ModelCases:
    """Return the cases of a source, in the order of its passes.

    Raise BadInput for a layout or a load that is not recorded."""
    decoder = source.model if isinstance(source.model, Decoder) else read_decoder(source.model)
    weighed = passes(source.serving)
    steps = [
        (model_step(decoder, source.layout, batch, source.release), batch, times)
        for batch, times in weighed.items()
    ]
    found: dict[str, CaseRecord] = {}
    launches: Counter[str] = Counter()
    places: dict[str, dict[str, None]] = {}
    kernels = (
        (one.record, one, batch, times) for step, batch, times in steps for one in step.kernels
    )
    launched: Iterable[tuple[CaseRecord, StepKernel | StepCollective, Batch, int]]
    launched = chain(kernels, _collectives(steps, source, backend))
    for record, one, batch, times in launched:
        name = record.case_id
        found.setdefault(name, record)
        launches[name] += one.times * times
        phase = "mixed" if batch.mixed_decodes else batch.phase
        phase += ", draft" if batch.is_draft else ""
        places.setdefault(name, {})[f"{phase}, {one.layer} x {one.times}"] = None
    who = f"{decoder.name} ({source.layout})"
    records = tuple(
        replace(record, extra={**record.extra, MODEL_STEPS: f"{who}: {'; '.join(places[name])}"})
        for name, record in found.items()
    )
    return ModelCases(decoder, tuple(weighed), records, tuple(launches[one] for one in found))


def _collectives(
    steps: list[tuple[Step, Batch, int]], source: ModelSource, backend: str
) -> Iterator[tuple[CaseRecord, StepCollective, Batch, int]]:
    """Yield the messages of a step's ranks over the nearest ranks, if requested."""
    reported = source.collectives
    if reported is None:
        return
    every = ((one, batch, times) for step, batch, times in steps for one in step.collectives)
    for one, batch, times in every:
        sizes = (one.message_bytes, "bfloat16", one.group_size)
        yield message_record(one.operation, *sizes, reported, backend), one, batch, times


def message_record(
    operation: str,
    message_bytes: int,
    dtype: str,
    group_size: int,
    reported: StepCollectives,
    backend: str,
) -> CaseRecord:
    """Return the record of a message over the nearest ranks."""
    tier = reported.grid.natural_tier(group_size)
    message = Collective(operation, message_bytes, dtype, group_size, tier)
    # Whole elements for each rank: rows to experts may not divide.
    size_bytes = align(message.message_bytes, whole_bytes(message))
    message = replace(message, message_bytes=size_bytes)
    check_collective(message)
    return collective_record(message, reported, reported.grid.size, backend)


# The passes of a recording, as records of cases.


@dataclass(frozen=True, slots=True)
class RecordedCases:
    """The cases of a recording, each once, and how often its passes launch them together.

    `left_out` counts the launches of messages that cannot be measured, by reason."""

    recording: Recording
    records: tuple[CaseRecord, ...]
    launches: tuple[int, ...]
    left_out: Counter[str]


def recorded_cases(source: RecordingSource, backend: str) -> RecordedCases:
    """Return the cases of a recording, in the order of its passes. Raise BadInput for a bad file.

    A record lists in MODEL_STEPS the passes that launch its case, and how often."""
    recording = read_recording(source.path)
    ranks = ",".join(f"{name}={count}" for name, count in recording.layout.items())
    found: dict[str, CaseRecord] = {}
    launches: Counter[str] = Counter()
    places: dict[str, list[str]] = {}
    left_out: Counter[str] = Counter()
    kernels = [(one.phase, recording.record_of(x), times) for one, x, times in recording.launches()]
    if source.collectives is not None:
        for one, message, times in recording.messages():
            if message.operation not in OPERATIONS or message.dtype not in DTYPES:
                left_out[f"{message.operation} of {message.dtype}"] += times
                continue
            sizes = (message.message_bytes, message.dtype, message.group_size)
            record = message_record(message.operation, *sizes, source.collectives, backend)
            kernels.append((one.phase, record, times))
    for phase, record, times in kernels:
        found.setdefault(record.case_id, record)
        launches[record.case_id] += times
        places.setdefault(record.case_id, []).append(f"{phase} x {times}")
    records = tuple(
        replace(
            record,
            extra={
                **record.extra,
                MODEL_STEPS: f"{recording.model} ({ranks}, recorded): {'; '.join(places[name])}",
            },
        )
        for name, record in found.items()
    )
    return RecordedCases(recording, records, tuple(launches[one] for one in found), left_out)
