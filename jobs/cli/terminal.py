"""Output of commands: lines of text, tables and JSON."""

import json
import logging
import sys
from collections.abc import Iterable, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import Any

import typer

from collector.codec.text import visible


def say(text: object = "", *, err: bool = False) -> None:
    """Print one or more lines on standard output, or on standard error."""
    typer.echo(visible(str(text)), err=err)


def print_json(value: object) -> None:
    """Print a value as JSON; dataclasses as objects of their fields, sets as sorted lists."""
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False, default=_as_plain))


def _as_plain(value: Any) -> object:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return sorted(value) if isinstance(value, Set) else str(value)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str | None = None,
    fixed: Sequence[str] = (),
) -> None:
    """Print a table on a terminal, whose cells wrap at words, and tab-separated lines elsewhere.
    The `fixed` columns are never broken."""
    if not sys.stdout.isatty():
        for row in (columns, *rows):
            typer.echo("\t".join(row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title)
    for name in columns:
        table.add_column(name, no_wrap=name in fixed, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(markup=False, highlight=False).print(table)


class VisibleFormatter(logging.Formatter):
    """A formatter whose lines contain no control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))
