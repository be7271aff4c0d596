"""What measuring brings for its device-hours, as a drawing."""

from collections.abc import Iterator, Sequence

from jobs.cli.drawing import Drawing, Line, Place, Text
from jobs.planning.worth import Point

_WIDTH, _HEIGHT = 720, 400
_LEFT, _TOP, _RIGHT, _BOTTOM = 60, 40, 20, 50
_MOST_POINTS = 2000  # more are no finer line
_TICKS = 5
_CURVE, _BUDGET, _GRID = "#2563eb", "#b91c1c", "#dddddd"


def picture_of(points: Sequence[Point], budget_h: float, title: str) -> Drawing:
    """The share of the time that has a duration over device-hours, and where the budget ends."""
    last_h = points[-1].device_h or 1.0
    step = max(1, len(points) // _MOST_POINTS)
    told = [*points[:-1:step], points[-1]]
    shares = [at / _TICKS for at in range(_TICKS + 1)]
    marks = (
        Text((_LEFT, 24), title, size=14),
        *(mark for share in shares for mark in _tick_of_share(share)),
        *(_tick_of_hours(last_h * share, last_h) for share in shares),
        Line(tuple(_place(one.device_h / last_h, one.share) for one in told), _CURVE, 2),
        *_budget(budget_h / last_h),
        Text((_WIDTH / 2, _HEIGHT - 10), "device-hours", "middle"),
    )
    return Drawing(title, _WIDTH, _HEIGHT, marks)


def _place(part: float, share: float) -> Place:
    """Where a part of all device-hours and a share of the time stand."""
    return (
        _LEFT + (_WIDTH - _LEFT - _RIGHT) * part,
        _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share,
    )


def _tick_of_share(share: float) -> Iterator[Line | Text]:
    (x, y), end = _place(0, share), _place(1, share)
    yield Line(((x, y), end), _GRID)
    yield Text((x - 8, y + 4), f"{share:.0%}", "end")


def _tick_of_hours(hours: float, last_h: float) -> Text:
    x, y = _place(hours / last_h, 0)
    return Text((x, y + 18), f"{hours:,.3g}", "middle")


def _budget(part: float) -> Iterator[Line | Text]:
    """A line where the budget ends, if that is before all is measured."""
    if part > 1:
        return
    (x, y), bottom = _place(part, 1), _place(part, 0)
    yield Line(((x, y), bottom), _BUDGET, is_dashed=True)
    yield Text((x + 5, y + 12), "the budget", colour=_BUDGET)
