"""`opmeter trace`: tables of traces, and traces with the kernels of a device without one."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput, file_errors
from collector.codec.files import create_fresh
from collector.codec.scratch import fresh_folder, move_files
from collector.codec.text import counted
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.profiles.trace_events import TraceKind


_MOST_NAMED = 5  # events that are left out


def to_csv_command(
    trace: Annotated[Path, typer.Argument(help="trace_view.json or another trace, also .gz")],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="CSV to write  [default: print it]")
    ] = None,
    by_kernel: Annotated[
        Path | None,
        typer.Option(help="folder to write, a CSV for each kernel of a trace with shapes"),
    ] = None,
) -> None:
    """Write the device events of a trace as a CSV, in the order of the file.

    Of a trace of a host alone, the operators are the rows. Of a simulator's trace, every event is a
    row with the columns of msmodeling's trace_to_csv. With --by-kernel, there is a CSV for each
    kernel instead, with a row for each combination of shapes. Files of gigabytes are read in
    bounded memory; with --by-kernel it grows with the number of launches.

    \b
    Examples:
      opmeter trace to-csv ASCEND_PROFILER_OUTPUT/trace_view.json -o events.csv
      opmeter trace to-csv trace.json --by-kernel kernels
    """
    from collector.profiles.trace_events import trace_kind, trace_rows

    if by_kernel is not None and output is not None:
        raise BadInput("--by-kernel excludes --output")
    if output is not None and output.resolve() == trace.resolve():
        raise BadInput("--output: expected another file than the trace", path=output)
    kind = trace_kind(trace)  # reads the whole file, so that nothing is written of a damaged one
    _say_impossible(trace, kind)
    if by_kernel is not None:
        _write_kernels(trace, kind, by_kernel)
        return
    rows = trace_rows(trace, kind)
    if output is None:
        _write(sys.stdout, kind.columns, rows)
        return
    with _replaced(output) as file:
        count = _write(file, kind.columns, rows)
    say(f"{_counted(count, kind.row_name)} in {output}")


def _write_kernels(trace: Path, kind: TraceKind, folder: Path) -> None:
    from collector.profiles.trace_kernels import KERNEL_COLUMNS, file_names, read_trace_kernels

    found = read_trace_kernels(trace, kind)
    with file_errors(folder, "written"), fresh_folder(folder, "trace") as fresh:
        for kernel, name in file_names(found.kernels).items():
            with open(fresh / name, "w", encoding="utf-8", newline="") as file:
                _write(file, KERNEL_COLUMNS, (one.cells for one in found.kernels[kernel]))
        move_files(fresh, folder)
    left = f"; {found.without_shapes:,} without shapes" if found.without_shapes else ""
    count = _counted(found.launches, kind.row_name)
    say(f"{counted(len(found.kernels), 'kernel')} with {count} in {folder}{left}")


def _say_impossible(trace: Path, kind: TraceKind) -> None:
    """Name the events that are left out: the first ones, and how many."""
    reasons = list(kind.impossible.values())
    for reason in reasons[:_MOST_NAMED]:
        say(f"{trace}: {reason}; left out", err=True)
    if len(reasons) > _MOST_NAMED:
        say(f"{trace}: {len(reasons):,} events with such durations are left out", err=True)


def _counted(count: int, what: str) -> str:
    first, _, rest = what.partition(" of ")
    return counted(count, what, f"{first}s of {rest}" if rest else f"{what}s")


def merge_trace_command(
    trace: Annotated[
        Path, typer.Argument(help="trace of torch.profiler, which has the host's operators")
    ],
    events: Annotated[
        Path,
        typer.Argument(help="device times, as collector.capture.write_device_times writes them"),
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="trace to write")],
    least_us: Annotated[
        float,
        typer.Option(min=0, help="device time in microseconds that an operator has to exceed"),
    ] = 0.0,
    launch_latency_us: Annotated[
        float,
        typer.Option(min=0, help="microseconds from an operator's start to that of its kernel"),
    ] = 0.0,
) -> None:
    """Add device kernels to the trace of a backend that has events only, and no tracing interface.

    Each kernel is placed when it is launched and the device's queue is free, with an arrow from its
    operator and the memory that the operator allocated. If operators are nested, the innermost one
    launches. Durations are measured, places are derived. Perfetto opens the result.

    \b
    Examples:
      opmeter trace merge trace.json device_times.json -o merged.json
    """
    from collector.profiles.trace_merge import merge_trace, read_device_times, write_merged

    if output.exists() and any(output.samefile(one) for one in (trace, events) if one.exists()):
        raise BadInput(f"--output: expected another file than the inputs, got {output}")
    times = read_device_times(events)
    merged = merge_trace(trace, times, least_us=least_us, launch_latency_us=launch_latency_us)
    with _replaced(output) as file:
        write_merged(trace, merged, file)
    kernels = counted(len(merged.kernels), "kernel")
    say(
        f"{kernels} in {output}; of the other operators {merged.parents:,} contain these, and "
        f"{merged.left_out:,} launch none"
    )
    if merged.unknown:
        say(f"{counted(merged.unknown, 'device time')} without an operator in {trace}", err=True)


@contextmanager
def _replaced(output: Path) -> Iterator[IO[str]]:
    """Provide a file that replaces the output if the block succeeds."""
    temporary = output.with_name(f".tmp-{output.name}")
    with file_errors(output, "written"):
        try:
            with open(create_fresh(temporary), "w", encoding="utf-8", newline="") as file:
                yield file
            temporary.replace(output)
        finally:
            temporary.unlink(missing_ok=True)


def _write(file: IO[str], columns: Sequence[str], rows: Iterable[Sequence[str]]) -> int:
    table = csv.writer(file)
    table.writerow(columns)
    count = 0
    for row in rows:
        table.writerow(row)
        count += 1
    return count


COMMANDS: dict[str, Callable[..., int | None]] = {
    "merge": merge_trace_command,
    "to-csv": to_csv_command,
}
