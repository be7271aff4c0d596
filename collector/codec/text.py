"""Text for users: counts with their nouns, times, untrusted text made printable, units of bytes."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from math import floor, log10


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number and its noun: `1 case`, `2,000 cases`.

    `many` is for irregular plurals, and for a verb that follows."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def percent(share: float, digits: int = 1, *, is_signed: bool = False) -> str:
    """Return a share in percent, as texts have it; arguments and files have `99.2%`.

    >>> percent(0.9921), percent(0.05, 0), percent(0.012, is_signed=True)
    ('99.2 %', '5 %', '+1.2 %')"""
    return f"{100 * share:{'+' if is_signed else ''}.{digits}f} %"


def share_of(part: float, whole: float) -> str:
    """Return a part in percent of its whole: `99.2 %`; a dash if the whole is 0."""
    return percent(part / whole) if whole else "-"


def three_digits(value: float) -> str:
    """Return a number with three digits, without an exponent where it is large.

    >>> [three_digits(value) for value in (0.125, 41.44, 6124.4)]
    ['0.125', '41.4', '6,120']"""
    return f"{float(f'{value:.3g}'):,.15g}"


def half_width_text(share: float) -> str:
    """Return the half-width of an interval, as a share of the mean; above 100 % as a factor both
    ways, since an interval that is symmetric on the logarithm does not reach below 0.

    >>> [half_width_text(share) for share in (0.0, 0.0514, 1.0, 3.36, 6123.4)]
    ['±0 %', '±5.14 %', '±100 %', '×/÷ 4.36', '×/÷ 6,120']"""
    if share <= 1:
        return f"±{100 * share:.3g} %"
    return f"×/÷ {three_digits(1 + share)}"


def time_text(time_us: float) -> str:
    """Return a time with at least three significant digits and its unit.

    >>> [time_text(us) for us in (0.0, 0.3, 61.4, 1764.0, -2_498.2, 9.9999e5, 5.12e9)]
    ['0 us', '0.300 us', '61.4 us', '1.76 ms', '-2.50 ms', '1.00 s', '5,120 s']"""
    if not time_us:
        return "0 us"
    rounded_us = float(f"{time_us:.3g}")
    unit, size_us = next((found for found in _TIMES if abs(rounded_us) >= found[1]), ("us", 1.0))
    value = rounded_us / size_us
    return f"{value:,.{max(0, 2 - floor(log10(abs(value))))}f} {unit}"


_TIMES = (("s", 1e6), ("ms", 1e3), ("us", 1.0))


def size_text(size_bytes: float) -> str:
    """Return a size with three digits and a binary unit.

    >>> [size_text(size) for size in (0, 42_949, 999.6 * 1024, 5e9)]
    ['0 B', '41.9 KiB', '0.976 MiB', '4.66 GiB']"""
    value, unit = float(size_bytes), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.3g} {_UNITS[unit]}"


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


# Untrusted text, made safe for a terminal.
#
# A log, a reason or a name may contain control codes for a terminal: a title, the clipboard, a
# colour that hides text, right-to-left letters. Unprintable characters are escaped.

_LONGEST_LINE = 1500


def in_a_line(text: str) -> str:
    """Return a text as one line of limited length, without the middle of a longer one."""
    if len(text) > _LONGEST_LINE:
        text = f"{text[: _LONGEST_LINE - 500]} [...] {text[-400:]}"
    return text if text.isprintable() else text.translate(_IN_A_LINE)


def whole_in_one_line(text: str) -> str:
    """Return the whole text as one line."""
    return " ".join(text.split()).translate(_IN_A_LINE)


def printable(text: str) -> str:
    """Return the text with its lines and tabs, other unprintable characters escaped."""
    return text if text.isprintable() else text.replace("\r\n", "\n").translate(_LINES)


class _Spelling(dict[int, str]):
    """The displayed form of each character, computed at first use."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        shown = character
        if not character.isprintable():
            shown = character.encode("unicode_escape").decode()
        return self.setdefault(code, shown)


_IN_A_LINE = _Spelling()
_LINES = _Spelling({ord(character): character for character in "\n\t"})


# Units of bytes.

MIB = 1 << 20
GIB = 1 << 30


def did_you_mean(
    text: str, known: Collection[str], synonyms: Mapping[str, str] | None = None
) -> str:
    """Return a question after the word that was meant: a synonym of one, or one that is close."""
    meant = (synonyms or {}).get(text.lower(), "")
    close = [meant] if meant in known else get_close_matches(text, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
