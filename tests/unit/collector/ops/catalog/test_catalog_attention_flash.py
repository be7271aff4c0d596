"""Prompt and incremental attention are fused attention in other slots."""

from dataclasses import replace

import pytest

from collector.ops.registry import find_operator
from tests.fixtures.op_rows import rows_of
from tests.unit.collector.ops.conftest import assert_rejected


def sdpa(torch, query, key, value, queries, keys):
    """Compute each request's heads with torch's own function; BNSD, grouped, no mask."""
    group = query.shape[1] // key.shape[1]
    out = torch.zeros_like(query)
    for i, (n, m) in enumerate(zip(queries, keys, strict=True)):
        k, v = (side[i, :, :m].repeat_interleave(group, 0) for side in (key, value))
        out[i, :, :n] = torch.nn.functional.scaled_dot_product_attention(query[i, :, :n], k, v)
    return out


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kernel", "row", "queries"),
    [("PromptFlashAttention", 1, (5, 3)), ("IncreFlashAttention", 2, (1, 1))],
)
def test_lengths_are_read_from_their_own_slots(torch, build, launch, kernel, row, queries):
    case = rows_of(kernel)[row].case
    call = build(case, wide=True)
    (out,) = launch(case, call)
    expected = sdpa(torch, *call.args[:3], queries, (9, 4))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.torch
def test_incremental_attention_reads_pages(torch, build, launch):
    case = rows_of("IncreFlashAttention")[1].case
    call = build(case, wide=True)
    query, key, value, _, table, *_ = call.args
    (out,) = launch(case, call)
    held = [side.index_select(0, table[:, 0]) for side in (key, value)]
    torch.testing.assert_close(out, sdpa(torch, query, *held, (1,) * 3, (16,) * 3))


BF16 = "DT_BF16;DT_BF16;DT_BF16"


@pytest.mark.fast
@pytest.mark.parametrize(
    ("cells", "rule"),
    [
        (
            ("IncreFlashAttention", "2,4,5,16;2,2,9,16;2,2,9,16", BF16, "2,4,5,16"),
            "query & request",
        ),
        (
            (
                *("IncreFlashAttention", "2,4,1,16;2,2,9,16;2,2,9,16;2,4,1,9;2,9"),
                *(f"{BF16};DT_BF16;BOOL", "2,4,1,16"),
            ),
            "'pse_shift'",
        ),
        (("PromptFlashAttention", "7,4,16;7,2,16;7,2,16", BF16, "7,4,16"), "query lengths"),
        (
            (
                *("PromptFlashAttention", "7,4,16;7,2,16;7,2,16;;;2;2"),
                *(f"{BF16};DT_BF16;BOOL;INT64;INT64", "7,4,16"),
            ),
            "BSH, BSND, BNSD",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_unsupported_arguments_are_refused(case_of, cells, rule):
    case = case_of(*cells, "DT_BF16")
    assert_rejected(case, "npu", rule)


def test_full_mask_of_a_prompt_requires_sparse_mode_1(case_of):
    shapes, dtypes = "2,4,9,16;2,4,9,16;2,4,9,16;;9,9", f"{BF16};DT_UNDEFINED;BOOL"
    case = case_of("PromptFlashAttention", shapes, dtypes, "2,4,9,16", "DT_BF16")
    op = find_operator("PromptFlashAttention")
    assert_rejected(case, "npu", "mask & Runtime sparse_mode & 1")
    reported = replace(case, attributes=(("Runtime sparse_mode", "1"),))
    op.check(reported, "npu")
    assert op.flops(reported) == 4 * 16 * 2 * 4 * 9 * 9
