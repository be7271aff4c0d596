"""More rows for a tree: each file gets cases on the grid of its kernel, without durations."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from random import Random

from collector.case import Case
from collector.database.columns import case_cells
from collector.errors import BadInput
from collector.ops.refusals import refusal
from collector.ops.registry import find
from collector.ops.runtime import completed
from collector.record import CaseRecord
from collector.shapes.decoder import Decoder
from collector.shapes.grid import Chosen, Wish, choose, templates
from collector.shapes.grid_patterns import bundled_patterns
from collector.shapes.kernel_set import find_kernel_set
from collector.shapes.model_rows import products_of, rows_of
from collector.singlehost.tree_source import record_of_row
from collector.singlehost.version_files import TreeRow, VersionFiles

_GIB = 1 << 30
# Whose sizes only a model tells together.
OF_MODELS = ("FusedInferAttentionScore", "split_qkv_rmsnorm_rope_kernel", "DispatchFFNCombine")


@dataclass(frozen=True, slots=True)
class Grown:
    """What became of a kernel's file; `reason` says why it got no row, where nothing was tried."""

    kernel_type: str
    chosen: Chosen | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GridOptions:
    """`rows` at most for each kernel type, None for all; `largest_gib` of tensors a case, None for
    any; `decoders` are the models that sizes are of, none for all sizes that patterns have, and
    `release` is that of the stack that serves them."""

    rows: int | None
    seed: int
    largest_gib: float | None
    decoders: tuple[Decoder, ...]
    release: str


def grow(folder: Path, options: GridOptions, *, write: bool = True) -> tuple[Grown, ...]:
    """Add rows to the files of a version folder, kernel by kernel; a file is written whole, or not
    at all. Raises BadInput where there is nothing of a tree, or a file of it cannot be read."""
    files = VersionFiles.read(folder)
    if not files.kernel_types:
        raise BadInput(
            "no {KernelType}.csv in this folder, whose rows say dtypes and formats; "
            "`opmeter parse` makes some",
            path=folder,
        )
    by_kernel: dict[str, list[TreeRow]] = {}
    for row in files.rows():
        by_kernel.setdefault(row.place.kernel_type, []).append(row)
    grown = []
    for kernel_type, rows in by_kernel.items():
        records = [record_of_row(kernel_type, row.cells) for row in rows]
        found = _grown(kernel_type, records, options)
        grown.append(found)
        for record in found.chosen.records if found.chosen else ():
            files.append(kernel_type, case_cells(record))
    if write:
        files.write()
    return tuple(grown)


def _grown(kernel_type: str, rows: Sequence[CaseRecord], options: GridOptions) -> Grown:
    op = find(kernel_type)
    known = {record.case_id for record in rows}
    if op is not None:
        known |= {completed(record, op).case_id for record in rows if record.case.inputs}
    if kernel_type in OF_MODELS:
        return Grown(kernel_type, _of_models(kernel_type, known, options))
    pattern = bundled_patterns().of(kernel_type)
    if pattern is None:
        return Grown(kernel_type, None, "no pattern of shapes is known for it")
    like = templates(record.case for record in rows)
    if not like:
        return Grown(kernel_type, None, "no row says its inputs")
    wish = Wish(options.rows, options.seed, _largest_bytes(options))
    chosen = choose(pattern, like, _products(options), known, _is_accepted, wish)
    return Grown(kernel_type, _filled(chosen))


def _of_models(kernel_type: str, known: Collection[str], options: GridOptions) -> Chosen:
    """The rows that models ask for, or some of them by chance."""
    records = _model_rows(options)[kernel_type]
    points = len(records)
    if options.rows is not None:
        records = Random(f"{options.seed} {kernel_type}").sample(records, points)
    found: list[CaseRecord] = []
    refused = there = looked_at = large = 0
    for record in map(_completed, records):
        if options.rows is not None and len(found) >= options.rows:
            break
        looked_at += 1
        if record.case_id in known:
            there += 1
        elif not _is_accepted(record.case):
            refused += 1
        elif sum(slot.size_bytes for slot in record.case.inputs or ()) > _largest_bytes(options):
            large += 1
        else:
            found.append(record)
    return Chosen(tuple(found), looked_at, points, there, refused, large)


def _filled(chosen: Chosen) -> Chosen:
    records = tuple(map(_completed, chosen.records))
    return Chosen(
        *(records, chosen.looked_at, chosen.points, chosen.known, chosen.refused, chosen.too_large)
    )


def _completed(record: CaseRecord) -> CaseRecord:
    op = find(record.case.kernel_type)
    return completed(record, op) if op is not None else record


def _is_accepted(case: Case) -> bool:
    return refusal(case, find, "npu") is None


def _largest_bytes(options: GridOptions) -> float:
    return inf if options.largest_gib is None else options.largest_gib * _GIB


@cache
def _model_rows(options: GridOptions) -> dict[str, list[CaseRecord]]:
    return rows_of(options.decoders, find_kernel_set(options.release), OF_MODELS)


@cache
def _products(options: GridOptions) -> tuple[tuple[int, int], ...]:
    sizes = bundled_patterns().sizes
    if not options.decoders:
        return tuple((n, k) for n in sizes for k in sizes)
    return products_of(options.decoders, find_kernel_set(options.release))
