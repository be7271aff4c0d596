"""What a version directory contains, and what a query that it misses could name instead."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import NamedTuple

import numpy as np

from collector.codec.errors import BadInput
from collector.codec.text import counted
from collector.database.index import Index, IndexBlock
from collector.model.case import shape_text
from collector.model.demand import record_of_cells
from collector.model.vocabulary import NOT_KNOWN, OUTPUT_CELLS
from collector.ops.refusals import DECLARATION_ERRORS
from collector.ops.registry import find_operator
from collector.ops.sizes import mean_and_skew
from opmeter.answers import Reason
from opmeter.cases import Query, block_ranks, cells_of_rows, query_cells, sized_shapes

SettingsOf = Callable[[IndexBlock], Sequence[Mapping[str, str]]]

_LISTED = 5


class CaseGroup(NamedTuple):
    """Cases of one kernel type whose tensors agree in input dtypes and in dimensions.

    `inputs` and `outputs` have the range of each size, as in `1..256,4096;4096,512..1024`.
    `settings` has the texts of each column that distinguishes cases further, `lengths` the columns
    of lists of lengths on which the durations depend."""

    kernel: str
    cases: int
    dtypes: str
    inputs: str
    outputs: str
    settings: Mapping[str, tuple[str, ...]]
    lengths: tuple[str, ...]


def case_group(index: Index, block: IndexBlock, settings: Sequence[Mapping[str, str]]) -> CaseGroup:
    """Return what a block contains; `settings` are those of its rows, each once."""
    sizes = index.sizes_of(block)
    spans = [
        str(least) if least == most else f"{least}..{most}"
        for least, most in zip(sizes.min(axis=0), sizes.max(axis=0), strict=True)
    ]
    shapes = sized_shapes((*block_ranks(block), *block.outputs), spans)
    texts = ["" if shape is None else ",".join(shape) for shape in shapes]
    names = sorted({name for one in settings for name in one})
    return CaseGroup(
        block.kernel,
        block.end - block.begin,
        ";".join(dtype for dtype, _ in block.inputs),
        ";".join(texts[: len(block.inputs)]),
        ";".join(texts[len(block.inputs) :]),
        {name: tuple(sorted({one.get(name, "") for one in settings})) for name in names},
        block.lengths,
    )


def hints_for(
    index: Index,
    by_kernel: Mapping[str, Sequence[IndexBlock]],
    found: Sequence[IndexBlock],
    settings_of: SettingsOf,
    query: Query,
    reason: Reason,
) -> Iterator[str]:
    """Yield what has durations, for a query without one; `found` are the blocks that match it but
    for its sizes and lengths."""
    blocks = by_kernel.get(query.kernel, ())
    if reason is Reason.NO_KERNEL:
        like = kernels_like(query.kernel, by_kernel)
        cases = {name: sum(one.end - one.begin for one in by_kernel[name]) for name in like}
        listed = ", ".join(f"{name} ({counted(cases[name], 'case')})" for name in like[:_LISTED])
        every = f"none is like it; `opmeter db list` lists all {len(by_kernel):,}"
        yield f"kernel types with durations: {listed or every}"
    elif reason is Reason.NO_DTYPE:
        alike = [one for one in blocks if block_ranks(one) == query.ranks] or blocks
        yield f"dtypes with durations: {_counted(alike, _dtypes)}"
    elif reason is Reason.NO_LAYOUT:
        yield from _other_layouts(query.of_dtypes(blocks), settings_of, query)
    elif found:
        if reason is Reason.NO_LENGTH and query.lengths is None:
            names = ", ".join(dict.fromkeys(name for one in found for name in one.lengths))
            yield f"durations depend on lengths, of which the query has none: {names}"
        yield from _other_sizes(index, found, settings_of, query)


def kernels_like(kernel: str, known: Mapping[str, object]) -> list[str]:
    """Return the kernel types of another version than one, else those with a name like it."""
    stems: dict[str, list[str]] = {}
    for name in sorted(known):
        stems.setdefault(_stem(name), []).append(name)
    stem = _stem(kernel)
    if stem in stems:
        return stems[stem]
    lengths = {one: sorted((len(one), len(stem))) for one in stems if stem in one or one in stem}
    parts = [one for one, (less, more) in lengths.items() if less >= max(4, more / 2)]
    close = get_close_matches(stem, stems, n=_LISTED, cutoff=0.75)
    return [name for one in dict.fromkeys([*parts, *close]) for name in stems[one]]


def _stem(kernel: str) -> str:
    """Return the name of a kernel without its version: `matmul` for `MatMulV3`."""
    name = kernel.casefold().replace("_", "")
    plain = name.rstrip("0123456789")
    return plain.removesuffix("v") if plain != name else name


def broken_rule(index: Index, blocks: Sequence[IndexBlock], query: Query) -> str:
    """Return the rule of the operator that no case with the shapes of a query follows; empty if one
    may, or if that is not known. `blocks` are those of its kernel type.

    Dtypes and formats are those of a measured case. A rule counts only if that case follows it with
    as little known of its outputs as in the query."""
    op = find_operator(query.kernel)
    alike = [one for one in blocks if query.is_of_ranks(one)]
    alike = alike or [one for one in blocks if len(one.inputs) == len(query.ranks)]
    if op is None or not alike:
        return ""
    block = alike[0]
    like = next(cells_of_rows(index, block, [block.begin]))
    own = replace(query, dtypes=tuple(dtype for dtype, _ in block.inputs))
    has_outputs = query.outputs is not None and len(query.outputs) == len(block.outputs)
    broken = []
    for cells in (query_cells(own, (), like), like):
        known = cells if has_outputs else cells | dict.fromkeys(OUTPUT_CELLS, NOT_KNOWN)
        try:
            # An NPU has every layout that other devices have.
            broken.append(op.rejection_reason(record_of_cells(query.kernel, known).case, "npu"))
        except BadInput as error:  # more elements than a tensor can have
            broken.append(str(error))
        except DECLARATION_ERRORS:
            return ""
    return broken[0] if not broken[1] else ""


def _other_layouts(
    blocks: Sequence[IndexBlock], settings_of: SettingsOf, query: Query
) -> Iterator[str]:
    """Yield which dimensions, outputs or settings cases of the query's dtypes have."""
    alike = [one for one in blocks if block_ranks(one) == query.ranks]
    if not alike:
        dimensions = _counted(blocks, lambda one: _dimensions(block_ranks(one)))
        yield f"dimensions of the inputs of measured cases: {dimensions}"
        return
    if not any(map(query.is_of_ranks, alike)):
        dimensions = _counted(alike, lambda one: _dimensions(one.outputs))
        yield f"dimensions of the outputs of measured cases: {dimensions}"
    for name, text in query.cells.items():
        texts = {one.get(name, "") for block in alike for one in settings_of(block)}
        if text not in texts:
            shown = ", ".join(one or "none" for one in sorted(texts)[:_LISTED])
            yield f"{name} of measured cases: {shown}"


