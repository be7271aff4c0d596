"""`DispatchFFNCombine.csv` of a tree: rows of fused calls, changed by their case.

A balanced row is the same case as a profile's row. Other routings are recorded in columns that are
part of the case, and their rows come after the balanced one: a consumer that looks up only shapes
and `EP Size` uses the first row.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collector.codec.canonical import short_hash
from collector.codec.errors import BadInput
from collector.comm.comm_table import replace_table
from collector.comm.moe.moe_plan import MoeCase, MoePlan
from collector.comm.rank_files import CaseSeen, wrong_result
from collector.comm.timing import (
    CollectiveTiming,
    call_durations_us,
    collective_timing,
    over_all,
    relative_spread,
)
from collector.database.layout import AVERAGE_DURATION, DATABASE_COLUMNS, duration_cells
from collector.database.tree import Cells, KernelFile, Upserted, read_kernel_file, upsert
from collector.model.case import case_from_cells
from collector.model.stack import COLLECTIVE_LIBRARIES
from collector.model.vocabulary import EP_SIZE
from collector.ranks.experts import EXPERT_LOADS, IMBALANCE, KERNELS, call_of, imbalance_of


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """A measured case. `mean_us` is over all calls of all rounds, each from the arrival of its last
    rank to the end of its last rank; `timings` has one timing per round. `imbalance` and
    `rank_imbalance` are those of the drawn routing."""

    case: MoeCase
    backend: str
    mode: str
    mean_us: float
    timings: tuple[CollectiveTiming, ...]
    imbalance: float
    rank_imbalance: float

    @property
    def round_spread(self) -> float:
        """Return the largest relative distance of a round's median from their median."""
        return relative_spread([one.duration_us for one in self.timings])


@dataclass(frozen=True, slots=True)
class MoeFound:
    """The outcome of a plan's cases; `failed` lists those without a duration, with the reason: too
    large for a rank, or a result that differs from the one of one process."""

    measured: tuple[MeasuredCase, ...]
    failed: tuple[tuple[MoeCase, str], ...]


def moe_found(plan: MoePlan, seen: Iterable[CaseSeen]) -> MoeFound:
    """Return a plan's cases from the results of rank 0, complete or not: one round is enough."""
    by_case: dict[int, list[CaseSeen]] = {}
    for one in seen:
        by_case.setdefault(one.case, []).append(one)
    measured: list[MeasuredCase] = []
    failed: list[tuple[MoeCase, str]] = []
    for at, rounds in sorted(by_case.items()):
        left_out = (one.left_out for one in rounds if one.left_out)
        if reason := wrong_result(rounds) or next(left_out, ""):
            failed.append((plan.cases[at], reason))
        else:
            measured.append(_measured(plan, plan.cases[at], rounds))
    return MoeFound(tuple(measured), tuple(failed))


def _measured(plan: MoePlan, case: MoeCase, rounds: Sequence[CaseSeen]) -> MeasuredCase:
    routing = case.routing()
    calls = np.concatenate([call_durations_us(one.ranks) for one in rounds])
    return MeasuredCase(
        case,
        COLLECTIVE_LIBRARIES[plan.backend],
        plan.mode,
        float(calls.mean()),
        tuple(collective_timing(one.ranks) for one in rounds),
        routing.imbalance,
        routing.rank_imbalance(case.call.ep_size),
    )


BACKEND, MODE = "Backend", "Mode"


def read_cases(folder: Path, ep_size: int, seed: int) -> list[MoeCase]:
    """Return the cases of a version folder's rows for `ep_size` ranks, except replayed loads, which
    a row does not contain. Raises BadInput for contradictory rows."""
    found = []
    for path in (folder / f"{kernel}.csv" for kernel in KERNELS):
        rows = read_kernel_file(path).rows if path.exists() else ()
        for row in rows:
            if row.get(EP_SIZE, "").strip() == str(ep_size) and not row.get(EXPERT_LOADS):
                case = case_from_cells(path.stem, row)
                found.append(MoeCase(call_of(case), seed, imbalance_of(case)))
    return list(dict.fromkeys(found))


