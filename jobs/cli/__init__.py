"""The `opmeter` command."""

from jobs.cli.app import main

__all__ = ["main"]
