"""More rows for a tree: each file gets cases on the grid of its kernel, without durations."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import inf
from pathlib import Path

from collector.codec.errors import BadInput
from collector.codec.text import GIB
from collector.database.layout import case_cells
from collector.database.tree import record_of_row
from collector.model.record import CaseRecord
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.ops.refusals import refusal
from collector.ops.registry import find_operator
from collector.ops.runtime import completed_as_declared
from collector.singlehost.version_files import VersionFiles
from collector.workloads import grid
from collector.workloads.density import Standard, cases_between, find_standard
from collector.workloads.model_rows import (
    Recorded,
    deployments_of,
    expert_sizes,
    products_of,
    rows_of,
)
from collector.workloads.models import Decoder, bundled_configs, find_decoder
from collector.workloads.patterns import (
    EXPERTS,
    PRODUCTS,
    GridPattern,
    GridPatterns,
    bundled_patterns,
)
from collector.workloads.recorded_step import read_recording


@dataclass(frozen=True, slots=True)
class Grown:
    """The result for a kernel's file; `reason` says why no row was tried."""

    kernel_type: str
    chosen: grid.Sample | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GridOptions:
    """Options of the grid.

    Args:
        rows: largest number of rows per kernel type; None for all
        largest_gib: largest size of a case's tensors; None for any
        decoders: models that give the sizes. Without any, and without recordings, all sizes of
            the patterns are used, and all bundled models for kernels without a pattern.
        release: release whose recordings are used, where a model has some
        recordings: files of `opmeter model record` that give sizes, too
        standard: if set, add the rows that this standard of density requires between existing rows,
            instead of a sample"""

    rows: int | None
    seed: int
    largest_gib: float | None
    decoders: tuple[Decoder, ...]
    release: str
    standard: str = ""
    recordings: tuple[Path, ...] = ()


def grow_tree(
    folder: Path,
    options: GridOptions,
    *,
    write: bool = True,
    own: GridPatterns | None = None,
) -> Iterator[Grown]:
    """Add rows to the files of a version folder, and yield each kernel as it is done.

    A file is written as a whole, or not at all. Existing rows are recognised, so that repeating the
    same options adds only the remaining rows. Only one kernel's rows are in memory at once. The
    patterns of `own` are used for their kernels, in place of those of the package and of models.

    Raise BadInput for a folder without rows, and if another command has written the tree meanwhile.
    """
    kernel_types = VersionFiles.read(folder).kernel_types
    if not kernel_types:
        raise BadInput(
            "no {KernelType}.csv in this folder to take dtypes and formats from; run "
            "`opmeter tree parse` to make some",
            path=folder,
        )
    before = _stamps(folder)
    _sizes(options, PRODUCTS)  # refuses a model that is not recorded, before anything is written
    of_models = frozenset(name for name in kernel_types if bundled_patterns().of(name) is None)
    for kernel_type in kernel_types:
        files = VersionFiles.read(folder, (kernel_type,))
        found = _grown(
            kernel_type,
            [record_of_row(kernel_type, row.cells) for row in files.rows()],
            options,
            (own.of(kernel_type) if own else None) or bundled_patterns().of(kernel_type),
            of_models,
        )
        for record in found.chosen.records if found.chosen else ():
            files.append(kernel_type, case_cells(record))
        if write:
            if _stamps(folder) != before:
                raise BadInput(
                    "another command changed this tree since it was read, and its changes would be "
                    f"lost; {kernel_type} and later kernel types are not written: run this "
                    "command again when the other one has finished",
                    path=folder,
                )
            files.write()
            before = _stamps(folder)
        yield found


def _stamps(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Return stamps that change if a file of the tree is replaced."""
    paths = (path for path in (*folder.glob("*.csv"), *folder.glob("*/*.csv")) if path.exists())
    found = ((path, path.stat()) for path in paths)
    return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in found}


def _grown(
    kernel_type: str,
    rows: Sequence[CaseRecord],
    options: GridOptions,
    pattern: GridPattern | None,
    of_models: frozenset[str],
) -> Grown:
    """Return rows by a pattern, or those of models; `of_models` are kernels without a pattern."""
    known = {record.case_id for record in rows}
    known |= {completed_as_declared(record).case_id for record in rows if record.case.inputs}
    largest = inf if options.largest_gib is None else options.largest_gib * GIB
    wish = grid.SampleRequest(options.rows, options.seed, largest)
    if pattern is None:
        found = [] if options.standard else _model_rows(options, of_models)[kernel_type]
        if not found:
            return Grown(kernel_type, None, "no pattern of shapes for this kernel type")
        records = grid.in_random_order(found, wish)
        return Grown(kernel_type, grid.pick(map(_completed, records), len(records), known, wish))
    if options.standard:
        return _between(pattern, kernel_type, rows, known, find_standard(options.standard), wish)
    like = grid.templates(_bare(record).case for record in rows)
    if not like:
        return Grown(kernel_type, None, "no row has inputs")
    sizes = _sizes(options, pattern.source)
    return Grown(kernel_type, grid.choose(pattern, like, sizes, known, _completed, wish))


def _between(
    pattern: GridPattern,
    kernel_type: str,
    rows: Sequence[CaseRecord],
    known: set[str],
    standard: Standard,
    wish: grid.SampleRequest,
) -> Grown:
    """Return the rows that a standard of density requires between the rows of a kernel."""
    cases = [_bare(record).case for record in rows]
    sizes = bundled_patterns().sizes
    found = list(cases_between(pattern, cases, standard, sizes, _completed))
    new = {one.case_id for one in found if isinstance(one, CaseRecord)} - known
    if len(new) + len(rows) > standard.most_growth * len(rows):
        why = f"{len(new):,} rows between {len(rows):,} exceed the limit of the standard"
        return Grown(kernel_type, None, why)
    return Grown(kernel_type, grid.pick(found, len(found), known, wish))


def _completed(record: CaseRecord) -> CaseRecord | str:
    completed = completed_as_declared(record)
    refused = refusal(completed.case, find_operator, "npu")
    return refused.reason if refused else completed


def _bare(record: CaseRecord) -> CaseRecord:
    """Return the record without settings that have the default value.

    This makes an added row equal to the row that it is derived from."""
    extra = record.extra.items()
    own = {name: text for name, text in extra if not name.startswith(RUNTIME_PREFIX)}
    if len(own) == len(record.extra):
        return record
    filled = completed_as_declared(replace(record, extra=own)).extra
    kept = {name: text for name, text in extra if name in own or text != filled.get(name)}
    return replace(record, extra=kept)


def _recorded(options: GridOptions) -> Iterator[Recorded]:
    decoders = options.decoders
    if not decoders and not options.recordings:
        decoders = tuple(map(find_decoder, bundled_configs()))
    yield from deployments_of(decoders, options.release)
    yield from map(read_recording, options.recordings)


@cache
def _model_rows(options: GridOptions, kernel_types: frozenset[str]) -> dict[str, list[CaseRecord]]:
    return rows_of(_recorded(options), kernel_types)


@cache
def _sizes(options: GridOptions, source: str) -> tuple[tuple[int, ...], ...]:
    if source == EXPERTS:
        return expert_sizes(_recorded(options))
    if source != PRODUCTS:
        return ()
    if not options.decoders and not options.recordings:
        sizes = bundled_patterns().sizes
        return tuple(product(sizes, sizes))
    return products_of(_recorded(options))
