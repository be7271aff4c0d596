"""The `opmeter` command: a file a verb."""

from jobs.cli.app import main

__all__ = ["main"]
