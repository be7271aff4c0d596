"""Drawings of lines and texts on a white page, as an SVG file, or as a PNG file with Pillow."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from itertools import pairwise
from math import dist, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING

from collector.codec.errors import BadInput
from collector.codec.text import percent

if TYPE_CHECKING:
    from jobs.planning.worth import WorthPoint

Position = tuple[float, float]
_FINE = 2  # pixels of a PNG per unit of the page
_SMOOTH = 2  # factor of resolution while a PNG is drawn
_DASH = 4.0
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}


@dataclass(frozen=True, slots=True)
class Line:
    places: tuple[Position, ...]
    colour: str
    width: float = 1.0
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text whose `anchor` (start, middle, end) is at a place."""

    place: Position
    text: str
    anchor: str = "start"
    size: int = 12
    colour: str = "black"


@dataclass(frozen=True, slots=True)
class Drawing:
    title: str
    width: int
    height: int
    marks: tuple[Line | Text, ...]


def check_picture_file(path: Path) -> None:
    """Raise BadInput for a file of another format, for an existing file, and without Pillow."""
    if path.suffix.lower() not in (".svg", ".png"):
        raise BadInput("expected a file name that ends with .svg or .png", path=path)
    if path.exists():
        raise BadInput("expected a file that does not exist yet", path=path)
    if path.suffix.lower() == ".png":
        try:
            import PIL  # noqa: F401
        except ImportError:
            raise BadInput(
                "a PNG requires Pillow, which is not installed: pip install 'opmeter[png]', or "
                "use a file name that ends with .svg",
                path=path,
            ) from None


def drawn(drawing: Drawing, path: Path) -> bytes:
    """Return the contents of the file, in the format of its name."""
    return _png(drawing) if path.suffix.lower() == ".png" else _svg(drawing).encode()


def _svg(drawing: Drawing) -> str:
    size = f"{drawing.width} {drawing.height}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" font-family="sans-serif">',
        f"<title>{escape(drawing.title)}</title>",
        f'<rect width="{drawing.width}" height="{drawing.height}" fill="white"/>',
        *(_svg_line(one) if isinstance(one, Line) else _svg_text(one) for one in drawing.marks),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _svg_line(line: Line) -> str:
    places = " ".join(f"{x:.1f},{y:.1f}" for x, y in line.places)
    dashes = f' stroke-dasharray="{_DASH:g}"' if line.is_dashed else ""
    return (
        f'<polyline points="{places}" fill="none" stroke="{line.colour}" '
        f'stroke-width="{line.width:g}"{dashes}/>'
    )


def _svg_text(text: Text) -> str:
    x, y = text.place
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{text.anchor}" font-size="{text.size}" '
        f'fill="{text.colour}">{escape(text.text)}</text>'
    )


def _png(drawing: Drawing) -> bytes:
    """Return a PNG, drawn larger and reduced, because Pillow draws lines without smooth edges."""
    from PIL import Image, ImageDraw, ImageFont

    scale = _FINE * _SMOOTH
    image = Image.new("RGB", (scale * drawing.width, scale * drawing.height), "white")
    draw = ImageDraw.Draw(image)
    for one in drawing.marks:
        if isinstance(one, Line):
            for places in _strokes(one):
                scaled = [(scale * x, scale * y) for x, y in places]
                draw.line(scaled, fill=one.colour, width=round(scale * one.width), joint="curve")
        else:
            x, y = one.place
            font = ImageFont.load_default(scale * one.size)
            place, anchor = (scale * x, scale * y), _ANCHORS[one.anchor]
            draw.text(place, one.text, fill=one.colour, font=font, anchor=anchor)
    file = BytesIO()
    small = image.reduce(_SMOOTH)
    small.save(file, "PNG", optimize=True)
    return file.getvalue()


def _strokes(line: Line) -> Iterator[Sequence[Position]]:
    if not line.is_dashed:
        yield line.places
        return
    for (x, y), (x_end, y_end) in pairwise(line.places):
        length = dist((x, y), (x_end, y_end)) or 1.0
        at = 0.0
        while at < length:
            ends = [part / length for part in (at, min(length, at + _DASH))]
            yield [(x + (x_end - x) * part, y + (y_end - y) * part) for part in ends]
            at += 2 * _DASH


# The drawing of the coverage over device-hours.

_WIDTH, _HEIGHT = 720, 400
_LEFT, _TOP, _RIGHT, _BOTTOM = 60, 40, 20, 50
_MOST_POINTS = 2000  # more points do not make a finer line
_TICKS, _MOST_STEPS = 5, 6
_CURVE, _BUDGET, _GRID = "#2563eb", "#b91c1c", "#dddddd"


def picture_of(points: "Sequence[WorthPoint]", budget_h: float, title: str) -> Drawing:
    last_h = points[-1].device_h or 1.0
    step = max(1, len(points) // _MOST_POINTS)
    texts = [*points[:-1:step], points[-1]]
    shares = [at / _TICKS for at in range(_TICKS + 1)]
    marks = (
        Text((_LEFT, 24), title, size=14),
        *(mark for share in shares for mark in _tick_of_share(share)),
        *(_tick_of_hours(hours, last_h) for hours in round_ticks(last_h)),
        Line(tuple(_position(one.device_h / last_h, one.share) for one in texts), _CURVE, 2),
        *_budget(budget_h / last_h),
        Text((_WIDTH / 2, _HEIGHT - 10), "device-hours", "middle"),
    )
    return Drawing(title, _WIDTH, _HEIGHT, marks)


def _position(part: float, share: float) -> Position:
    """Return the place of a part of all device-hours and a share of the time."""
    return (
        _LEFT + (_WIDTH - _LEFT - _RIGHT) * part,
        _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * share,
    )


def _tick_of_share(share: float) -> Iterator[Line | Text]:
    (x, y), end = _position(0, share), _position(1, share)
    yield Line(((x, y), end), _GRID)
    yield Text((x - 8, y + 4), f"{percent(share, 0)}", "end")


def round_ticks(last: float) -> list[float]:
    """Return the multiples, from 0 to `last`, of 1, 2 or 5 times a power of ten: 3 to 7 of them."""
    power = 10.0 ** (floor(log10(last)) - 1)
    step = next(one * power for one in (1, 2, 5, 10, 20) if last / (one * power) <= _MOST_STEPS)
    # 0.3 / 0.05 is less than 6 in binary
    return [at * step for at in range(floor(last / step + 1e-9) + 1)]


def _tick_of_hours(hours: float, last_h: float) -> Text:
    x, y = _position(hours / last_h, 0)
    return Text((x, y + 18), f"{hours:,.10g}", "middle")


def _budget(part: float) -> Iterator[Line | Text]:
    if part > 1:
        return
    (x, y), bottom = _position(part, 1), _position(part, 0)
    yield Line(((x, y), bottom), _BUDGET, is_dashed=True)
    yield Text((x + 5, y + 12), "budget", colour=_BUDGET)
