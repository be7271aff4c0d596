"""A wish for another round, written on an applied campaign: `again` and `retry-failed`.

Each is an annotation with a token, and is served once a token. Before the plan is made, the number
it will have is written beside the token: whoever is killed in between, the next controller sees
whether that plan exists.
"""

from collections.abc import Iterable, Mapping

from jobs.advancing import Wish
from jobs.deployment import LABEL

AGAIN, RETRY_FAILED = LABEL + "again", LABEL + "retry-failed"
SERVED_BY = LABEL + "served-by"


def wishes(wish: Wish, token: str) -> dict[str, str]:
    """The annotations that say it."""
    said = ((AGAIN, wish.again), (RETRY_FAILED, wish.retry_failed))
    return {name: token for name, wanted in said if wanted}


def tokens(notes: Mapping[str, str]) -> str:
    """The wishes of an object's annotations, as one text; empty where there is none."""
    return ",".join(f"{name}={notes[name]}" for name in (AGAIN, RETRY_FAILED) if notes.get(name))


def promise(notes: Mapping[str, str], plans: Iterable[int]) -> str | None:
    """What to write down before a wish is served; None where there is none, or it is written."""
    wished = tokens(notes)
    if not wished or _promised(notes) is not None:
        return None
    return f"{wished}:{max(plans, default=0) + 1}"


def open_wish(notes: Mapping[str, str], plans: Iterable[int]) -> Wish:
    """The wish that is promised and not yet served by a plan."""
    number = _promised(notes)
    if number is None or max(plans, default=0) >= number:
        return Wish()
    return Wish(again=bool(notes.get(AGAIN)), retry_failed=bool(notes.get(RETRY_FAILED)))


def _promised(notes: Mapping[str, str]) -> int | None:
    """The number of the plan that serves the wishes of now."""
    wished, _, number = notes.get(SERVED_BY, "").rpartition(":")
    return int(number) if wished and wished == tokens(notes) and number.isdigit() else None
