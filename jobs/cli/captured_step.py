"""`opmeter step FOLDER`: a captured pass, explained by its operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collector.codec.errors import BadInput
from collector.codec.text import counted, percent, time_text
from jobs.cli.options import VersionOptions
from jobs.cli.terminal import print_json, print_table, say_lines

if TYPE_CHECKING:
    from jobs.cli.look_up import OpenedVersion
    from jobs.planning.captured_pass import CapturedPass, ExplainedPass, Fitted

_COLUMNS = (
    *("share", "in the pass", "alone", "neighbours", "factor", "interval", "launches"),
    "kernel type",
)


def captured_step(
    folder: Path, where: VersionOptions, fit: Sequence[Path], *, against: bool, as_json: bool
) -> None:
    """Print the time of a captured pass. With `against`, the measured one and what is left of the
    difference. Raises BadInput for a folder without a pass, and where the pass has no duration."""
    from collector.store.opening import DEFAULT_ROOT
    from jobs.cli.look_up import open_version
    from jobs.planning.captured_pass import explained

    shown = open_version(where.root or DEFAULT_ROOT, where.version, where.directory)
    reader = _Reader(shown)
    one = reader.read(folder)
    if against and one.measured is None:
        raise BadInput(
            f"{shown.place}: expected a duration of the pass {one.case}: its case is a source of a "
            f"campaign, misses: {folder}/pass.jsonl",
        )
    others = [reader.read(path) for path in _folders(fit) if path.resolve() != folder.resolve()]
    found = explained(one, others)
    if as_json:
        print_json(_as_json(shown.place, found))
        return
    say_lines(_lines(shown.place, found, against=against))
    _print_kernels(found)


def _folders(named: Sequence[Path]) -> Iterator[Path]:
    """Yield the captured passes in folders: each folder is one, or has some."""
    from jobs.planning.captured_pass import PASS_FILE

    for folder in named:
        found = sorted(path.parent for path in folder.rglob(PASS_FILE))
        if not found:
            raise BadInput(
                f"expected captures of `opmeter capture pass`: no {PASS_FILE}", path=folder
            )
        yield from found


class _Reader:
    """Reads captures, with the durations of a version directory."""

    def __init__(self, shown: OpenedVersion) -> None:
        from collector.model.measurement import CONTEXT
        from collector.report.comparison import isolated_times

        self._shown = shown
        self._apart, self._why = isolated_times(shown.state, shown.place)
        self._behind, _ = isolated_times(shown.state, shown.place, cache=CONTEXT)

    def read(self, folder: Path) -> CapturedPass:
        from collector.model.demand import read_misses, record_of_cells
        from collector.profiles.step_trace import read_step_trace
        from collector.report.comparison import compare_cases
        from jobs.cli.look_up import profiled_records
        from jobs.planning.captured_pass import PASS_FILE, captured_pass

        path = folder / PASS_FILE
        if not path.exists():
            what = "expected a capture of `opmeter capture pass`"
            raise BadInput(f"{what}: there is no {PASS_FILE}", path=folder)
        trace = read_step_trace(folder)
        if trace is None:
            raise BadInput("expected a capture with the time of its steps", path=folder)
        (missed,) = read_misses(path)
        case = record_of_cells(missed.kernel_type, missed.cells).case
        records = profiled_records(folder, "", self._shown)
        found = compare_cases(records, self._apart, self._why, self._behind)
        measured = self._apart.get(case.case_id)
        return captured_pass(folder.name, case.describe(), found, trace.steps, measured)


def _lines(place: str, found: ExplainedPass, *, against: bool) -> Iterator[str]:
    one, host = found.captured, found.host
    yield f"pass        {time_text(found.time.value)} ({_ends(found.time)}, 95 %)"
    yield f"case        {one.case}"
    yield f"version     {place}"
    basis = counted(found.fitted_to, "other pass", "other passes")
    origin = f"fitted to {basis}" if found.fitted_to else "assumed: --fit names other passes"
    yield f"factors     {origin}"
    yield f"host        {time_text(host.value)} each call ({_ends(host)}), {one.calls:g} of them"
    for name, us in found.parts_us.items():
        yield f"  {name:<22} {time_text(round(us, 3)):>15} {percent(us / found.time.value):>8}"
    if one.unknown_us:
        captured = time_text(one.unknown_us)
        yield f"unknown     {captured} by the capture, of kernels without a duration"
    if against and one.measured is not None:
        known = one.measured
        ends = (
            f" ({time_text(known.low_us)} to {time_text(known.high_us)}, 95 %)"
            if known.low_us is not None and known.high_us is not None
            else ""
        )
        rest_us = known.mean_us - found.time.value
        yield f"measured    {time_text(known.mean_us)}{ends} {known.warnings}".rstrip()
        share = percent(rest_us / known.mean_us)
        yield f"residual    {time_text(round(rest_us, 3))}, {share} of the measured time"


def _ends(found: Fitted) -> str:
    return f"{time_text(found.low)} to {time_text(found.high)}"


def _print_kernels(found: ExplainedPass) -> None:
    rows = []
    for kernel, time in found.captured.kernels.items():
        factor = found.factors[kernel]
        cells = (f"{factor.value:.2f}", f"{factor.low:.2f} to {factor.high:.2f}")
        in_pass_us = factor.value * time.known_us
        share = percent(in_pass_us / found.time.value)
        texts = (
            *(share, time_text(in_pass_us), time_text(time.alone_us)),
            time_text(round(time.neighbours_us, 3)),
        )
        rows.append((in_pass_us, (*texts, *cells, f"{time.launches:g}", kernel)))
    rows.sort(key=lambda row: -row[0])
    print_table(_COLUMNS, [row for _, row in rows])


def _as_json(place: str, found: ExplainedPass) -> dict[str, Any]:
    one = found.captured
    return {
        "pass": one.case,
        "version": place,
        "time_us": found.time.value,
        "low_us": found.time.low,
        "high_us": found.time.high,
        "measured": one.measured,
        "fitted_to": found.fitted_to,
        "calls": one.calls,
        "host_call": found.host,
        "parts_us": found.parts_us,
        "kernels": [
            {"kernel_type": kernel, "factor": found.factors[kernel], "time": time}
            for kernel, time in one.kernels.items()
        ],
    }
