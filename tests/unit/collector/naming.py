"""The data that a message must contain, whatever the words around it."""

import re


def naming(*data: object) -> str:
    """Return a pattern for `pytest.raises(match=...)`: each of the data occurs as a whole word.

    >>> bool(re.search(naming("tokens", 0), "tokens: expected at least 1, got 0"))
    True
    >>> bool(re.search(naming("tokens", 1), "tokens: expected at least 10"))
    False
    """
    return r"\A(?s:" + "".join(f"(?=.*?{_whole(str(one))})" for one in data) + ")"


def names(text: str, *data: object) -> bool:
    """Whether a text contains each of the data as a whole word."""
    return re.search(naming(*data), text) is not None


def _whole(text: str) -> str:
    """A digit continues a word, and so does a decimal point with a digit."""
    before = r"(?<!\w)(?<!\d\.)" if re.match(r"\w", text) else ""
    after = r"(?!\w|\.\d)" if re.search(r"\w\Z", text) else ""
    return before + re.escape(text) + after
