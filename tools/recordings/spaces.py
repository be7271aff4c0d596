"""The loads of a range: an enumeration that has every small load, and others near what may switch.

What fits the recorded loads is determined if all of it agrees on these.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from collector.ops.expression import ceil_div
from collector.workloads.deployments import LoadRange, batch_of, padded
from collector.workloads.serving import Batch, Phase

MOST_TOKENS, MOST_REQUESTS = 8192, 256  # limits of the engine: vLLM's default, and its graphs'
_PROMPTS = (*range(1, 13), 16, 17, 31, 64, 100, 255, 256)
_NEXT_TO = (1, 2, 3, 4, 5, 8, 16)  # prompts next to decodes
_DECODES = (*range(1, 10), 12, 15, 16, 17, 31, 32, 63, 64, 100, 200, 250)
_SIZES = (64, 128, 192, 512, 1000, 1024, 1216, 2048, 4096)  # at which kernels may switch


@dataclass(frozen=True, slots=True)
class LoadSpan:
    """What a range has: a phase, least and most tokens, predicted tokens, and whether it is of one
    prompt; and the most tokens of a request."""

    phase: str
    least: int
    most: int
    predicted: int
    is_of_one: bool
    longest: int

    @classmethod
    def of(cls, one: LoadRange, longest: int) -> "LoadSpan":
        """Return the span of a packaged range."""
        is_of_one = one.phase == "chunk" and one.is_of_one
        return cls(one.phase, one.least, one.most, one.predicted, is_of_one, longest)


def batches_of(span: LoadSpan, graph_sizes: Iterable[int]) -> tuple[Batch, ...]:
    """Return the loads of a span, decodes padded to graphs. The same arguments give the same."""
    drawn = random.Random(repr(span))
    if span.phase == Phase.DECODE:
        each = 1 + span.predicted
        requests = range(ceil_div(span.least, each), span.most // each + 1)
        found = [
            Batch(Phase.DECODE, n, each, 141 + 37 * n % 101, predicted=span.predicted)
            for n in requests
        ]
    elif span.phase == "mixed":
        found = list(_mixed(span, drawn))
    else:
        found = list(_prompts(span, drawn))
    sizes = tuple(graph_sizes)
    return tuple(padded(one, sizes) for one in found)


def random_batches(span: LoadSpan, count: int, seed: int) -> tuple[Batch, ...]:
    """Return so many random loads of a span, which an engine runs in seconds."""
    drawn, found = random.Random(f"{span} {seed}"), list[Batch]()
    while len(found) < count:
        decodes = drawn.choice((1, 2, drawn.randint(1, 40))) if span.phase == "mixed" else 0
        most = 1 if span.is_of_one else 12
        requests = drawn.choice((1, drawn.randint(1, most)))
        if span.phase == Phase.DECODE:
            each = 1 + span.predicted
            requests = drawn.randint(ceil_div(span.least, each), span.most // each)
            keys = drawn.randint(each + 2, 300)
            found.append(Batch(Phase.DECODE, requests, each, keys, predicted=span.predicted))
            continue
        low, high = _queries(span, requests, decodes)
        if low <= high:
            queries = drawn.choice(
                (drawn.randint(low, high), min(high, low + drawn.randint(0, 40)))
            )
            one = _batch(span, decodes, requests, queries, drawn.randint(1, 3))
            found += [one] if one is not None and is_recordable(one) else []
    return tuple(found)


def is_recordable(batch: Batch) -> bool:
    """Return whether an engine runs the load in seconds: it cuts a prompt into equal parts where
    its tokens are a multiple of the new ones."""
    if batch.is_decode:
        return True
    parts = batch.keys // batch.queries if batch.keys % batch.queries == 0 else 1
    return parts <= 8


def _queries(span: LoadSpan, requests: int, decodes: int) -> tuple[int, int]:
    """Return the fewest and the most new tokens of each prompt. An engine takes prompts of as many
    tokens as a decode for decodes."""
    low = max(2 + span.predicted, ceil_div(span.least - decodes, requests))
    return low, min(span.longest, (span.most - decodes) // requests)


def _chosen(low: int, high: int, requests: int, near: int, drawn: random.Random) -> set[int]:
    """Return numbers from the least to the most: some near both, some where kernels may switch."""
    found = {*range(low, low + near), *range(high - near, high + 1)}
    found |= {size // of + n for size in _SIZES for of in {1, requests} for n in (-1, 0, 1)}
    found |= {drawn.randint(low, high) for _ in range(near)}
    return {one for one in found if low <= one <= high}


def _prompts(span: LoadSpan, drawn: random.Random) -> Iterator[Batch]:
    for requests in (1,) if span.is_of_one else _PROMPTS:
        low, high = _queries(span, requests, 0)
        if low <= high:
            for queries in sorted(_chosen(low, high, requests, 18, drawn)):
                for parts in (1, 2):
                    one = _batch(span, 0, requests, queries, parts)
                    if one is not None and (parts == 1 or span.phase == "chunk"):
                        yield one


def _mixed(span: LoadSpan, drawn: random.Random) -> Iterator[Batch]:
    for decodes in _DECODES:
        for requests in _NEXT_TO:
            low, high = _queries(span, requests, decodes)
            if low <= high and decodes + requests <= MOST_REQUESTS:
                for queries in sorted(_chosen(low, high, requests, 5, drawn)):
                    for parts in (1, 2):
                        one = _batch(span, decodes, requests, queries, parts)
                        if one is not None:
                            yield one


def _batch(span: LoadSpan, decodes: int, requests: int, queries: int, parts: int) -> Batch | None:
    """Return a load of prompts; `parts` are those of a prompt, or those of the engine before a
    chunk. None for more tokens than a request may have."""
    keys = parts * (MOST_TOKENS if span.phase == "chunk" else queries)
    if span.phase == "chunk":
        keys += queries
    elif span.phase == "prefill":
        keys = queries
    if keys > span.longest:
        return None
    followed = 131 + (53 * decodes + queries) % 97 if decodes else 0
    return Batch(
        *(Phase.PREFILL, requests, queries, keys),
        mixed_decodes=decodes,
        followed_keys=followed,
        predicted=span.predicted,
    )


def recorded_batches(one: LoadRange, graph_sizes: Iterable[int]) -> tuple[Batch, ...]:
    """Return the recorded loads of a packaged range."""
    sizes = tuple(graph_sizes)
    return tuple(padded(batch_of(one, load), sizes) for load in one.loads)
