"""One version directory of a database: queries, and its rows as tables."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import exp, log
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from collector.codec.errors import BadInput
from collector.database.index import Index, IndexBlock, hash_of
from collector.model.demand import MissedCase
from collector.model.record import CaseRecord
from collector.model.stack import Stack
from collector.model.vocabulary import INPUT_DTYPES, OUTPUT_DTYPES, OUTPUT_SHAPES
from collector.ops.registry import find_operator
from collector.surfaces.model import InterpolatedValue
from opmeter.answers import (
    EXACT,
    MISSES,
    SEVERAL_MATCH,
    Answer,
    Channel,
    ExplainedRow,
    Explanation,
    Reason,
    channel_of,
)
from opmeter.arguments import bad_argument, flag_of, number_argument, path_of, text_of, texts_of
from opmeter.cases import (
    Arguments,
    Lengths,
    Outputs,
    Query,
    Shape,
    arguments_of,
    block_ranks,
    cells_of_rows,
    check_sizes,
    outputs_like,
    query_cells,
    query_of,
    resolved_ranks,
    resolved_sizes,
    sized_shapes,
)
from opmeter.contents import CaseGroup, broken_rule, case_group, hints_for, kernels_like
from opmeter.misses import MissLog
from opmeter.surfaces import (
    Beyond,
    MeasuredSurface,
    depends_on,
    interval_of,
    surface_points,
    surfaces_of,
)

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from opmeter.accuracy import KernelAccuracy
    from opmeter.frames import Filter, Quality
    from opmeter.reused import ReusedCases

_SEVERAL = "measured cases differ in settings: it is interpolated between those of one setting"
_UNCALIBRATED = "too few measured cases around it to calibrate the interval: it spans theirs"


class _Rows(NamedTuple):
    """Rows of an index that a query may find: a block, and the numbers of the allowed settings, or
    None if all are."""

    block: IndexBlock
    allowed: frozenset[int] | None


@dataclass(slots=True)
class _Found:
    """The blocks that match a query without its sizes, or why there are none.

    Cases of the first tier hide those of the second, for example: if a query names one dtype, those
    that have it in all inputs hide those that have it in the first one. `only` is the block that a
    query may find alone, each of its rows, by sizes. `surfaces` are those of each tier, without
    lengths, once they are needed."""

    tiers: tuple[tuple[_Rows, ...], ...]
    reason: Reason | None = None
    only: IndexBlock | None = None
    surfaces: list[list[MeasuredSurface]] | None = None

    @property
    def rows(self) -> tuple[_Rows, ...]:
        return tuple(chain.from_iterable(self.tiers))


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
        self._surfaces: dict[tuple[int, int], list[MeasuredSurface]] = {}
        self._twins: dict[str, tuple[str, ...]] = {}
        self._misses: tuple[MissLog, ...] = ()
        self._misses_lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the version was made of. Open logs of misses stay in their process."""
        notes = self.notes[len(self.differs) :]
        return _unpickled, (self.path, self.index, self.differs, notes, self._reused)

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
        outputs: Outputs = None,
        extrapolate: bool = False,
        unambiguous: bool = False,
        weight: float = 1.0,
    ) -> Answer:
        """Return the duration of one launch.

        If several cases match, as a query may leave something open, and differ in their durations,
        the first is used, and a warning says how many there are, how far apart, and in what they
        differ.

        Args:
            inputs: the shape of each input; None or () for an absent tensor or a scalar.
            dtype: of every input, if it is one name (`bf16`, `DT_BF16`, `bfloat16`), or of the
                first one if no case of these sizes has it in all; a sequence has one for each
                input.
            formats: of each input, such as `ND;FRACTAL_NZ`; any, if empty.
            settings: further columns that must have these texts, such as `Runtime sparse_mode`.
            lengths: the keys of each request, or lists by column, such as
                `Runtime group_list_values`.
            outputs: the shape of each output, or the columns of outputs as a tree has them, such as
                `Output Data Types`, where one dtype is that of all; any, if empty.
            extrapolate: whether to answer up to 4 times as far as an end of a curve, of kernels
                whose operator counts their work. The interval spans what the work allows.
            unambiguous: whether several cases that match, with different durations, are a miss.
            weight: what a miss counts in a log of misses, such as launches per step."""
        query: Query | None = None
        if extrapolate is not False or unambiguous is not False:
            extrapolate = flag_of("extrapolate", extrapolate)
            unambiguous = flag_of("unambiguous", unambiguous)
        if (
            (type(formats) is not str or formats)
            or op_state is not None
            or lengths is not None
            or (settings is not None and _is_given(settings))
            or (outputs is not None and _is_given(outputs))
        ):
            given = (kernel, inputs, dtype, formats, op_state, settings, lengths, outputs)
            query = query_of(*given)
            answer = self._answer(self._resolve(query), query.sizes, query, extrapolate)
        else:
            # The usual case, in few steps: bisection among the hashes of a block.
            ranks = resolved_ranks(inputs)
            named = dtype if type(dtype) is str else texts_of("dtype", dtype)
            key = (kernel if type(kernel) is str else text_of("kernel", kernel), named, ranks)
            known = self._resolved.get(key)
            if known is None:
                query = query_of(kernel, inputs, dtype, "", None, None, None)
                known = self._resolved[key] = self._resolve(query)
            answer = self._answer(known, resolved_sizes(inputs), None, extrapolate)
        if answer.channel not in EXACT and (twins := self._measured_twins(kernel)):
            query = query or query_of(kernel, inputs, dtype, "", None, None, None)
            answer = self._of_twin(query, twins, extrapolate, answer)[0]
        if self._reused is not None and answer.channel not in EXACT:
            query = query or query_of(kernel, inputs, dtype, "", None, None, None)
            answer = self._reused.answer(query) or answer
        if unambiguous and _is_ambiguous(answer):
            return _as_miss(answer)  # which is no work for a campaign
        if answer.reason is not None and self._misses:
            query = query or query_of(kernel, inputs, dtype, "", None, None, None)
            cells = self._cells(query)
            for log_of_misses in self._misses:
                log_of_misses.add(query.kernel, cells, answer.reason, weight)
        return answer

    def query_record(self, record: CaseRecord) -> Answer:
        """Return the duration of a launch of a case."""
        return self.query(record.kernel_type, **arguments_of({**record.extra, **record.cells}))

    def missed(
        self,
        kernel: str,
        inputs: Sequence[Shape | None],
        dtype: str | Sequence[str] = "",
        *,
        reason: Reason,
        outputs: Outputs = None,
        weight: float = 1.0,
    ) -> MissedCase:
        """Return a query as a missed case, completed like the measured cases most like it."""
        query = query_of(kernel, inputs, dtype, "", None, None, None, outputs)
        if not isinstance(reason, Reason):
            raise bad_argument("reason", "a Reason", reason)
        weight = number_argument("weight", weight)
        return MissedCase(query.kernel, self._cells(query), reason.value, 1, weight)

    def query_many(self, frame: Any, *, unambiguous: bool = False) -> pd.DataFrame:
        """Return the answers to many queries, a row for each row of `frame`, with its index.

        `frame` is a pandas, polars or Arrow table, or a mapping of lists, with the columns
        `kernel_type` or `Kernel Type`, `Input Shapes` (text: `32,5120;5120,3200`), and, if needed,
        `Input Data Types`, `Input Formats`, `OP State`, `Runtime ...`, those of outputs and
        `weight`. An empty cell leaves its column open; other columns have no meaning, and one that
        is a misspelt one is refused. See `query` for `unambiguous`."""
        from opmeter.many import answer_many

        return answer_many(self, frame, unambiguous=flag_of("unambiguous", unambiguous))

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
        outputs: Outputs = None,
        extrapolate: bool = False,
        unambiguous: bool = False,
    ) -> Explanation:
        """Return the answer to a query with the measured cases behind it. See `query`."""
        from collector.quality.precision import sessions_to_narrow
        from collector.quality.variance_prior import prior_of
        from collector.ranks.collective import is_collective

        query = query_of(kernel, inputs, dtype, formats, op_state, settings, lengths, outputs)
        extrapolate = flag_of("extrapolate", extrapolate)
        unambiguous = flag_of("unambiguous", unambiguous)
        found = self._resolve(query)
        answer = self._answer(found, query.sizes, query, extrapolate)
        if answer.channel not in EXACT:
            twins = self._measured_twins(query.kernel)
            answer, query = self._of_twin(query, twins, extrapolate, answer)
            found = self._resolve(query)
        reused = None
        if self._reused is not None and answer.channel not in EXACT:
            reused = self._reused.explained(query)
            answer = answer if reused is None else reused[0]
        if unambiguous and _is_ambiguous(answer):
            return Explanation(_as_miss(answer), (), None)
        if reused is not None:
            return Explanation(answer, (reused[1],), None)
        if answer.reason is not None:
            blocks = [block for block, _ in found.rows]
            place = (self.index, self._by_kernel, blocks, self._block_cells, query, answer.reason)
            rule = broken_rule(self.index, self._by_kernel.get(query.kernel, ()), query)
            return Explanation(answer, (), None, hints=tuple(hints_for(*place)), impossible=rule)
        if exact := self._exact(found, query.sizes, query):
            rows = [self._explained(*exact[0], 1.0)]
        else:
            surfaces = self._tiers_of_surfaces(found, query.lengths)
            surface, estimate = _between(
                surfaces, query.sizes, query, self._beyond if extrapolate else None
            )[0]
            weights: dict[int, float] = {}
            for part in estimate.parts:
                row = surface.rows[part.place]
                weights[row] = weights.get(row, 0.0) + part.weight
            ordered = sorted(weights.items(), key=lambda pair: -abs(pair[1]))
            rows = [self._explained(surface.points.block, row, weight) for row, weight in ordered]
        widest = max(rows, key=lambda row: abs(row.weight) * (row.high_us / row.value_us - 1))
        reach = max(0.0, log(widest.high_us / widest.value_us))
        interval = (reach, widest.degrees, widest.sessions)
        device = self.path.partition("/")[0]
        spread = prior_of(device, over_ranks=is_collective(query.kernel)).device_spread
        return Explanation(
            *(answer, tuple(rows), widest, sessions_to_narrow(*interval, to=reach / 2)),
            sessions_to_narrow(*interval, to=reach / 2, device_spread=spread),
        )

    def accuracy(self) -> list[KernelAccuracy]:
        """Return how well interpolation predicts measured rows that it does not see, by kernel
        type. The same rows are left out each time, at most 300 of a kernel type."""
        from opmeter.accuracy import accuracy_of

        found = []
        for kernel, blocks in sorted(self._by_kernel.items()):
            rows = sum(block.end - block.begin for block in blocks)
            points = (
                surface_points(self.index, block, setting)
                for block in blocks
                for setting in self._settings_of(block)
            )
            surfaces = list(chain.from_iterable(points))
            found.append(accuracy_of(self.index, kernel, rows, surfaces))
        return [one for one in found if one is not None]

    @contextmanager
    def recording_misses(self, path: Path | str) -> Iterator[MissLog]:
        """Count the misses of queries, of all threads, and write them to a file of misses at the
        end, added to those that it has. `sources: [{misses: FILE}]` of a campaign measures them."""
        own = MissLog(path_of("path", path))
        with self._misses_lock:
            self._misses = (*self._misses, own)
        try:
            yield own
        finally:
            with self._misses_lock:
                self._misses = tuple(one for one in self._misses if one is not own)
            own.write()

    def contents(self, kernel: str = "") -> list[CaseGroup]:
        """Return what has durations, of all kernel types or of one: groups of cases whose tensors
        agree in dtypes and dimensions. Raises OpmeterError for a kernel type without durations."""
        if text_of("kernel", kernel) and kernel not in self._by_kernel:
            like = ", ".join(kernels_like(kernel, self._by_kernel))
            hint = f"; like it are {like}" if like else ""
            raise BadInput(f"kernel: {self.path} has no duration of {kernel!r}{hint}")
        blocks = self._by_kernel[kernel] if kernel else self.index.blocks
        return [case_group(self.index, block, self._block_cells(block)) for block in blocks]

    def cases(self, kernel: str) -> Iterator[tuple[dict[str, str], Answer]]:
        """Yield each case of a kernel type as the cells of a row of a tree, with its duration."""
        for block in self.blocks(kernel):
            for row, cells in enumerate(cells_of_rows(self.index, block), start=block.begin):
                yield cells, self._measured(row)

    def case(self, case: str) -> tuple[str, dict[str, str]]:
        """Return the kernel type and the cells of a case by its id. Raises OpmeterError for an
        unknown id."""
        places = np.flatnonzero(self.index.arrays["case"] == text_of("case", case).encode())
        for row in places.tolist():
            block = self._block_of(row)
            return block.kernel, next(cells_of_rows(self.index, block, [row]))
        raise BadInput(f"case: {self.path} has no duration of {case!r}")

    def cells(self, row: int) -> dict[str, str]:
        """Return the cells of a row, as a tree has them."""
        return next(cells_of_rows(self.index, self._block_of(row), [row]))

    def exact_rows(self, query: Query) -> Iterator[int]:
        """Yield the rows with exactly the sizes, lengths and settings of a query."""
        for _, row in self._exact(self._resolve(query), query.sizes, query):
            yield row

    def several(self, rows: Sequence[int], values_us: Sequence[float]) -> tuple[str, ...]:
        """Return a warning about rows that match a query, with their durations, if these differ."""
        return _several([self._described(row) for row in rows], values_us)

    def explained_row(self, row: int) -> ExplainedRow:
        """Return a row as the only one behind an answer."""
        return self._explained(self._block_of(row), row, 1.0)

    # What adapters read: the rows as the index has them.

    def blocks(self, kernel: str) -> Sequence[IndexBlock]:
        """Return the blocks of a kernel type: its cases by input dtypes and ranks."""
        return self._by_kernel.get(text_of("kernel", kernel), ())

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
            shapes = sized_shapes(block.outputs, sizes[block.key_width :])
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

        if text_of("kernel", kernel) not in self._by_kernel:
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
        self, found: _Found, sizes: list[int], query: Query | None, extrapolate: bool
    ) -> Answer:
        """Return the answer to a query; without one, to one of these sizes alone."""
        if found.reason is not None:
            return MISSES[found.reason]
        block = found.only
        if block is not None and not block.free and (query is None or query.outputs is None):
            # The usual case: a row is found by bisection, unless its hash is that of another one.
            hashes, own_hash = self.index.hashes, hash_of(sizes)
            row = bisect_left(hashes, own_hash, block.begin, block.end)
            if row == block.end or hashes[row] != own_hash:
                return self._interpolated(found, sizes, query, extrapolate)
            if row + 1 == block.end or hashes[row + 1] != own_hash:
                at = block.at + (row - block.begin) * block.width
                if self.index.sizes[at : at + len(sizes)].tolist() == sizes:
                    return self._measured(row)
        exact = self._exact(found, sizes, query)
        if not exact:
            return self._interpolated(found, sizes, query, extrapolate)
        row = exact[0][1]
        if len(exact) == 1:
            return self._measured(row)
        means = [self.index.mean_us[row] for _, row in exact]
        return self._measured(row, self.several([row for _, row in exact], means))

    def _measured_twins(self, kernel: str) -> tuple[str, ...]:
        """Return the other kernel types that the same call may launch, those with durations."""
        known = self._twins.get(kernel)
        if known is None:
            op = find_operator(kernel)
            names = op.twins if op is not None else ()
            known = self._twins[kernel] = tuple(n for n in names if n in self._by_kernel)
        return known

    def _of_twin(
        self, query: Query, twins: Sequence[str], extrapolate: bool, answer: Answer
    ) -> tuple[Answer, Query]:
        """Return the duration under a kernel type that the runtime chose instead, with its query:
        if that is measured, or if the query has no other answer than the given one."""
        found = answer, query
        for twin in twins:
            other = replace(query, kernel=twin)
            own = self._answer(self._resolve(other), other.sizes, other, extrapolate)
            if own.channel in EXACT or (found[0].reason is not None and own.reason is None):
                chosen = f"measured as {twin}, which the runtime chooses for such tensors"
                found = own._replace(warnings=(*own.warnings, chosen)), other
            if own.channel in EXACT:
                break
        return found

    def _measured(self, row: int, more: tuple[str, ...] = ()) -> Answer:
        index = self.index
        sessions = index.sessions[row]
        channel = Channel.REUSED if self.differs else channel_of(sessions)
        return Answer(
            index.mean_us[row],
            index.low_us[row],
            index.high_us[row],
            channel,
            sessions,
            self._warnings[index.warnings[row]] + more + self.notes,
        )

    def _exact(
        self, found: _Found, sizes: list[int], query: Query | None
    ) -> list[tuple[IndexBlock, int]]:
        """Return the rows of a query with exactly its sizes, lengths and settings, of the first
        tier that has any; imported ones only if no other was measured."""
        lengths, outputs = (None, None) if query is None else (query.lengths, query.output_sizes)
        for tier in found.tiers:
            if matching := list(self._matching(tier, sizes, lengths, outputs)):
                return [one for one in matching if self.index.sessions[one[1]]] or matching
        return []

    def _matching(
        self,
        tier: Sequence[_Rows],
        sizes: list[int],
        lengths: Mapping[str, list[float]] | None,
        outputs: list[int] | None,
    ) -> Iterator[tuple[IndexBlock, int]]:
        index = self.index
        for block, allowed in tier:
            if block.lengths and lengths is None:
                continue
            for row in index.find(block, sizes):
                if allowed is not None and index.settings[row] not in allowed:
                    continue
                if lengths:
                    own = self._lengths[index.lengths[row]]
                    if any(own.get(name) != values for name, values in lengths.items()):
                        continue
                if outputs is not None and not _are_outputs(block, outputs, index, row):
                    continue
                yield block, row

    def _block_of(self, row: int) -> IndexBlock:
        return self.index.blocks[bisect_right(self._begins, row) - 1]

    @cached_property
    def _beyond(self) -> Beyond:
        try:
            return Beyond(self.index, Stack(device=self.path.partition("/")[0], torch=""))
        except BadInput:  # of a path that is not that of a version directory
            return Beyond(self.index, None)

    @cached_property
    def _begins(self) -> list[int]:
        return [block.begin for block in self.index.blocks]

    def _described(self, row: int) -> dict[str, object]:
        """Return what distinguishes the cases that one query may find, by its column."""
        block = self._block_of(row)
        return {
            **self._settings[self.index.settings[row]],
            **self._lengths[self.index.lengths[row]],
            INPUT_DTYPES: tuple(dtype for dtype, _ in block.inputs),
            OUTPUT_SHAPES: (block.outputs, self.index.output_sizes(block, row)),
        }

    def _interpolated(
        self, found: _Found, sizes: list[int], query: Query | None, extrapolate: bool
    ) -> Answer:
        check_sizes(sizes)
        lengths = None if query is None else query.lengths
        surfaces = self._tiers_of_surfaces(found, lengths)
        between = _between(surfaces, sizes, query, self._beyond if extrapolate else None)
        if not between:
            has_lengths = lengths or any(block.lengths for block, _ in found.rows)
            return MISSES[Reason.NO_LENGTH if has_lengths else Reason.OUTSIDE]
        surface, estimate = between[0]
        behind = surface.behind(self.index, estimate)
        value_us, low_us, high_us = interval_of(estimate, behind)
        warnings = self.notes
        if len(between) > 1:
            values = [exp(one.log_us) for _, one in between]
            rows = [surface.rows[0] for surface, _ in between]
            warnings = (*self.several(rows, values), *warnings)
        elif sum(map(len, surfaces)) > 1:
            warnings = (_SEVERAL, *warnings)
        if estimate.half_width is None:
            warnings = (*warnings, _UNCALIBRATED)
        own = [name for number in behind.warnings for name in self._warnings[number]]
        channel = Channel.EXTRAPOLATED if estimate.ends else Channel.INTERPOLATED
        if own:
            warnings = (*dict.fromkeys(own), *warnings)
        return Answer(value_us, low_us, high_us, channel, behind.cases, warnings)

    def _tiers_of_surfaces(
        self, found: _Found, lengths: Mapping[str, list[float]] | None
    ) -> list[list[MeasuredSurface]]:
        if lengths:
            return [self._surfaces_of(tier, lengths) for tier in found.tiers]
        if found.surfaces is None:
            found.surfaces = [self._surfaces_of(tier, None) for tier in found.tiers]
        return found.surfaces

    def _surfaces_of(
        self, rows: Sequence[_Rows], lengths: Mapping[str, list[float]] | None
    ) -> list[MeasuredSurface]:
        """Return the surfaces of the cases that a query may find, the most frequent settings of a
        block first. With lengths, only those of kernels that depend on them."""
        surfaces = []
        for block, allowed in rows:
            if lengths and not depends_on(block, lengths):
                continue
            for setting in self._settings_of(block):
                if allowed is not None and setting not in allowed:
                    continue
                key = (block.begin, setting)
                if key not in self._surfaces:
                    self._surfaces[key] = surfaces_of(self.index, block, setting)
                surfaces += self._surfaces[key]
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

    def _block_cells(self, block: IndexBlock) -> list[dict[str, str]]:
        return [self._settings[number] for number in self._settings_of(block)]

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
        of_dtypes = query.of_dtypes(blocks)
        fitting = [*filter(query.is_of_ranks, of_dtypes)] or query.without_absent(blocks)
        if not of_dtypes and not fitting:
            return _Found((), Reason.NO_DTYPE)
        found = []
        for block in fitting:
            of_block = self._settings_of(block) if query.cells else []
            allowed = [number for number in of_block if query.allows(self._settings[number])]
            if not query.cells or len(allowed) == len(of_block):
                found.append(_Rows(block, None))
            elif allowed:
                found.append(_Rows(block, frozenset(allowed)))
        if not found:
            return _Found((), Reason.NO_LAYOUT)
        tiers: tuple[tuple[_Rows, ...], ...] = (tuple(found),)
        if len(query.dtypes) == 1:  # cases with this dtype in all inputs come first
            first = tuple(one for one in found if query.is_of_one_dtype(one.block))
            tiers = tuple(filter(None, (first, tuple(one for one in found if one not in first))))
        block, allowed_alone = found[0]
        is_alone = len(found) == 1 and allowed_alone is None
        is_plain = not block.lengths and query.lengths is None
        return _Found(tiers, only=block if is_alone and is_plain else None)

    def only_block(self, kernel: str, arguments: Arguments) -> IndexBlock | None:
        """Return the rows that a query with these arguments may find, whatever its sizes are, if
        they are all those of one block without lengths, and no other tensors are left out."""
        query = query_of(kernel, **arguments)
        found = self._resolve(query)
        return found.only if len(query.ranks) == len(arguments["inputs"]) else None

    def _cells(self, query: Query) -> dict[str, str]:
        """Return a query as the cells of a case. What it leaves open is as in the measured cases
        that are most like it, if there are any."""
        found = [one for one, _ in self._resolve(query).rows]
        blocks = found or self._by_kernel.get(query.kernel, [])
        like = next((one for one in blocks if query.ranks == block_ranks(one)), None)
        if like is None:
            return query_cells(query, [], {})
        if found or not query.dtypes:
            query = replace(query, dtypes=tuple(dtype for dtype, _ in like.inputs))
        settings = self._settings[self._settings_of(like)[0]]
        return query_cells(
            query, outputs_like(query.sizes, like, self.index.sizes_of(like)), settings
        )

    def _explained(self, block: IndexBlock, row: int, weight: float) -> ExplainedRow:
        index = self.index
        at = block.at + (row - block.begin) * block.width
        inputs = sized_shapes(block_ranks(block), index.sizes[at : at + block.key_width].tolist())
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


