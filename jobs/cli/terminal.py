"""Output of commands: lines of text, tables and JSON."""

import json
import logging
import re
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import typer

from collector.codec.text import printable

# Of a line such as `coverage    129 of 130`, or `unsupported MemSet`, which fills its column.
_LABEL = re.compile(r" *[a-z][a-z ]*? {2,}|[a-z]{11} (?=[A-Z])| +")


def say(text: object = "", *, err: bool = False) -> None:
    """Print one or more lines on standard output, or on standard error. On a terminal, lines that
    are longer than it is wide wrap at blanks, below the text that follows their label."""
    lines = printable(str(text)).split("\n")
    if (sys.stderr if err else sys.stdout).isatty():
        width = shutil.get_terminal_size().columns
        lines = [part for line in lines for part in wrapped(line, width)]
    typer.echo("\n".join(lines), err=err)


def say_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Print each of these lines as soon as it is known."""
    for line in lines:
        say(line, err=err)


def wrapped(line: str, width: int) -> list[str]:
    """Return a line in parts of at most this width, broken at blanks alone.

    >>> wrapped("coverage    129 of 130 cases, 98.9 % of the rows", 32)
    ['coverage    129 of 130 cases,', '            98.9 % of the rows']
    """
    if len(line) <= width:
        return [line]
    label = _LABEL.match(line)
    indent = " " * min(label.end() if label else 0, width // 2)
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def stop_on_signals(say: Callable[[str], None] | None = None) -> threading.Event:
    """Return an event that Ctrl-C and SIGTERM set. With `say`, the first signal is announced, and a
    second one ends the process at once."""
    stop = threading.Event()

    def request_stop(number: int, _: object) -> None:
        stop.set()
        if say is not None:
            signal.signal(number, signal.SIG_DFL)
            say("stopping after the current case; a second signal stops at once")

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, request_stop)
    return stop


def print_json(value: object) -> None:
    """Print a value as JSON, dataclasses as objects of their fields. Raises TypeError for other
    types that JSON does not have."""
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False, default=_as_plain))


def _as_plain(value: Any) -> object:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"expected a value that JSON has, got {value!r}")


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str | None = None,
    optional: Sequence[str] = (),
) -> None:
    """Print a table on a terminal, and tab-separated lines elsewhere. On a terminal cells wrap at
    blanks and after `;`, numbers are never broken, and the last of the `optional` columns are left
    out where the table would be wider than the terminal."""
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            typer.echo("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(markup=False, highlight=False)
    cells = [[cell.replace(";", "; ") for cell in row] for row in rows]
    left_out = list(optional)
    shown = list(range(len(columns)))
    while left_out and _least_width([columns, *cells], shown) > console.width:
        shown.remove(columns.index(left_out.pop()))
    table = Table(title=title, title_justify="left", title_style="")
    for at in shown:
        of_numbers = [word for row in cells for word in row[at].split() if word[:1].isdigit()]
        table.add_column(
            columns[at], overflow="fold", min_width=max(map(len, of_numbers), default=None)
        )
    for row in cells:
        table.add_row(*(Text(printable(row[at])) for at in shown))
    console.print(table)


def _least_width(rows: Sequence[Sequence[str]], shown: Sequence[int]) -> int:
    """The width of a table whose cells are wrapped at every blank, with its borders."""
    longest = (
        max((len(word) for row in rows for word in row[at].split()), default=1) for at in shown
    )
    return sum(longest) + 3 * len(shown) + 1


class VisibleFormatter(logging.Formatter):
    """A formatter whose lines contain no control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))
