"""The reference of DispatchFFNCombine equals its formula, and a wrong result is detected."""

from dataclasses import replace

import pytest

from collector.comm.moe.routing import skewed
from collector.ranks.experts import ExpertCall

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")

CALL = ExpertCall(9, 64, 48, 6, 2, 3)


def by_formula(call, seed, rank, routing):
    """Token by token, in float64, with no quantisation of tokens."""
    from collector.comm.moe.reference import make_experts, make_tokens

    tokens = make_tokens(call, seed, rank, routing, "cpu")
    experts = make_experts(call, seed, range(call.experts), "cpu")
    gate_up = experts.gate_up.double() * experts.gate_up_scale.double().unsqueeze(1)
    down = experts.down.double() * experts.down_scale.double().unsqueeze(1)
    out = torch.zeros(call.tokens, call.hidden, dtype=torch.float64)
    for token in range(call.tokens):
        for choice in range(call.choices):
            number = int(tokens.experts[token, choice])
            gate, up = (tokens.x[token].double() @ gate_up[number]).chunk(2)
            result = (gate / (1 + torch.exp(-gate)) * up) @ down[number]
            out[token] += tokens.weights[token, choice].double() * result
    return out


@pytest.mark.parametrize(("bits", "within"), [(16, 0.02), (8, 0.05), (4, 0.05)])
def test_rank_receives_the_weighted_sum_of_the_experts_of_its_tokens(bits, within):
    from collector.comm.moe.reference import reference_alone

    call = replace(CALL, weight_bits=bits)
    routing = skewed(call, 5, 0.5)
    expected = by_formula(call, 5, 1, routing)
    off = (
        reference_alone(call, 5, 1, routing).double() - expected
    ).abs().max() / expected.abs().max()
    assert float(off) < within


def test_one_wrong_number_is_detected():
    from collector.comm.moe.reference import outputs_agree, reference_alone

    for call in (CALL, replace(CALL, weight_bits=16)):
        expected = reference_alone(call, 5, 0, skewed(call, 5, 0.5))
        off = expected.clone()
        off[3, 7] += 0.1 * expected.abs().max()
        assert outputs_agree(expected.clone(), expected, is_exact=call.is_int8)
        assert not outputs_agree(off, expected, is_exact=call.is_int8)
    off = expected.clone()
    off[0, 0] = torch.nan
    assert not outputs_agree(off, expected, is_exact=False)
