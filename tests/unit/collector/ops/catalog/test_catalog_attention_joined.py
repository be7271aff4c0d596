"""Attention in rounds: parts over different keys, joined by their sums, are attention over all."""

import pytest

from tests.fixtures.op_rows import rows_of
from tests.unit.collector.ops.conftest import assert_rejected

RING, UPDATE = "RINGMLAPrefillBF16Kernel", "AttentionUpdate"
ROWS = {kernel: [row.case for row in rows_of(kernel)] for kernel in (RING, UPDATE)}


def plain(torch, query, key, value, causal):
    """(heads, tokens, size) in float64 -> attention and log-sum-exp."""
    scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def cut(tensor, start, length):
    return tensor[start : start + length].double().transpose(0, 1)


@pytest.mark.torch
@pytest.mark.parametrize("case", ROWS[RING], ids=lambda case: case.describe()[:60])
def test_round_joins_its_attention_with_the_earlier_result(torch, build, launch, case):
    call = build(case, wide=True)
    q_nope, q_rope, k_nope, k_rope, value, _, _, out, lse, lengths = call.args
    before, sum_before = out.clone(), lse.clone()
    given, *named = launch(case, call)
    is_first = lengths.dim() == 1
    lengths = lengths.tolist()
    queries, keys = (lengths, lengths) if is_first else lengths
    q_start = k_start = 0
    for many, held in zip(queries, keys, strict=True):
        q = torch.cat([cut(t, q_start, many) for t in (q_nope, q_rope)], -1)
        k = torch.cat([cut(t, k_start, held) for t in (k_nope, k_rope)], -1)
        expected, total = plain(torch, q, k, cut(value, k_start, held), is_first)
        if not is_first:
            earlier = sum_before[:, q_start : q_start + many].double()
            whole = torch.logaddexp(earlier, total)
            kept = cut(before, q_start, many) * (earlier - whole).exp().unsqueeze(-1)
            expected = kept + expected * (total - whole).exp().unsqueeze(-1)
            total = whole
        rows = cut(given, q_start, many)
        torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-5)
        sums = lse[:, q_start : q_start + many].double()
        torch.testing.assert_close(sums, total, rtol=1e-4, atol=1e-5)
        q_start, k_start = q_start + many, k_start + held
    assert (q_start, k_start) == (q_nope.shape[0], k_nope.shape[0])
    assert all(one is lse for one in named)


@pytest.mark.torch
@pytest.mark.parametrize("case", ROWS[UPDATE], ids=lambda case: case.describe()[:60])
def test_joined_parts_are_weighted_by_their_sums(torch, build, launch, case):
    call = build(case, wide=True)
    sums, outputs = (torch.stack([t.double() for t in side]) for side in call.args)
    out, lse = launch(case, call)
    expected = (sums.softmax(0).unsqueeze(-1) * outputs).sum(0)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
    if lse is not None:
        torch.testing.assert_close(lse.double(), sums.logsumexp(0), rtol=1e-5, atol=1e-5)


BF16, U = "DT_BF16;DT_BF16;DT_BF16;DT_BF16;DT_BF16;DT_BF16", ";UNDEFINED" * 7
SHAPES = "9,2,128;9,2,64;{kv},2,128;{kv},2,64;{kv},2,128;{mask}"


@pytest.mark.fast
@pytest.mark.parametrize(
    ("cells", "rule"),
    [
        ((RING, SHAPES.format(kv=8, mask="512,512"), BF16, "9,2,128", "DT_BF16"), "t == keys"),
        ((RING, SHAPES.format(kv=9, mask="2048,2048"), BF16, "9,2,128", "DT_BF16"), "mask"),
        ((RING, SHAPES.format(kv=9, mask="10,512,512"), BF16, "9,2,128", "DT_BF16"), "requests"),
        ((RING, SHAPES.format(kv=9, mask=""), BF16, "9,2,128", "DT_BF16"), "mask"),
        ((RING, SHAPES.format(kv=9, mask="512,512"), BF16, "9,2,64", "DT_BF16"), "output"),
        (
            (
                *(RING, SHAPES.format(kv=9, mask="512,512") + ";" * 8 + "9,2,128;9,2"),
                *(BF16 + U + ";DT_BF16;FLOAT", "9,2,128", "DT_BF16"),
            ),
            "prev_lse",
        ),
        (
            (
                *(RING, SHAPES.format(kv=9, mask="512,512"), BF16.replace("DT_BF16", "FLOAT16")),
                *("9,2,128", "FLOAT16"),
            ),
            "DT_BF16",
        ),
        ((UPDATE, "4;4,8;4,8", "FLOAT;FLOAT;FLOAT", "4,8", "FLOAT"), "outputs"),
        ((UPDATE, "4;4,8", "FLOAT16;FLOAT16", "4,8", "FLOAT16"), "FLOAT"),
        ((UPDATE, "4;4,12", "FLOAT;FLOAT", "4,12", "FLOAT"), "8, 16, 24"),
        ((UPDATE, "4;4,8", "FLOAT;FLOAT", "4,8;5", "FLOAT;FLOAT"), "output"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_contradicting_arguments_are_refused(case_of, cells, rule):
    case = case_of(*cells)
    assert_rejected(case, "npu", rule)