def _unpickled(
    path: str,
    index: Index,
    differs: tuple[str, ...],
    notes: tuple[str, ...],
    reused: ReusedCases | None,
) -> Version:
    return Version(path, index, differs=differs, notes=notes, reused=reused)


def _are_outputs(block: IndexBlock, outputs: list[int], index: Index, row: int) -> bool:
    own, first = index.output_sizes(block, row), block.key_width
    return block.fixed(own, first) == block.fixed(outputs, first)


def _is_given(argument: object) -> bool:
    return not isinstance(argument, Sized) or len(argument) > 0


def _between(
    tiers: Sequence[Sequence[MeasuredSurface]],
    sizes: list[int],
    query: Query | None,
    outside: Beyond | None,
) -> list[tuple[MeasuredSurface, InterpolatedValue]]:
    """Return the surfaces that have these sizes between their points, or with `outside` else beyond
    them, and the values: those of the first tier that has any."""
    lengths, outputs = (None, None) if query is None else (query.lengths, query.output_sizes)
    found = []
    for beyond in (None,) if outside is None else (None, outside):
        for surfaces in tiers:
            for surface in surfaces:
                estimate = surface.estimate(sizes, lengths, outputs, beyond=beyond)
                if estimate is not None:
                    found.append((surface, estimate))
            if found:
                return found
    return found


def _is_ambiguous(answer: Answer) -> bool:
    return any(text.startswith(SEVERAL_MATCH) for text in answer.warnings)


def _as_miss(answer: Answer) -> Answer:
    """Return an ambiguous answer as a miss, whose warning says what matches."""
    return MISSES[Reason.AMBIGUOUS]._replace(warnings=answer.warnings)


def _several(
    described: Sequence[Mapping[str, object]], values_us: Sequence[float]
) -> tuple[str, ...]:
    """Return a warning about cases that match a query, if their durations differ."""
    least, most = min(values_us), max(values_us)
    if least == most:
        return ()
    names = sorted({name for one in described for name in one})
    differing = [name for name in names if len({str(one.get(name)) for one in described}) > 1]
    what = f", which differ in {', '.join(differing)}" if differing else ""
    count = f"{len(values_us):,}, of {least:.6g} to {most:.6g} us"
    return (f"{SEVERAL_MATCH}: {count}{what}; the first is used",)
