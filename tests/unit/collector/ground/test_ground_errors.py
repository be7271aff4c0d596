"""A refusal is one printable line, whatever it was that came."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.errors import BadInput

pytestmark = pytest.mark.fast


@given(st.text())
def test_a_refusal_is_one_line_on_any_terminal(came: str) -> None:
    said = str(BadInput(f"{came} came", path="some/key", line=3))
    assert said.startswith("some/key:3: ") and said.endswith(" came")
    assert said.isprintable()


def test_what_can_be_printed_is_said_as_it_is() -> None:
    assert str(BadInput("算子 'Add' 1 µs — no", path="a")) == "a: 算子 'Add' 1 µs — no"


def test_a_long_refusal_keeps_its_ends() -> None:
    said = str(BadInput("A" * 100_000 + ": say less", path="some/key"))
    assert said.startswith("some/key: AAA") and said.endswith("AAA: say less")
    assert len(said) < 2000
