import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.ops.expression import align, ceil_div, parse_expression

pytestmark = pytest.mark.fast

NAMES = {"a": 3, "b": 10, "c": 0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a + b * 2", 23),
        ("(a + b) * 2 - 1", 25),
        ("b // a", 3),
        ("b % a", 1),
        ("-a", -3),
        ("max(a, min(b, 7))", 7),
        ("align(b, 8)", 16),
        ("ceil_div(b, a)", 4),
        ("a < b and not c", 1),
        ("c or b == 11", 0),
        ("1 < a <= 3 < b", 1),
    ],
)
def test_expression_is_evaluated(text, value):
    assert parse_expression(text).value(NAMES) == value


@pytest.mark.parametrize(
    "text",
    [
        *("__import__('os')", "a.b", "a[0]", "lambda: 1", "2 ** 99", "1 / 2", "1.5", "'x'"),
        *("print(1)", "max(*[1])", "max(a, key=b)", "[a]", "a if b else c", "a := 1", "", "a +"),
        *("max()", "True", "a << 3", "f'{a}'", "1" * 300),
    ],
)
def test_invalid_expression_is_refused(text):
    with pytest.raises(BadInput):
        parse_expression(text)


@pytest.mark.parametrize("text", ["d", "a // c", "max(a)", f"{2**61} * 8", "align(a)"])
def test_expression_without_a_value_is_refused(text):
    with pytest.raises(BadInput):
        parse_expression(text).value(NAMES)


@given(st.text(max_size=60))
def test_any_text_is_an_expression_or_refused(text):
    try:
        found = parse_expression(text)
        found.value(NAMES)
    except BadInput:
        return
    assert isinstance(ast.parse(text.strip(), mode="eval"), ast.Expression)


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20))
def test_align_is_the_next_multiple(number, to):
    assert align(number, to) % to == 0
    assert 0 <= align(number, to) - number < to
    assert ceil_div(number, to) * to == align(number, to)
