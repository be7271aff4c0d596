"""How many of what, and what part of it, as people say it: no message tells of `1 cases`."""


def counted(number: int, one: str, many: str = "") -> str:
    """A number and its noun: `1 case`, `2,000 cases`; `many` is for what takes more than an s, and
    for a verb that follows."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def share_of(part: float, whole: float) -> str:
    """A part in percent of its whole: `99.2 %`; a dash where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "-"