def _other_sizes(
    index: Index, blocks: Sequence[IndexBlock], settings_of: SettingsOf, query: Query
) -> Iterator[str]:
    """Yield the ranges of sizes, and the nearest case by the logarithms of its sizes and of the
    means of its lists of lengths."""
    near: list[tuple[float, IndexBlock, int]] = []
    for block in blocks:
        place = dict(enumerate(query.sizes)) | _means(block, query)
        known = index.sizes_of(block)[:, list(place)]
        own = np.array(list(place.values()), np.float64)
        distance = np.abs(np.log1p(known) - np.log1p(own)).sum(axis=1)
        at = int(distance.argmin())
        near.append((float(distance[at]), block, at))
    _, block, at = min(near, key=lambda one: one[0])
    for column in _means(block, query):
        means = index.sizes_of(block)[:, column] / 1000
        name = block.lengths[(column - block.width) // 2]
        yield f"measured means of {name}: {means.min():,.6g} to {means.max():,.6g}"
    group = case_group(index, block, settings_of(block))
    outputs = f" -> {group.outputs}" if query.outputs is not None else ""
    yield f"measured sizes: {group.inputs}{outputs} ({counted(group.cases, 'case')})"
    sizes, row = index.sizes_of(block)[at].tolist(), block.begin + at
    shapes = ";".join(map(shape_text, sized_shapes(block_ranks(block), sizes)))
    lengths = index.text("lengths", index.lengths[row])
    more = f" {lengths}" if lengths else ""
    yield f"nearest case: {shapes}{more}, {index.mean_us[row]:.6g} us"


def _means(block: IndexBlock, query: Query) -> dict[int, int]:
    """Return the mean of each list of lengths of a query, by the column of a block's sizes."""
    begin = block.width - 2 * len(block.lengths)
    given = query.lengths or {}
    return {
        begin + 2 * at: mean_and_skew(given[name])[0]
        for at, name in enumerate(block.lengths)
        if name in given
    }


def _dtypes(block: IndexBlock) -> str:
    return ";".join(dtype for dtype, _ in block.inputs)


def _dimensions(ranks: Sequence[int]) -> str:
    return ";".join(str(max(rank, 0)) for rank in ranks) or "none"


def _counted(blocks: Sequence[IndexBlock], text_of: Callable[[IndexBlock], str]) -> str:
    """Return the texts of blocks with their numbers of cases, the most frequent first."""
    counts: Counter[str] = Counter()
    for block in blocks:
        counts[text_of(block)] += block.end - block.begin
    listed = (f"{text} ({counted(n, 'case')})" for text, n in counts.most_common(_LISTED))
    more = len(counts) - _LISTED
    return ", ".join(listed) + (f" and {more:,} more" if more > 0 else "")
