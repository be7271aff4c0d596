"""Another round is asked for on an applied campaign: `again` and `retry-failed`.

Each is an annotation with a token, and is served once a token. Before the plan is made, the number
it will have is written beside the token: whoever is killed in between, the next controller sees
whether that plan exists.
"""

from collections.abc import Iterable, Mapping

from jobs.campaign.run_options import RunOptions
from jobs.objects.deployment import LABEL

AGAIN, RETRY_FAILED = LABEL + "again", LABEL + "retry-failed"
SERVED_BY = LABEL + "served-by"


def rerun_annotations(options: RunOptions, token: str) -> dict[str, str]:
    """The annotations that say it."""
    said = ((AGAIN, options.again), (RETRY_FAILED, options.retry_failed))
    return {name: token for name, wanted in said if wanted}


def tokens(notes: Mapping[str, str]) -> str:
    """What an object's annotations ask for, as one text; empty where that is nothing."""
    return ",".join(f"{name}={notes[name]}" for name in (AGAIN, RETRY_FAILED) if notes.get(name))


def promise(notes: Mapping[str, str], plans: Iterable[int]) -> str | None:
    """What to write down before it is served; None where nothing is asked for, or it is written."""
    asked = tokens(notes)
    if not asked or _promised(notes) is not None:
        return None
    return f"{asked}:{max(plans, default=0) + 1}"


def open_rerun(notes: Mapping[str, str], plans: Iterable[int]) -> RunOptions:
    """What is promised and not yet served by a plan."""
    number = _promised(notes)
    if number is None or max(plans, default=0) >= number:
        return RunOptions()
    return RunOptions(again=bool(notes.get(AGAIN)), retry_failed=bool(notes.get(RETRY_FAILED)))


def _promised(notes: Mapping[str, str]) -> int | None:
    """The number of the plan that serves what is asked for now."""
    asked, _, number = notes.get(SERVED_BY, "").rpartition(":")
    return int(number) if asked and asked == tokens(notes) and number.isdigit() else None
