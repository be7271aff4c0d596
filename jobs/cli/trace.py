"""`opmeter trace`: tables of traces."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Annotated

import typer

from collector.codec.text import counted
from jobs.cli.terminal import say


def to_csv_command(
    trace: Annotated[Path, typer.Argument(help="trace_view.json or another trace, also .gz")],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="CSV to write  [default: print it]")
    ] = None,
) -> None:
    """Write the device events of a trace as a CSV, in the order of the file.

    Of a trace without devices, such as a simulator's, every event is a row with the columns of
    msmodeling's trace_to_csv. Files of gigabytes are read in bounded memory.

    \b
    Examples:
      opmeter trace to-csv ASCEND_PROFILER_OUTPUT/trace_view.json -o events.csv
    """
    from collector.codec.errors import file_errors
    from collector.profiles.trace_events import kind_of, rows_of

    kind = kind_of(trace)  # reads the whole file, so that nothing is written of a damaged one
    rows = rows_of(trace, kind)
    if output is None:
        _write(sys.stdout, kind.columns, rows)
        return
    beside = output.with_name(f".tmp-{output.name}")
    with file_errors(output, "written"):
        try:
            with beside.open("w", encoding="utf-8", newline="") as file:
                count = _write(file, kind.columns, rows)
            beside.replace(output)
        finally:
            beside.unlink(missing_ok=True)
    what = "event of a simulation" if kind.is_simulation else "device event"
    say(f"{counted(count, what, what.replace('event', 'events'))} in {output}")


def _write(file: IO[str], columns: Sequence[str], rows: Iterable[Sequence[str]]) -> int:
    table = csv.writer(file)
    table.writerow(columns)
    count = 0
    for row in rows:
        table.writerow(row)
        count += 1
    return count


COMMANDS: dict[str, Callable[..., int | None]] = {"to-csv": to_csv_command}
