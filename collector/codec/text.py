"""Text for people: counts with their nouns, untrusted text made printable, units of bytes."""


# How many of what, and what part of it, as people say it: no message tells of `1 cases`.


def counted(number: int, one: str, many: str = "") -> str:
    """A number and its noun: `1 case`, `2,000 cases`; `many` is for what takes more than an s, and
    for a verb that follows."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def share_of(part: float, whole: float) -> str:
    """A part in percent of its whole: `99.2 %`; a dash where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


# Text that somebody else wrote, made fit for a terminal.
#
# A log, a reason, a name may hold what steers a terminal: a title, the clipboard, a colour that
# hides what follows, letters that run backwards. What cannot be printed is spelled out.

_LONGEST_LINE = 1500


def in_a_line(text: str) -> str:
    """A text as one line of a bounded length; the middle of a longer one is left out."""
    if len(text) > _LONGEST_LINE:
        text = f"{text[: _LONGEST_LINE - 500]} [...] {text[-400:]}"
    return text if text.isprintable() else text.translate(_IN_A_LINE)


def in_one_line(text: str) -> str:
    """The whole of a text as one line."""
    return " ".join(text.split()).translate(_IN_A_LINE)


def visible(text: str) -> str:
    """The same text, its lines and tabs kept."""
    return text if text.isprintable() else text.replace("\r\n", "\n").translate(_LINES)


class _Spelling(dict[int, str]):
    """How each character is shown, found out when it first comes."""

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
