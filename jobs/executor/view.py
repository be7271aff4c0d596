"""What a run on this machine tells whoever watches it."""

from contextlib import AbstractContextManager
from typing import Protocol


class View(AbstractContextManager["View"], Protocol):
    """Told what happens; shows it, and decides nothing."""

    def say(self, text: str) -> None:
        """One line that stays."""

    def measure(self, done: int, cases: int) -> None:
        """So many of all cases are measured."""
