"""The experts of one rank."""

import pytest

from collector.shapes.model_rows import experts_of
from collector.shapes.models import bundled_names, find_decoder

pytestmark = pytest.mark.fast


def test_a_model_is_spread_over_powers_of_two_of_ranks():
    found = experts_of([find_decoder("deepseek-v3")])
    assert found == tuple((count, 7168, 2048) for count in (1, 2, 4, 8, 16, 32, 64))


def test_models_without_experts_have_no_expert_sizes():
    assert experts_of([find_decoder("qwen3-32b"), find_decoder("llama-3-70b")]) == ()


def test_expert_sizes_are_unique_and_sorted():
    every = list(map(find_decoder, bundled_names()))
    found = experts_of([*every, *every])
    assert found == tuple(sorted(set(found))) and len({size[1:] for size in found}) == 5
