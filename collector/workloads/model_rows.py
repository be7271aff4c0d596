"""Sizes of weights and rows of a kernel, of models in all of their packaged layouts, and of
recordings of a user."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from collector.codec.errors import BadInput
from collector.model.record import CaseRecord
from collector.model.vocabulary import INPUT_SHAPES, OUTPUT_SHAPES
from collector.ops.expression import dims_of
from collector.workloads.deployments import (
    LaunchPattern,
    PackagedDeployment,
    check_deployment,
    deployed_step,
    layouts_in,
    packaged_releases,
    recorded_layouts,
)
from collector.workloads.layout import Layout
from collector.workloads.models import Decoder
from collector.workloads.patterns import PRODUCTS, bundled_patterns
from collector.workloads.recorded_step import RecordedLaunch, Recording
from collector.workloads.serving import Batch, Phase

_SKEWS = (0, 50)  # percent of keys by which the requests of a decode differ from the mean
_PREFILL = ((1, 2, 4, 8), (256, 512, 1024, 2048, 3072, 4096, 4099, 4608, 5120, 6144, 8192))
_DECODE = (
    (1, 2, 4, 8, 12, 16, 24, 32),
    (512, 1024, 2048, 3072, 4096, 4100, 4224, 4352, 4608, 4864, 5120, 5376, 5632, 8192),
)
Recorded = PackagedDeployment | Recording


def deployments_of(decoders: Iterable[Decoder], release: str) -> Iterator[PackagedDeployment]:
    """Yield the deployments of models: of the release or, where a model has none, of the last that
    has some. Raises BadInput for a model of which nothing is packaged."""
    for decoder in decoders:
        served = [one for one in packaged_releases() if recorded_layouts(decoder, one)]
        if not served:
            check_deployment(decoder, Layout(), release)
        known = release if release in served else served[-1]
        for layouts in recorded_layouts(decoder, known):
            for layout in layouts_in(layouts):
                yield check_deployment(decoder, layout, known)


def products_of(recorded: Iterable[Recorded]) -> tuple[tuple[int, int], ...]:
    """Return the pairs (n, k) of the weights of products, each once, in order."""
    patterns = (one for one in bundled_patterns().patterns if one.source == PRODUCTS)
    kernels = {kernel for one in patterns for kernel in one.kernels}
    found = set()
    for of in recorded:
        for launch in _launches(of, kernels):
            first, result = (_slots(launch, name)[0] for name in (INPUT_SHAPES, OUTPUT_SHAPES))
            if first and result:
                found.add((result[-1], first[-1]))
    return tuple(sorted(pair for pair in found if all(pair)))


def expert_sizes(recorded: Iterable[Recorded]) -> tuple[tuple[int, int, int], ...]:
    """Return triples (experts of a rank, hidden size, size of an expert), each once, in order.

    The weights of experts are two tensors: gate and up in one, and down."""
    found = set()
    for of in recorded:
        slots = {one for launch in _launches(of) for one in _slots(launch, INPUT_SHAPES)}
        weights = {one for one in slots if len(one) == 3 and all(one)}
        down = {(count, 2 * size, hidden): size for count, size, hidden in weights}
        for count, hidden, both in weights:
            if (size := down.get((count, both, hidden))) is not None:
                found.add((count, hidden, size))
    return tuple(sorted(found))


def rows_of(
    recorded: Iterable[Recorded], kernel_types: Collection[str]
) -> dict[str, list[CaseRecord]]:
    """Return rows of these kernel types, each once: of a deployment those of prefills and decodes
    of many lengths, of a recording its own."""
    found: dict[str, dict[str, CaseRecord]] = {name: {} for name in kernel_types}
    for of in recorded:
        if isinstance(of, Recording):
            records = [of.record_of(one) for _, one, _ in of.launches() if one.kernel in found]
        else:
            records = list(_rows(_reduced(of, kernel_types)))
        for one in records:
            found[one.kernel_type].setdefault(one.case_id, one)
    return {name: list(rows.values()) for name, rows in found.items()}


def _rows(deployment: PackagedDeployment) -> Iterator[CaseRecord]:
    for batch in _passes(*_PREFILL, *_DECODE) if deployment.ranges else ():
        try:
            step = deployed_step(deployment, batch)
        except BadInput:  # a load that is not recorded
            continue
        yield from (one.record for one in step.kernels)


def _launches(
    recorded: Recorded, kernel_types: Collection[str] | None = None
) -> Iterator[LaunchPattern | RecordedLaunch]:
    """Yield the launches whose tensors are known, of these kernel types or of all."""
    for of in recorded.passes if isinstance(recorded, Recording) else recorded.ranges:
        for one in of.launches:
            if one.cells and (kernel_types is None or one.kernel in kernel_types):
                yield one


def _slots(launch: LaunchPattern | RecordedLaunch, name: str) -> list[tuple[int, ...]]:
    """Return the shapes of a cell; a size that depends on the load is 0."""
    texts = launch.cells.get(name, "").strip('"').split(";")
    return [
        tuple(int(one.text) if one.text.isdecimal() else 0 for one in dims_of(text))
        for text in texts
    ]


def _reduced(deployment: PackagedDeployment, kernel_types: Collection[str]) -> PackagedDeployment:
    """Return the deployment with only the launches of these kernel types."""
    ranges = (
        replace(one, launches=tuple(x for x in one.launches if x.kernel in kernel_types))
        for one in deployment.ranges
    )
    return replace(deployment, ranges=tuple(one for one in ranges if one.launches))


def _passes(
    prompts: Sequence[int], lengths: Sequence[int], requests: Sequence[int], keys: Sequence[int]
) -> Iterator[Batch]:
    for count, length in product(prompts, lengths):
        yield Batch(Phase.PREFILL, count, length, length)
    for count, length in product(requests, keys):
        for skew in _SKEWS if count > 1 else _SKEWS[:1]:
            yield Batch(Phase.DECODE, count, 1, length, skew=skew)
