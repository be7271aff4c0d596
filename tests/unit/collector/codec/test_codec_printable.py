"""Foreign text on a terminal: printable characters are unchanged, others are escaped."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec.text import in_a_line, printable
from jobs.cli.terminal import VisibleFormatter

pytestmark = pytest.mark.fast


@given(st.text())
def test_only_printable_text_tabs_and_line_breaks_remain(text):
    assert all(c.isprintable() or c in "\n\t" for c in printable(text))
    assert in_a_line(text).isprintable()


@given(st.text(st.characters(blacklist_categories=["C", "Z"])))
def test_printable_text_is_unchanged(text):
    assert printable(f"{text}\n\t{text}") == f"{text}\n\t{text}"


def test_a_log_line_leaves_the_terminal_as_it_is():
    record = logging.LogRecord("a", 30, "f", 1, "%s", ("\x1b]0;x\x07",), None)
    assert VisibleFormatter("%(message)s").format(record) == r"\x1b]0;x\x07"
