"""Attention and its gradient against torch's own, in every layout, grouped, causal or not."""

from dataclasses import replace

import pytest

from collector.ops.catalog.attention import _sizes

pytestmark = pytest.mark.torch

BATCH, HEADS, KV_HEADS, SIZE = 2, 4, 2, 8
LAYOUTS = ("SBH", "BSH", "BNSD", "BSND")
LENGTHS = ((11, 11), (7, 19))
MASK = "2048,2048"


def shape(layout, heads, length):
    named = {"S": length, "B": BATCH, "H": heads * SIZE, "N": heads, "D": SIZE}
    return ",".join(str(named[letter]) for letter in layout)


def to_heads(tensor, layout):
    """Convert to (batch, heads, sequence, head size), by einops-like steps of our own."""
    if layout == "SBH":
        return tensor.view(*tensor.shape[:2], -1, SIZE).transpose(0, 1).transpose(1, 2)
    if layout == "BSH":
        return tensor.view(*tensor.shape[:2], -1, SIZE).transpose(1, 2)
    return tensor if layout == "BNSD" else tensor.transpose(1, 2)


@pytest.fixture(params=[False, True], ids=["full", "causal"])
def causal(request):
    return request.param


@pytest.fixture(params=LENGTHS, ids=lambda pair: f"{pair[0]}x{pair[1]}")
def lengths(request):
    return request.param


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return request.param


@pytest.fixture
def small_blocks(monkeypatch):
    """Several blocks of rows and of heads even at these sizes, the last ones incomplete."""
    monkeypatch.setattr(_sizes, "_BLOCK_ROWS", 4)
    monkeypatch.setattr(_sizes, "_BLOCK_BYTES", 4 * 2 * 19 * 4 * 3)


@pytest.fixture
def forward_case(case_of, layout, lengths, causal):
    queries, keys = lengths
    q, kv = shape(layout, HEADS, queries), shape(layout, KV_HEADS, keys)
    statistics = f"{BATCH},{HEADS},{queries},8"
    return case_of(
        "FlashAttentionScore",
        f"{q};{kv};{kv};;;;{MASK if causal else ''};;;;;;;;",
        "FLOAT;FLOAT;FLOAT;FLOAT;UINT8;FLOAT;BOOL" + ";INT64" * 5 + ";FLOAT" * 3,
        f"{statistics};{statistics};;{q}",
        "FLOAT;FLOAT;FLOAT;FLOAT",
    )


@pytest.fixture
def grad_case(case_of, layout, lengths, causal):
    queries, keys = lengths
    q, kv = shape(layout, HEADS, queries), shape(layout, KV_HEADS, keys)
    statistics = f"{BATCH},{HEADS},{queries},8"
    return case_of(
        "FlashAttentionScoreGrad",
        f"{q};{kv};{kv};{q};{MASK if causal else ''};{statistics};{statistics};;{q};;;;;;",
        "FLOAT;FLOAT;FLOAT;FLOAT;BOOL;FLOAT;FLOAT;FLOAT;FLOAT;INT64" + ";FLOAT" * 5,
        f"{q};{kv};{kv};;;",
        "FLOAT;FLOAT;FLOAT;FLOAT;FLOAT;FLOAT",
    )


def visible(torch, queries, keys, causal):
    """Return the keys that a query attends to: with a causal mask the last query attends to all."""
    whole = torch.ones(queries, keys, dtype=torch.bool)
    return whole.tril(keys - queries) if causal else whole


def sdpa(torch, query, key, value, layout, seen):
    by_heads = [to_heads(tensor, layout) for tensor in (query, key, value)]
    return torch.nn.functional.scaled_dot_product_attention(
        *by_heads, attn_mask=seen, enable_gqa=True
    )


def test_attention_equals_the_reference(
    torch, build, launch, small_blocks, forward_case, layout, lengths, causal
):
    call = build(forward_case)
    query, key, value, _ = call.args
    maximum, total, absent, attention = launch(forward_case, call)
    seen = visible(torch, *lengths, causal)
    expected = sdpa(torch, query, key, value, layout, seen)
    torch.testing.assert_close(to_heads(attention, layout), expected)
    assert absent is None
    keys = to_heads(key, layout).repeat_interleave(HEADS // KV_HEADS, 1)
    scores = to_heads(query, layout) @ keys.transpose(2, 3) / SIZE**0.5
    scores = scores.masked_fill(~seen, float("-inf"))
    for eighth in range(8):
        torch.testing.assert_close(maximum[..., eighth], scores.amax(-1))
        logsumexp = maximum[..., eighth] + total[..., eighth].log()
        torch.testing.assert_close(logsumexp, scores.logsumexp(-1))


def test_gradient_equals_the_reference(
    torch, build, launch, small_blocks, grad_case, layout, lengths, causal
):
    call = build(grad_case)
    *inputs, dy = call.args[:4]
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    out = sdpa(torch, *leaves, layout, visible(torch, *lengths, causal))
    expected = torch.autograd.grad(out, leaves, to_heads(dy, layout))
    dq, dk, dv, *absent = launch(grad_case, call)
    for actual, correct in zip((dq, dk, dv), expected, strict=True):
        torch.testing.assert_close(actual, correct, rtol=1e-4, atol=1e-5)
    assert absent == [None] * 3


@pytest.mark.parametrize("hidden", ["causal", "full"])
@pytest.mark.parametrize(("layout", "lengths", "causal"), [("BSH", (11, 11), True)], indirect=True)
def test_whole_mask_hides_the_positions_of_the_row(
    torch, build, launch, small_blocks, forward_case, grad_case, layout, lengths, hidden
):
    forward, grad = (_with_full_mask(case, hidden) for case in (forward_case, grad_case))
    seen = visible(torch, *lengths, hidden == "causal")
    call = build(forward)
    query, key, value, mask = call.args
    assert torch.equal(mask, ~seen)
    out = sdpa(torch, query, key, value, layout, seen)
    torch.testing.assert_close(to_heads(launch(forward, call)[3], layout), out)
    call = build(grad)
    *inputs, dy = call.args[:4]
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    out = sdpa(torch, *leaves, layout, seen)
    expected = torch.autograd.grad(out, leaves, to_heads(dy, layout))
    for actual, correct in zip(launch(grad, call)[:3], expected, strict=True):
        torch.testing.assert_close(actual, correct, rtol=1e-4, atol=1e-5)


def _with_full_mask(case, hidden):
    inputs = [
        replace(slot, shape=(11, 11)) if slot.shape == (2048, 2048) else slot
        for slot in case.inputs
    ]
    return replace(case, inputs=tuple(inputs), attributes=(("Runtime mask", hidden),))


def test_blocks_cover_each_query_once_within_the_memory_budget():
    sizes = _sizes.Attention("SBH", 1, 64, 8, 5000, 70000, 128, causal=True)
    covered = set()
    for block in sizes.blocks():
        heads = range(*block.heads.indices(sizes.kv_heads))
        rows = range(block.start, block.stop)
        assert 4 * len(heads) * 8 * len(rows) * block.keys <= _sizes._BLOCK_BYTES
        assert block.keys == block.stop + 65000
        new = {(head, row) for head in heads for row in rows}
        assert not covered & new
        covered |= new
    assert len(covered) == 8 * 5000
