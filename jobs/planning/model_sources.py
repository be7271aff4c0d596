"""The steps that a model makes of what it serves, as records of cases."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from collector.collective import Collective, check, whole_bytes
from collector.record import CaseRecord
from collector.shapes.batch import Batch
from collector.shapes.decoder import Decoder
from collector.shapes.expression import align
from collector.shapes.kernel_set import find_kernel_set
from collector.shapes.models import read_decoder
from collector.shapes.serving import passes
from collector.shapes.step import Step, StepCollective, StepKernel, derive_step
from jobs.campaign.model_source import ModelSource
from jobs.planning.collective_sources import collective_record

# What a row says of where it comes from: no part of its case, which other models may have, too.
MODEL_STEPS = "Model Steps"


@dataclass(frozen=True, slots=True)
class ModelCases:
    """The model, the forward passes, and the cases of all of them, each once, with how many times
    they launch it who serve every number of requests once. A record tells in MODEL_STEPS where in
    which pass its case stands, and how often in one."""

    decoder: Decoder
    batches: tuple[Batch, ...]
    records: tuple[CaseRecord, ...]
    launches: tuple[int, ...]


def model_records(source: ModelSource, backend: str) -> ModelCases:
    """The cases of a source, in the order of its passes. BadInput for a model whose step no set of
    kernels tells."""
    kernels = find_kernel_set(source.release)
    decoder = source.model if isinstance(source.model, Decoder) else read_decoder(source.model)
    weighed = passes(source.serving)
    steps = [
        (derive_step(decoder, source.layout, batch, kernels), batch, times)
        for batch, times in weighed.items()
    ]
    found: dict[str, CaseRecord] = {}
    launches: Counter[str] = Counter()
    places: dict[str, dict[str, None]] = {}
    for record, one, batch, times in _launched(steps, source, backend):
        name = record.case_id
        found.setdefault(name, record)
        launches[name] += one.times * times
        places.setdefault(name, {})[f"{_phase(batch)}, {one.layer} x {one.times}"] = None
    who = f"{decoder.name} ({source.layout})"
    records = tuple(
        replace(record, extra={**record.extra, MODEL_STEPS: f"{who}: {'; '.join(places[name])}"})
        for name, record in found.items()
    )
    return ModelCases(decoder, tuple(weighed), records, tuple(launches[one] for one in found))


def _launched(
    steps: list[tuple[Step, Batch, int]], source: ModelSource, backend: str
) -> Iterator[tuple[CaseRecord, StepKernel | StepCollective, Batch, int]]:
    """What passes launch, kernels and then messages, each with its pass and how often that is."""
    for step, batch, times in steps:
        for one in step.kernels:
            yield one.record, one, batch, times
    yield from _collectives(steps, source, backend)


def _phase(batch: Batch) -> str:
    draft = ", draft" if batch.is_draft else ""
    return f"{'mixed' if batch.followed else batch.phase}{draft}"


def _collectives(
    steps: list[tuple[Step, Batch, int]], source: ModelSource, backend: str
) -> Iterator[tuple[CaseRecord, StepCollective, Batch, int]]:
    """What the ranks of a step send, over the nearest ranks, where that is asked for."""
    said = source.collectives
    if said is None:
        return
    every = ((one, batch, times) for step, batch, times in steps for one in step.collectives)
    for one, batch, times in every:
        tier = said.grid.natural_tier(one.group_size)
        message = _whole(
            Collective(one.operation, one.message_bytes, "bfloat16", one.group_size, tier)
        )
        check(message)
        yield collective_record(message, said, said.grid.size, backend), one, batch, times


def _whole(message: Collective) -> Collective:
    """With whole elements for each rank where ranks have parts: rows to experts need not divide."""
    size_bytes = align(message.message_bytes, whole_bytes(message))
    return replace(message, message_bytes=size_bytes)
