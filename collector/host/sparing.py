"""Asks for a device's condition at most so often that it takes a hundredth of the time."""

import time
from collections.abc import Callable

from collector.condition import Condition

_SHARE = 0.01


class Sparing:
    """`ask` takes as long as it takes: a few calls of a library, or a program for each question.
    The first time is free, and then there is as long a rest as its cost asks for."""

    def __init__(
        self, ask: Callable[[], Condition | None], clock: Callable[[], float] = time.monotonic
    ):
        self._ask = ask
        self._clock = clock
        self._rests_until_s = float("-inf")

    def read(self) -> Condition | None:
        """The condition now; None where it is too early to ask again, and where nothing is told."""
        began_s = self._clock()
        if began_s < self._rests_until_s:
            return None
        told = self._ask()
        ended_s = self._clock()
        self._rests_until_s = ended_s + (ended_s - began_s) * (1 / _SHARE - 1)
        return told
