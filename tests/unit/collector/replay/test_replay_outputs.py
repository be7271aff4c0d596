"""Checks of outputs: values that are not finite, and wrong values."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")

from collector.replay.cases import find_difference, find_invalid_values  # noqa: E402
from tests.unit.collector.naming import names  # noqa: E402

pytestmark = pytest.mark.torch


def test_infinities_are_accepted_if_the_operator_declares_them():
    outputs = (torch.tensor([1.0, -torch.inf]), torch.ones(2))
    assert "output 0" in find_invalid_values(outputs)
    assert not find_invalid_values(outputs, frozenset({0}))
    assert find_invalid_values((torch.tensor([torch.nan]),), frozenset({0}))


def test_rounding_is_not_a_difference_and_another_number_is():
    numbers = torch.linspace(-3, 3, 1000)
    assert not find_difference(numbers.bfloat16(), numbers.bfloat16() * (1 + 1 / 128))
    words = find_difference((None, numbers.half()), (None, numbers.half() + 0.5))
    assert names(words, "output 1") and " 0.5" in words


def test_quantised_output_may_be_off_by_one_and_an_index_may_not():
    steps = torch.arange(10, dtype=torch.int8)
    assert not find_difference(steps, steps + 1)
    assert find_difference(steps, steps + 2)
    assert find_difference(steps.int(), steps.int() + 1)


def test_outputs_that_cannot_be_compared_are_ignored():
    assert not find_difference((torch.ones(3), None), (torch.ones(4), torch.ones(1)))
    infinite = torch.full((3,), -torch.inf)
    assert not find_difference(infinite, torch.zeros(3))


def test_unwritten_rows_are_not_checked():
    rows = torch.tensor([[1.0], [torch.nan]])
    assert "output 0" in find_invalid_values((rows,))
    assert not find_invalid_values((rows,), written=1)


def test_scalar_is_checked_like_a_tensor():
    assert not find_invalid_values((torch.tensor(1.0),))
    assert "output 0" in find_invalid_values((torch.tensor(torch.nan),))
