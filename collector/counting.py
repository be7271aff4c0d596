"""How many of what, as people say it: no message tells of `1 cases`."""


def counted(number: int, one: str, many: str = "") -> str:
    """A number and its noun: `1 case`, `2,000 cases`; `many` is for what takes more than an s, and
    for a verb that follows."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
