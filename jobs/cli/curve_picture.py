"""What measuring brings for its device-hours, as a picture: SVG, which browsers and pages show and
which takes no package to write."""

from collections.abc import Sequence
from html import escape

from jobs.planning.worth import Point

_WIDTH, _HEIGHT = 720, 400
_LEFT, _TOP, _RIGHT, _BOTTOM = 60, 40, 20, 50
_MOST_POINTS = 2000  # more are no finer line
_TICKS = 5


def curve_svg(points: Sequence[Point], budget_h: float, title: str) -> str:
    """The share of the time that has a duration over device-hours, and where the budget ends."""
    last_h = points[-1].device_h or 1.0
    step = max(1, len(points) // _MOST_POINTS)
    drawn = [*points[:-1:step], points[-1]]
    line = " ".join(f"{_x(one.device_h, last_h):.1f},{_y(one.share):.1f}" for one in drawn)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="14">{escape(title)}</text>',
        *(_tick_of_share(at / _TICKS) for at in range(_TICKS + 1)),
        *(_tick_of_hours(last_h * at / _TICKS, last_h) for at in range(_TICKS + 1)),
        f'<polyline points="{line}" fill="none" stroke="#2563eb" stroke-width="2"/>',
        _budget(budget_h, last_h),
        f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 10}" text-anchor="middle">device-hours</text>',
        "</svg>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _x(hours: float, last_h: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * hours / last_h


def _y(share: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share


def _tick_of_share(share: float) -> str:
    y = _y(share)
    return (
        f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#ddd"/>'
        f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{share:.0%}</text>'
    )


def _tick_of_hours(hours: float, last_h: float) -> str:
    return (
        f'<text x="{_x(hours, last_h):.1f}" y="{_HEIGHT - _BOTTOM + 18}" '
        f'text-anchor="middle">{hours:,.3g}</text>'
    )


def _budget(budget_h: float, last_h: float) -> str:
    """A line where the budget ends, if that is before all is measured."""
    if budget_h > last_h:
        return ""
    x = _x(budget_h, last_h)
    return (
        f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_HEIGHT - _BOTTOM}" '
        'stroke="#b91c1c" stroke-dasharray="4 4"/>'
        f'<text x="{x + 5:.1f}" y="{_TOP + 12}" fill="#b91c1c">the budget</text>'
    )
