"""Rounds of campaigns that learn surfaces, made beside a controller's looks.

To learn them takes minutes, in which other campaigns want to be looked at. So a thread makes the
round, and the looks ask whether it is there; whatever is written is written by a look. A controller
that ends while a round is made leaves nothing of it.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from collector import surroundings
from collector.surroundings import Running
from jobs.planning.plan_making import PlannedRound
from jobs.publishing.next_plan import Advanced

Intended = tuple[Advanced, PlannedRound | None]

# A small one is there by then: it does not want another look.
_AT_ONCE_S = 0.5


@dataclass(eq=False)
class _Making:
    about: str
    found: Intended | None = None
    error: Exception | None = None
    thread: Running | None = None
    # What was made for a campaign that has changed since, nobody asks for: it ends unseen.
    is_wanted: bool = True


class Rounds:
    """What is being made, by campaign; one at a time, and the others wait for their turn. `wait_s`
    is how long a look waits for it: None as long as it takes."""

    def __init__(self, wait_s: float | None = _AT_ONCE_S):
        self._wait_s = wait_s
        self._turn = threading.Lock()
        self._making: dict[str, _Making] = {}

    def is_making(self, campaign: str, about: str) -> bool:
        """Whether a round of a campaign, as it is wanted now, is not there yet."""
        making = self._making.get(campaign)
        return making is not None and making.about == about and _is_at_work(making)

    def begin(self, campaign: str, about: str, make: Callable[[], Intended]) -> Intended | None:
        """Begin to make a round, `about` a campaign as it is wanted now; the round where it is made
        soon. Raises what making it raised."""
        self.forget(campaign)
        making = self._making[campaign] = _Making(about)
        making.thread = surroundings.begin(lambda: self._make(making, make), f"round of {campaign}")
        making.thread.join(self._wait_s)
        return self.take(campaign, about)

    def take(self, campaign: str, about: str) -> Intended | None:
        """The round that was begun for the campaign as it is wanted now, once; None where there is
        none yet. Raises what making it raised."""
        making = self._making.get(campaign)
        if making is None or making.about != about or _is_at_work(making):
            return None
        del self._making[campaign]
        if making.error is not None:
            raise making.error
        return making.found

    def forget(self, campaign: str) -> None:
        """Nobody wants what is made for a campaign any more."""
        if (making := self._making.pop(campaign, None)) is not None:
            making.is_wanted = False

    def _make(self, making: _Making, make: Callable[[], Intended]) -> None:
        with self._turn:
            if not making.is_wanted:
                return
            try:
                making.found = make()
            except Exception as error:  # raised again by the look that asks
                making.error = error


def _is_at_work(making: _Making) -> bool:
    return making.thread is not None and making.thread.is_alive()
