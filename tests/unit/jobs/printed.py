"""Numbers and names of printed lines, for tests that do not depend on the wording."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest

from tests.unit.collector.naming import names

_NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w])")


def numbers(text: str) -> list[str]:
    """Return the numbers of a text in order, without thousands separators."""
    return [found.replace(",", "") for found in _NUMBER.findall(text)]


def missing(text: str, words: Iterable[str]) -> list[str]:
    """Return the words that a text does not contain, each compared as a whole word."""
    return [word for word in words if not names(text, word)]


@contextmanager
def raises_naming(
    kind: type[BaseException], *words: str
) -> "Iterator[pytest.ExceptionInfo[BaseException]]":
    """Expect an error whose message has these words, in any order."""
    with pytest.raises(kind) as caught:
        yield caught
    assert missing(str(caught.value), words) == [], str(caught.value)
