"""Which gate a verdict is of: by the outcome and reason of a number that is not shown, and by the
words of a warning. A certificate has a gate's reason, not its name, so that old ones are counted
like new ones."""

from collections.abc import Sequence

from collector.measurement import Outcome

# What tells a gate is a part of its reason that no number changes.
_REFUSALS = (
    ("below the physical floor", "floor"),
    ("above the limit of the case", "limit"),
    ("is no duration", "no duration"),  # of earlier certificates
    ("is not a duration", "no duration"),
    ("less than its cores worked", "cores at work"),
    ("another unit than us", "unit"),
    ("host time:", "host time"),
    ("canary band:", "canary band"),
)
# One gate an outcome: a second one whose numbers are `gated` is told by its words, as above.
_OUTCOMES = {
    Outcome.GATED: "outputs",
    Outcome.SUBSTITUTED: "identity",
    Outcome.PROFILER_LOST: "reconciliation",
}
_WARNINGS = (
    ("canaries:", "canaries"),
    ("the session drifted", "drift"),
    ("repeats were undisturbed", "disturbed"),
    ("repeats were disturbed", "disturbed"),
    ("spread ", "spread"),
    ("accepted repeats", "few repeats"),
    ("two modes:", "two modes"),
    ("trend:", "trend"),
)
OTHER = "other"
ENVELOPE = "envelope"  # no certificate has it: it is asked of all that shows


def gate_of(outcome: Outcome, reason: str) -> str:
    """The gate that holds a number back; empty where none does: it is good, or there is none."""
    if outcome is Outcome.IMPLAUSIBLE:
        return _first(_REFUSALS, reason)
    return _OUTCOMES.get(outcome, "")


def doubt_of(warning: str) -> str:
    """The gate that warns so."""
    return _first(_WARNINGS, warning)


def _first(known: Sequence[tuple[str, str]], text: str) -> str:
    return next((gate for words, gate in known if words in text), OTHER)
