"""Rows that models require of a kernel: fused attention and similar, and the sizes of weights."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from collector.codec.errors import BadInput
from collector.model.record import CaseRecord
from collector.shapes.kernel_set import KernelPattern, KernelSet, ProductPattern
from collector.shapes.layout import Layout, Quantisation, check_layout
from collector.shapes.models import Decoder
from collector.shapes.serving import Batch, Phase
from collector.shapes.step import derive_step, numbers_of

_TP = (1, 2, 4, 8, 16)
_LEAST_RANKS = 16  # of experts
_SKEWS = (0, 50)  # percent of keys by which the requests of a decode differ from the mean
_PREFILL = ((1, 2, 4, 8), (256, 512, 1024, 2048, 3072, 4096, 4099, 4608, 5120, 6144, 8192))
_DECODE = (
    (1, 2, 4, 8, 12, 16, 24, 32),
    (512, 1024, 2048, 3072, 4096, 4100, 4224, 4352, 4608, 4864, 5120, 5376, 5632, 8192),
)


def layouts_of(decoder: Decoder) -> tuple[Layout, ...]:
    """Return the layouts over tensor parallel ranks that a model accepts."""
    found = []
    for tp in _TP:
        ranks = max(tp, _LEAST_RANKS) if decoder.is_moe else tp
        layout = Layout(
            tp=tp,
            dp=ranks // tp,
            ep=ranks if decoder.is_moe else 1,
            sequence_split=decoder.is_moe and tp > 1,
            quantisation=Quantisation.W8A8 if decoder.is_moe else Quantisation.BF16,
        )
        try:
            check_layout(decoder, layout)
        except BadInput:
            continue
        found.append(layout)
    return tuple(found)


def products_of(decoders: Iterable[Decoder], kernels: KernelSet) -> tuple[tuple[int, int], ...]:
    """Return the pairs (n, k) of the models' weights in all their layouts, each once, in order."""
    found = {
        (one.width.value(names), one.depth.value(names))
        for decoder in decoders
        for layout in layouts_of(decoder)
        for batch in _passes((1,), (1,), (1,), (1,))
        for names in [numbers_of(decoder, layout, batch, kernels.habits)]
        for pattern in kernels.patterns
        if isinstance(one := pattern.launch, ProductPattern)
        and pattern.when.value(names)
        and pattern.times.value(names) > 0
    }
    return tuple(sorted(found))


def rows_of(
    decoders: Iterable[Decoder], kernels: KernelSet, kernel_types: Collection[str]
) -> dict[str, list[CaseRecord]]:
    """Return rows of these kernel types: prefills and decodes of many lengths, each once.

    A model for which the release does something that its set does not describe has no rows."""
    found: dict[str, dict[str, CaseRecord]] = {name: {} for name in kernel_types}
    few = tuple(
        one
        for one in kernels.patterns
        if isinstance(one.launch, KernelPattern) and one.launch.kernel in kernel_types
    )
    reduced_set = replace(kernels, patterns=few)
    for decoder in decoders if few else ():
        for layout, batch in product(layouts_of(decoder), _passes(*_PREFILL, *_DECODE)):
            try:
                step = derive_step(decoder, layout, batch, reduced_set)
            except BadInput:
                continue
            for one in step.kernels:
                rows = found.get(one.record.kernel_type)
                if rows is not None:
                    rows.setdefault(one.record.case_id, one.record)
    return {name: list(rows.values()) for name, rows in found.items()}


def _passes(
    prompts: Sequence[int], lengths: Sequence[int], requests: Sequence[int], keys: Sequence[int]
) -> Iterator[Batch]:
    for count, length in product(prompts, lengths):
        yield Batch(Phase.PREFILL, count, length, length)
    for count, length in product(requests, keys):
        for skew in _SKEWS if count > 1 else _SKEWS[:1]:
            yield Batch(Phase.DECODE, count, 1, length, skew=skew)


# Sizes of the experts of one rank, from models and their distribution in deployments.

_MOST_ON_A_RANK = 64


def experts_of(decoders: Iterable[Decoder]) -> tuple[tuple[int, int, int], ...]:
    """Return triples (experts of a rank, hidden size, size of an expert), each once, in order.

    The numbers of ranks are all powers of two that divide a model's experts evenly and leave each
    rank at most `_MOST_ON_A_RANK`."""
    found = {
        (decoder.experts // ranks, decoder.hidden, decoder.expert_intermediate)
        for decoder in decoders
        for ranks in (1 << power for power in range(decoder.experts.bit_length()))
        if decoder.experts % ranks == 0 and decoder.experts // ranks <= _MOST_ON_A_RANK
    }
    return tuple(sorted(found))
