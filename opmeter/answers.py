"""The answers to queries."""

from enum import StrEnum
from math import nan
from typing import NamedTuple


class Channel(StrEnum):
    """Where a duration comes from.

    - `measured`: one session measured this case on this stack.
    - `pooled`: the mean of several sessions of this case.
    - `imported`: another tool measured it, and this database did not: there is no certificate, and
      the interval is the noise of such numbers.
    - `interpolated`: the case is between measured ones.
    - `extrapolated`: the case is beyond measured ones, as the caller allowed: its interval spans
      what its work allows, from the nearest measured case.
    - `reused`: measured on another version of the stack, as the caller allowed; with the ratio that
      a sample has shown, if a plan has recorded that the case is reused (`reused=True`).
    - `miss`: there is no duration; the reason says why."""

    MEASURED = "measured"
    POOLED = "pooled"
    IMPORTED = "imported"
    INTERPOLATED = "interpolated"
    EXTRAPOLATED = "extrapolated"
    REUSED = "reused"
    MISS = "miss"


EXACT = frozenset({Channel.MEASURED, Channel.POOLED, Channel.IMPORTED, Channel.REUSED})
_OF_SESSIONS = (Channel.IMPORTED, Channel.MEASURED, Channel.POOLED)


def channel_of(sessions: int) -> Channel:
    """Return the channel of a duration from so many sessions."""
    return _OF_SESSIONS[min(sessions, 2)]


class Reason(StrEnum):
    """Why a query has no duration.

    - `no kernel`: no case of this kernel type has one.
    - `no dtype`: none with these input dtypes.
    - `no layout`: none with these ranks, formats, outputs and settings.
    - `no length`: the kernel depends on lengths, and these are neither measured nor between
      measured ones, or not given.
    - `outside`: the sizes are not between measured ones.
    - `ambiguous`: several cases match, with different durations, and the caller allows only one."""

    NO_KERNEL = "no kernel"
    NO_DTYPE = "no dtype"
    NO_LAYOUT = "no layout"
    NO_LENGTH = "no length"
    OUTSIDE = "outside"
    AMBIGUOUS = "ambiguous"


SEVERAL_MATCH = "several cases match"  # how the warning of an ambiguous answer begins


class Answer(NamedTuple):
    """The duration of one launch in us, and its 95 % interval over sessions and devices.

    All three are NaN for a miss, whose `reason` says why. `support` is the number of sessions of a
    measured duration (0 if it is imported), or of measured cases behind an interpolated one.
    `warnings` has names of gates, and sentences about the answer itself."""

    value_us: float
    low_us: float
    high_us: float
    channel: Channel
    support: int
    warnings: tuple[str, ...] = ()
    reason: Reason | None = None


MISSES = {reason: Answer(nan, nan, nan, Channel.MISS, 0, (), reason) for reason in Reason}


class ExplainedRow(NamedTuple):
    """A measured case behind an answer, with its weight; an extrapolated one has the nearest case.

    An interpolated answer differs from the roofline as the weighted mean of its cases does."""

    case: str
    weight: float
    inputs: tuple[tuple[int, ...] | None, ...]
    value_us: float
    low_us: float
    high_us: float
    sessions: int
    degrees: float
    settings: str
    lengths: str


class Explanation(NamedTuple):
    """An answer and the measured cases behind it, the greatest weight first.

    Of a miss, `hints` say what has durations: kernel types, dtypes, sizes, the nearest case; and if
    no case can have these shapes, `impossible` says why.

    `widest` is the case whose own interval adds most to the answer's: to measure it again narrows
    the answer most. None for a miss. `sessions_to_halve` is how many more sessions on other devices
    would halve its interval, and `sessions_to_halve_here` the same on the device that measured it;
    None if 1,000 would not."""

    answer: Answer
    rows: tuple[ExplainedRow, ...]
    widest: ExplainedRow | None
    sessions_to_halve: int | None = None
    sessions_to_halve_here: int | None = None
    hints: tuple[str, ...] = ()
    impossible: str = ""