def check_mode(folder: Path, mode: str) -> None:
    """Raise BadInput if rows of a version folder were timed in another mode than `mode`: events
    include a call's launch, too, so the rows of one file have one mode."""
    for path in (folder / f"{kernel}.csv" for kernel in KERNELS):
        if path.exists():
            _check_mode(read_kernel_file(path), mode, path)


def write_moe_measured(
    folder: Path, measured: Sequence[MeasuredCase]
) -> list[tuple[Path, Upserted]]:
    """Add or change the rows of measured cases, each file atomically. Raises BadInput if a file
    cannot be written, or if its rows are of another backend or mode."""
    written = []
    for kernel in KERNELS:
        rows = [_row(one) for one in measured if one.case.call.kernel == kernel]
        if rows:
            written.append(_write(folder / f"{kernel}.csv", rows))
    return written


def _write(path: Path, rows: Sequence[Cells]) -> tuple[Path, Upserted]:
    old = read_kernel_file(path) if path.exists() else KernelFile(path.stem, DATABASE_COLUMNS, ())
    # Other producers have no such column: their rows are of NPUs.
    known = {row.get(BACKEND) or ("hccl" if row.get(AVERAGE_DURATION) else "") for row in old.rows}
    for there in known - {"", rows[0][BACKEND]}:
        expected = rows[0][BACKEND]
        raise BadInput(f"expected rows of backend {expected}, got rows of {there}", path=path)
    _check_mode(old, rows[0][MODE], path)
    change = upsert(old, rows)
    columns = change.file.columns
    routed_last = sorted(
        change.file.rows, key=lambda row: bool(row.get(IMBALANCE) or row.get(EXPERT_LOADS))
    )
    replace_table(path, KernelFile(path.stem, columns, tuple(routed_last)).as_bytes())
    return path, change


def _check_mode(file: KernelFile, mode: str, path: Path) -> None:
    known = {row[MODE] for row in file.rows if row.get(BACKEND)}  # other producers have neither
    if known - {mode}:
        raise BadInput(
            f"expected rows of mode {mode}, got rows of {' and '.join(sorted(known))}: use their "
            "mode with --bench-mode or write to another folder",
            path=path,
        )


def moe_case_cells(case: MoeCase) -> dict[str, str]:
    """Return the cells that identify a case: those of its call, and its routing unless it is
    balanced. Loads are recorded as a hash: there are as many as experts."""
    routed = {}
    if case.counts:
        routed[EXPERT_LOADS] = short_hash(list(case.counts))
    elif case.imbalance:
        routed[IMBALANCE] = f"{case.imbalance:g}"
    return {**case.call.cells, **routed}


def _row(one: MeasuredCase) -> dict[str, str]:
    timing = over_all(one.timings)
    return {
        **moe_case_cells(one.case),
        **duration_cells(one.mean_us, ()),
        "Imbalance": f"{one.imbalance:.4f}",
        "Rank Imbalance": f"{one.rank_imbalance:.4f}",
        "Routing Seed": str(one.case.seed),
        BACKEND: one.backend,
        MODE: one.mode,
        "Rounds": str(len(one.timings)),
        "Calls": str(timing.iterations),
        "Round Spread": f"{one.round_spread:.4f}",
        "Call Median(us)": f"{timing.duration_us:.2f}",
        "Call Min(us)": f"{timing.min_us:.2f}",
        "Call P90(us)": f"{timing.p90_us:.2f}",
        "Call Max(us)": f"{timing.max_us:.2f}",
        "Rank Min(us)": f"{timing.rank_min_us:.2f}",
        "Rank Max(us)": f"{timing.rank_max_us:.2f}",
        "Skew(us)": f"{timing.skew_us:.2f}",
    }
