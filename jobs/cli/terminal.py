"""What a verb says: the one way by which text reaches the terminal, wherever it came from."""

import logging

import typer

from collector.codec.text import visible


def say(text: object = "", *, err: bool = False) -> None:
    """One or more lines on standard output, or on standard error."""
    typer.echo(visible(str(text)), err=err)


class VisibleFormatter(logging.Formatter):
    """Lines of a log that leave the terminal as it is."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))
