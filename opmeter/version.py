"""One version directory of a database: queries, and its rows as tables."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collector.codec.errors import BadInput
from collector.database.index import Index, IndexBlock, hash_of
from collector.model.demand import MissedCase
from collector.model.vocabulary import OUTPUT_DTYPES
from opmeter.answers import MISSES, Answer, Channel, ExplainedRow, Explanation, Reason
from opmeter.cases import (
    Lengths,
    Query,
    Shape,
    cells_of,
    cells_of_rows,
    check_sizes,
    output_cells,
    outputs_like,
    query_of,
    ranks_of,
    resolved_ranks,
    resolved_sizes,
)
from opmeter.interpolation import InterpolatedValue
from opmeter.misses import MissLog
from opmeter.surfaces import MeasuredSurface, depends_on, interval_of, points_of, surface_of

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from opmeter.accuracy import KernelAccuracy
    from opmeter.frames import Filter, Quality
    from opmeter.reused import ReusedCases

_AMBIGUOUS = "several cases match and differ in settings: the first is used"
_SEVERAL = "measured cases differ in settings: it is interpolated between those of one setting"
_EXACT = (Channel.MEASURED, Channel.POOLED, Channel.REUSED)
_UNCALIBRATED = "too few measured cases around it to calibrate the interval: it spans theirs"


class _Rows(NamedTuple):
    """Rows of an index that a query may find: a block, and the numbers of the allowed settings, or
    None if all are."""

    block: IndexBlock
    allowed: frozenset[int] | None


class _Found(NamedTuple):
    """The blocks that match a query without its sizes, or why there are none."""

    rows: tuple[_Rows, ...]
    reason: Reason | None = None


class Version:
    """The displayed durations of one version directory, read in place. Threads may share it."""

    def __init__(
        self,
        path: str,
        index: Index,
        *,
        differs: tuple[str, ...] = (),
        notes: tuple[str, ...] = (),
        reused: ReusedCases | None = None,
    ) -> None:
        self.path = path
        self._reused = reused
        self.differs = differs
        self.notes = differs + notes  # warnings of every answer
        self.index = index
        self._by_kernel: dict[str, list[IndexBlock]] = {}
        for block in index.blocks:
            self._by_kernel.setdefault(block.kernel, []).append(block)
        self._warnings = [tuple(filter(None, t.split(";"))) for t in index.texts("warnings")]
        self._resolved: dict[object, _Found] = {}
        self._surfaces: dict[tuple[int, int], MeasuredSurface | None] = {}
        self._misses: tuple[MissLog, ...] = ()
        self._misses_lock = Lock()

    def __repr__(self) -> str:
        return f"<Version {self.path}: {self.rows:,} cases of {len(self.kernels)} kernel types>"

    @property
    def rows(self) -> int:
        """Return the number of cases with a duration."""
        return self.index.rows

    @property
    def kernels(self) -> tuple[str, ...]:
        """Return the kernel types with a duration."""
        return tuple(sorted(self._by_kernel))

    def query(
        self,
        kernel: str,
        inputs: Sequence[Shape | None],
        dtype: str | Sequence[str] = "",
        *,
        formats: str | Sequence[str] = "",
        op_state: str | None = None,
        settings: Mapping[str, str] | None = None,
        lengths: Lengths = None,
        extrapolate: bool = False,
        weight: float = 1.0,
        outputs: Mapping[str, str] | None = None,
    ) -> Answer:
        """Return the duration of one launch.

        Args:
            inputs: the shape of each input; None or () for an absent tensor or a scalar.
            dtype: of every input, if it is one name (`bf16`, `DT_BF16`, `bfloat16`), or of the
                first one if no case has it in all; a sequence has one for each input.
            formats: of each input, such as `ND;FRACTAL_NZ`; any, if empty.
            settings: further columns that must have these texts, such as `Runtime sparse_mode`.
            lengths: the keys of each request, or lists by column, such as
                `Runtime group_list_values`.
            extrapolate: whether to answer beyond the measured sizes of a curve.
            weight: what a miss counts in a log of misses, such as launches per step.
            outputs: the columns of outputs, as a tree has them, for a log of misses; without them
                they are as in the measured cases that are most like it, or unknown."""
        if len(formats) or op_state is not None or settings or lengths is not None:
            query = query_of(kernel, inputs, dtype, formats, op_state, settings, lengths)
            found = self._resolve(query)
            answer = self._answer(found, query.sizes, query.lengths, extrapolate)
        else:
            # The usual case, in few steps: bisection among the hashes of a block.
            ranks = resolved_ranks(inputs)
            named = dtype if isinstance(dtype, str) else tuple(dtype)
            key = (kernel, named, ranks)
            known = self._resolved.get(key)
            if known is None:
                query = query_of(kernel, inputs, dtype, "", None, None, None)
                known = self._resolved[key] = self._resolve(query)
            sizes = resolved_sizes(inputs)
            answer = self._answer(known, sizes, None, extrapolate)
        if self._reused is not None and answer.channel not in _EXACT:
            query = query_of(kernel, inputs, dtype, formats, op_state, settings, lengths)
            answer = self._reused.answer(query) or answer
        if answer.reason is not None and self._misses:
            query = query_of(kernel, inputs, dtype, formats, op_state, settings, lengths)
            cells = self._cells(query) | output_cells(outputs or {})
            for log_of_misses in self._misses:
                log_of_misses.add(query.kernel, cells, answer.reason, weight)
        return answer

    def missed(
        self,
        kernel: str,
        inputs: Sequence[Shape | None],
        dtype: str | Sequence[str] = "",
        *,
        reason: Reason,
        weight: float = 1.0,
    ) -> MissedCase:
        """Return a query as a missed case, completed like the measured cases most like it."""
        query = query_of(kernel, inputs, dtype, "", None, None, None)
        return MissedCase(query.kernel, self._cells(query), reason.value, 1, weight)

    def query_many(self, frame: Any) -> pd.DataFrame:
        """Return the answers to many queries, a row for each row of `frame`, with its index.

        `frame` is a pandas, polars or Arrow table, or a mapping of lists, with the columns
        `kernel_type` or `Kernel Type`, `Input Shapes` (text: `32,5120;5120,3200`), and, if needed,
        `Input Data Types`, `Input Formats`, `OP State`, `Runtime ...` and `weight`. Misses are
        recorded with the columns of outputs, if there are any."""
        from opmeter.many import answer_many

        return answer_many(self, frame)

    def explain(
        self,
        kernel: str,
        inputs: Sequence[Shape | None],
        dtype: str | Sequence[str] = "",
        *,
        formats: str | Sequence[str] = "",
        op_state: str | None = None,
        settings: Mapping[str, str] | None = None,
        lengths: Lengths = None,
        extrapolate: bool = False,
    ) -> Explanation:
        """Return the answer to a query with the measured cases behind it. See `query`."""
        from collector.quality.variance import prior_of
        from collector.ranks.collective import is_collective
        from opmeter.precision import sessions_to_halve

        query = query_of(kernel, inputs, dtype, formats, op_state, settings, lengths)
        found = self._resolve(query)
        answer = self._answer(found, query.sizes, query.lengths, extrapolate)
        if self._reused is not None and answer.channel not in _EXACT:
            reused = self._reused.explained(query)
            if reused is not None:
                return Explanation(reused[0], (reused[1],), None)
        if answer.reason is not None:
            return Explanation(answer, (), None)
        exact = next(self._exact(found, query.sizes, query.lengths), None)
        if exact is not None:
            rows = [self._explained(*exact, 1.0)]
        else:
            surfaces = self._surfaces_of(found, query.lengths)
            surface, estimate = _first_between(surfaces, query.sizes, query.lengths, extrapolate)
            assert surface is not None and estimate is not None
            weights: dict[int, float] = {}
            for part in estimate.parts:
                row = surface.rows[part.place]
                weights[row] = weights.get(row, 0.0) + part.weight
            ordered = sorted(weights.items(), key=lambda pair: -abs(pair[1]))
            rows = [self._explained(surface.block, row, weight) for row, weight in ordered]
        widest = max(rows, key=lambda row: abs(row.weight) * (row.high_us / row.value_us - 1))
        interval = (widest.value_us, widest.high_us, widest.degrees, widest.sessions)
        device = self.path.partition("/")[0]
        spread = prior_of(device, over_ranks=is_collective(query.kernel)).device_spread
        return Explanation(
            *(answer, tuple(rows), widest, sessions_to_halve(*interval)),
            sessions_to_halve(*interval, device_spread=spread),
        )

    def accuracy(self) -> list[KernelAccuracy]:
        """Return how well interpolation predicts measured rows that it does not see, by kernel
        type. The same rows are left out each time, at most 300 of a kernel type."""
        from opmeter.accuracy import accuracy_of

        found = []
        for kernel, blocks in sorted(self._by_kernel.items()):
            rows = sum(block.end - block.begin for block in blocks)
            points = (
                points_of(self.index, block, setting)
                for block in blocks
                for setting in self._settings_of(block)
            )
            surfaces = [one for one in points if one is not None]
            found.append(accuracy_of(self.index, kernel, rows, surfaces))
        return [one for one in found if one is not None]

    @contextmanager
    def recording_misses(self, path: Path | str) -> Iterator[MissLog]:
        """Count the misses of queries, of all threads, and write them to a file of misses at the
        end, added to those that it has. `sources: [{misses: FILE}]` of a campaign measures them."""
        own = MissLog(Path(path))
        with self._misses_lock:
            self._misses = (*self._misses, own)
        try:
            yield own
        finally:
            with self._misses_lock:
                self._misses = tuple(one for one in self._misses if one is not own)
            own.write()

    def cases(self, kernel: str) -> Iterator[tuple[dict[str, str], Answer]]:
        """Yield each case of a kernel type as the cells of a row of a tree, with its duration."""
        for block in self._by_kernel.get(kernel, ()):
            for row, cells in enumerate(cells_of_rows(self.index, block), start=block.begin):
                yield cells, self._measured(row)

    def case(self, case: str) -> tuple[str, dict[str, str]]:
        """Return the kernel type and the cells of a case by its id. Raises OpmeterError for an
        unknown id."""
        places = np.flatnonzero(self.index.arrays["case"] == case.encode())
        for row in places.tolist():
            block = next(one for one in self.index.blocks if one.begin <= row < one.end)
            return block.kernel, next(cells_of_rows(self.index, block, [row]))
        raise BadInput(f"case: {self.path} has no duration of {case!r}")

    def exact_rows(self, query: Query) -> Iterator[int]:
        """Yield the rows with exactly the sizes, lengths and settings of a query."""
        for _, row in self._exact(self._resolve(query), query.sizes, query.lengths):
            yield row

    def explained_row(self, row: int) -> ExplainedRow:
        """Return a row as the only one behind an answer."""
        block = next(one for one in self.index.blocks if one.begin <= row < one.end)
        return self._explained(block, row, 1.0)

    # What adapters read: the rows as the index has them.

    def blocks(self, kernel: str) -> Sequence[IndexBlock]:
        """Return the blocks of a kernel type: its cases by input dtypes and ranks."""
        return self._by_kernel.get(kernel, ())

    def measured(self, row: int) -> Answer:
        """Return the duration of a row."""
        return self._measured(row)

    def rows_of(
        self, block: IndexBlock
    ) -> Iterator[tuple[int, list[int], Mapping[str, str], Mapping[str, list[float]]]]:
        """Yield the rows of a block with their input sizes, settings and lists of lengths."""
        index = self.index
        for row, sizes in enumerate(index.sizes_of(block).tolist(), start=block.begin):
            settings = self._settings[index.settings[row]]
            yield row, sizes[: block.key_width], settings, self._lengths[index.lengths[row]]

    def outputs(self, block: IndexBlock) -> Iterator[tuple[int, tuple[list[Shape | None], str]]]:
        """Yield the rows of a block with the shapes and dtypes of their outputs."""
        for row, sizes in enumerate(self.index.sizes_of(block).tolist(), start=block.begin):
            left = iter(sizes[block.key_width :])
            shapes = [None if r < 0 else tuple(islice(left, r)) for r in block.outputs]
            settings = self._settings[self.index.settings[row]]
            yield row, (shapes, settings.get(OUTPUT_DTYPES, ""))

    def constants(self, block: IndexBlock) -> Sequence[tuple[int | None, int]]:
        """Return for each input size of a block the first size that it equals in all rows, and its
        value if it has one value, else -1."""
        known = self.index.sizes_of(block)[:, : block.key_width]
        found: list[tuple[int | None, int]] = []
        for at in range(block.key_width):
            equal = (n for n in range(at) if (known[:, n] == known[:, at]).all())
            is_one = bool((known[:, at] == known[0, at]).all())
            value = int(known[0, at]) if is_one else -1
            found.append((None if is_one else next(equal, None), value))
        return found

    def arrow(self, kernel: str, *, min_quality: Quality = "any", **where: Filter) -> pa.Table:
        """Return the rows of a kernel type as an Arrow table; see `frame`."""
        from opmeter.frames import kernel_table

        if kernel not in self._by_kernel:
            raise BadInput(f"kernel: {self.path} has no duration of {kernel!r}")
        return kernel_table(self.index, self._by_kernel[kernel], min_quality, where)

    def frame(self, kernel: str, *, min_quality: Quality = "any", **where: Filter) -> pd.DataFrame:
        """Return the rows of a kernel type as a pandas frame.

        Args:
            min_quality: `unwarned` leaves out durations with warnings, `repeated` also those of one
                session.
            where: `m`, `n` and `k` of a product: a size, the least and greatest as a tuple, or a
                list of sizes.

        Raises OpmeterError for a kernel type without durations."""
        table = self.arrow(kernel, min_quality=min_quality, **where)
        frame: pd.DataFrame = table.to_pandas()
        return frame

    def polars(self, kernel: str, *, min_quality: Quality = "any", **where: Filter) -> pl.DataFrame:
        """Return the same as a polars frame; polars must be installed."""
        import polars

        found = polars.from_arrow(self.arrow(kernel, min_quality=min_quality, **where))
        assert isinstance(found, polars.DataFrame)
        return found

    def _answer(
        self,
        found: _Found,
        sizes: list[int],
        lengths: Mapping[str, list[float]] | None,
        extrapolate: bool,
    ) -> Answer:
        if found.reason is not None:
            return MISSES[found.reason]
        index = self.index
        hashes, own_hash = index.hashes, hash_of(sizes)
        for block, allowed in found.rows:
            row = bisect_left(hashes, own_hash, block.begin, block.end)
            if row == block.end or hashes[row] != own_hash:
                continue
            following = hashes[row + 1] if row + 1 < block.end else None
            if lengths or block.lengths or allowed is not None or following == own_hash:
                if (exact := next(self._exact(found, sizes, lengths), None)) is None:
                    continue
                several = self._is_ambiguous(found, sizes, lengths)
                return self._measured(exact[1], (_AMBIGUOUS,) if several else ())
            at = block.at + (row - block.begin) * block.width
            if index.sizes[at : at + len(sizes)].tolist() == sizes:
                return self._measured(row)
        return self._interpolated(found, sizes, lengths, extrapolate)

    def _measured(self, row: int, more: tuple[str, ...] = ()) -> Answer:
        index = self.index
        sessions = index.sessions[row]
        channel = Channel.MEASURED if sessions == 1 else Channel.POOLED
        if self.differs:
            channel = Channel.REUSED
        return Answer(
            index.mean_us[row],
            index.low_us[row],
            index.high_us[row],
            channel,
            sessions,
            self._warnings[index.warnings[row]] + more + self.notes,
        )

    def _exact(
        self, found: _Found, sizes: list[int], lengths: Mapping[str, list[float]] | None
    ) -> Iterator[tuple[IndexBlock, int]]:
        """Yield the rows with exactly these sizes, lengths and settings."""
        index = self.index
        for block, allowed in found.rows:
            if block.lengths and lengths is None:
                continue
            for row in index.find(block, sizes):
                if allowed is not None and index.settings[row] not in allowed:
                    continue
                if lengths:
                    own = self._lengths[index.lengths[row]]
                    if any(own.get(name) != values for name, values in lengths.items()):
                        continue
                yield block, row

    def _is_ambiguous(
        self, found: _Found, sizes: list[int], lengths: Mapping[str, list[float]] | None
    ) -> bool:
        means = {self.index.mean_us[row] for _, row in self._exact(found, sizes, lengths)}
        return len(means) > 1

    def _interpolated(
        self,
        found: _Found,
        sizes: list[int],
        lengths: Mapping[str, list[float]] | None,
        extrapolate: bool,
    ) -> Answer:
        check_sizes(sizes)
        surfaces = self._surfaces_of(found, lengths)
        surface, estimate = _first_between(surfaces, sizes, lengths, extrapolate)
        if surface is None or estimate is None:
            has_lengths = lengths or any(block.lengths for block, _ in found.rows)
            return MISSES[Reason.NO_LENGTH if has_lengths else Reason.OUTSIDE]
        value_us, low_us, high_us = interval_of(self.index, surface.rows, estimate)
        warnings = self.notes
        if len(surfaces) > 1:
            warnings = (_SEVERAL, *warnings)
        if estimate.half_width is None:
            warnings = (*warnings, _UNCALIBRATED)
        rows = sorted({surface.rows[part.place] for part in estimate.parts})
        own = (name for row in rows for name in self._warnings[self.index.warnings[row]])
        channel = Channel.EXTRAPOLATED if estimate.is_outside else Channel.INTERPOLATED
        warnings = (*dict.fromkeys(own), *warnings)
        return Answer(value_us, low_us, high_us, channel, len(rows), warnings)

    def _surfaces_of(
        self, found: _Found, lengths: Mapping[str, list[float]] | None
    ) -> list[MeasuredSurface]:
        """Return the surfaces of the cases that a query may find, the most frequent settings of a
        block first. With lengths, only those of kernels that depend on them."""
        surfaces = []
        for block, allowed in found.rows:
            if lengths and not depends_on(block, lengths):
                continue
            for setting in self._settings_of(block):
                if allowed is not None and setting not in allowed:
                    continue
                key = (block.begin, setting)
                if key not in self._surfaces:
                    self._surfaces[key] = surface_of(self.index, block, setting)
                if (surface := self._surfaces[key]) is not None:
                    surfaces.append(surface)
        return surfaces

    def _settings_of(self, block: IndexBlock) -> list[int]:
        """Return the settings of a block's rows by their numbers, the most frequent first."""
        known = self._block_settings.get(block.begin)
        if known is None:
            numbers = self.index.arrays["settings"][block.begin : block.end]
            found, counts = np.unique(numbers, return_counts=True)
            known = found[np.argsort(-counts, kind="stable")].tolist()
            self._block_settings[block.begin] = known
        return known

    @cached_property
    def _block_settings(self) -> dict[int, list[int]]:
        return {}

    @cached_property
    def _settings(self) -> list[dict[str, str]]:
        return [json.loads(text) for text in self.index.texts("settings")]

    @cached_property
    def _lengths(self) -> list[dict[str, list[float]]]:
        return [json.loads(text) if text else {} for text in self.index.texts("lengths")]

    def _resolve(self, query: Query) -> _Found:
        blocks = self._by_kernel.get(query.kernel)
        if blocks is None:
            return _Found((), Reason.NO_KERNEL)
        blocks = query.of_dtypes(blocks)
        if not blocks:
            return _Found((), Reason.NO_DTYPE)
        blocks = [one for one in blocks if ranks_of(one) == query.ranks]
        if len(query.dtypes) == 1:  # cases with this dtype in all inputs come first
            blocks.sort(key=lambda one: not query.is_of_one_dtype(one))
        found = []
        for block in blocks:
            if not query.cells:
                found.append(_Rows(block, None))
                continue
            allowed = frozenset(
                number
                for number in self._settings_of(block)
                if query.allows(self._settings[number])
            )
            if allowed:
                found.append(_Rows(block, allowed))
        return _Found(tuple(found), None if found else Reason.NO_LAYOUT)

    def only_block(self, kernel: str, dtype: str, ranks: tuple[int, ...]) -> IndexBlock | None:
        """Return the rows that a query without settings may find, if they are one block without
        lengths."""
        query = query_of(kernel, [None] * len(ranks), dtype, "", None, None, None)
        found = self._resolve(replace(query, ranks=ranks))
        if len(found.rows) != 1 or found.rows[0].block.lengths:
            return None
        return found.rows[0].block

    def _cells(self, query: Query) -> dict[str, str]:
        """Return a query as the cells of a case. What it leaves open is as in the measured cases
        that are most like it, if there are any."""
        found = [one for one, _ in self._resolve(query).rows]
        blocks = found or self._by_kernel.get(query.kernel, [])
        like = next((one for one in blocks if query.ranks == ranks_of(one)), None)
        if like is None:
            return cells_of(query, [], {})
        if found or not query.dtypes:
            query = replace(query, dtypes=tuple(dtype for dtype, _ in like.inputs))
        settings = self._settings[self._settings_of(like)[0]]
        return cells_of(query, outputs_like(query.sizes, like, self.index.sizes_of(like)), settings)

    def _explained(self, block: IndexBlock, row: int, weight: float) -> ExplainedRow:
        index = self.index
        at = block.at + (row - block.begin) * block.width
        inputs: list[Shape | None] = []
        for _, rank in block.inputs:
            inputs.append(None if rank < 0 else tuple(index.sizes[at : at + rank].tolist()))
            at += max(rank, 0)
        return ExplainedRow(
            index.case(row),
            weight,
            tuple(inputs),
            index.mean_us[row],
            index.low_us[row],
            index.high_us[row],
            index.sessions[row],
            float(index.arrays["degrees"][row]),
            index.text("settings", index.settings[row]),
            index.text("lengths", index.lengths[row]),
        )


def _first_between(
    surfaces: Sequence[MeasuredSurface],
    sizes: list[int],
    lengths: Mapping[str, list[float]] | None,
    extrapolate: bool,
) -> tuple[MeasuredSurface | None, InterpolatedValue | None]:
    """Return the first surface that has these sizes between its points, or with `extrapolate` else
    beyond them, and the value."""
    for beyond in (False, True) if extrapolate else (False,):
        for surface in surfaces:
            estimate = surface.estimate(sizes, lengths, beyond=beyond)
            if estimate is not None:
                return surface, estimate
    return None, None
