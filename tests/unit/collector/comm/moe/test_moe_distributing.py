"""The result of a dispatch and of a combine, over ranks of gloo; errors are detected."""

from dataclasses import replace

import pytest

from collector.comm.moe.routing import skewed
from collector.ranks.distribution import DISPATCH, MASK, TP_COUNTS, WEIGHTS, DistributeCall

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

CALL = DistributeCall(DISPATCH, 33, 64, 12, 3, 4, 33)
WHOLE = replace(CALL, capacity=40, dtype="FLOAT16", optional=(WEIGHTS, MASK, TP_COUNTS))


def dispatch_of(call, rank, routing):
    """Return a dispatch as the seven tensors that one process expects."""
    from collector.comm.moe.distributing import Dispatched, expected

    correct = expected(call, 7, rank, routing)
    ends = correct.counts.flatten().cumsum(0).to(torch.int32)
    info = correct.origins.flatten().to(torch.int32)
    counts = correct.counts.sum(1)
    got = Dispatched(
        correct.rows, correct.scales, info, counts, ends, ends.new_empty(0), correct.weights
    )
    return got, correct


@pytest.mark.parametrize("is_int8", [False, True])
def test_wrong_row_is_detected(is_int8):
    from collector.comm.moe.distributing import has_expected_rows, is_as_expected

    call = replace(CALL, is_int8=is_int8)
    got, correct = dispatch_of(call, 1, skewed(call, 7, 0.9))
    assert is_as_expected(got, correct) and has_expected_rows(got, correct)
    off = got.rows.clone()
    off[2, 5] += 7
    wrong = got._replace(rows=off)
    assert not is_as_expected(wrong, correct) and not has_expected_rows(wrong, correct)
    short = got._replace(counts=got.counts.roll(1))
    assert not is_as_expected(short, correct) and not has_expected_rows(short, correct)


def test_dispatch_accepts_any_order_of_the_rows_of_an_expert():
    from collector.comm.moe.distributing import has_expected_rows, is_as_expected

    got, correct = dispatch_of(CALL, 0, skewed(CALL, 7, 0.0))
    first = int(correct.counts.sum(1)[0])
    swapped = got._replace(rows=torch.cat((got.rows[:first].flip(0), got.rows[first:])))
    assert has_expected_rows(swapped, correct)
    assert not is_as_expected(swapped, correct)
    among_experts = got._replace(rows=got.rows.flip(0))
    assert not has_expected_rows(among_experts, correct)


def test_combine_result_is_the_weighted_sum_of_the_experts():
    from collector.comm.moe.distributing import expected_tokens, expert_results
    from collector.comm.moe.reference import make_tokens

    routing = skewed(CALL, 7, 0.9)
    tokens = make_tokens(CALL, 7, 2, routing, "cpu")
    correct = torch.zeros(CALL.tokens, CALL.hidden, dtype=torch.float64)
    for token in range(CALL.tokens):
        for choice in range(CALL.choices):
            factor = 2.0 ** (int(tokens.experts[token, choice]) % 3)
            weight = tokens.weights[token, choice].double()
            correct[token] += tokens.x[token].double() * factor * weight
    actual = expected_tokens(CALL, 7, 2, routing).double()
    torch.testing.assert_close(actual, correct, rtol=1e-2, atol=1e-2)
    got, expects = dispatch_of(CALL, 2, routing)
    made = expert_results(CALL, 2, routing, got)
    factors = torch.tensor([2.0 ** (expert % 3) for expert in range(6, 9)])
    per_row = factors.repeat_interleave(expects.counts.sum(1)).to(made.dtype)
    assert torch.equal(made, got.rows * per_row.unsqueeze(-1))
