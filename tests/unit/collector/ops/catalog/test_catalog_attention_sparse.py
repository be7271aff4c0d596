"""Sparse attention and its indexer against sums over keys that are looked up one by one."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.codec.errors import CaseRejected
from collector.ops.catalog.attention import lightning_indexer, sparse_flash_attention
from collector.ops.registry import find
from collector.ops.runtime import completed
from tests.fixtures.op_rows import rows_of
from tests.unit.collector.ops.conftest import assert_rejected

ATTENTION, INDEXER = find("SparseFlashAttention"), find("LightningIndexer")
OURS = find("LightningIndexerVllm")
ROWS = {op.kernel: rows_of(op.kernel) for op in (ATTENTION, INDEXER, OURS)}
QUANTISED = rows_of("LightningIndexerQuant")
ALL_ROWS = [row for rows in ROWS.values() for row in rows]


def named(row, **columns):
    extra = {**row.extra, **{f"Runtime {name}": text for name, text in columns.items()}}
    return replace(row, extra=extra)


def token(cache, table, request, place):
    """One token of a request's cache."""
    block = cache.shape[1]
    return cache[int(table[request, place // block]), place % block, 0].double()


def tokens(call):
    """(request, how many keys it sees) for each query."""
    for request in range(len(call.queries)):
        for position in range(call.queries[request]):
            behind = call.queries[request] - position - 1 if call.sparse_mode == 3 else 0
            yield request, call.keys[request] - behind


@pytest.mark.torch
@pytest.mark.parametrize(
    "row", ROWS["SparseFlashAttention"], ids=lambda row: row.case.describe()[:40]
)
def test_attention_to_chosen_keys(torch, build, launch, monkeypatch, row):
    monkeypatch.setattr(sparse_flash_attention, "_STEP_BYTES", 1 << 17)
    call = build(row.case, wide=True)
    query, key, indices, query_rope, key_rope, table, *_ = call.args
    (out,) = launch(row.case, call)
    for t, (request, _) in enumerate(tokens(call.kwargs["call"])):
        chosen = [place for place in indices[t, 0].tolist() if place >= 0]
        k = torch.stack([token(key, table, request, place) for place in chosen])
        r = torch.stack([token(key_rope, table, request, place) for place in chosen])
        scores = (query[t].double() @ k.t() + query_rope[t].double() @ r.t()) / 576**0.5
        wanted = scores.softmax(-1) @ k
        torch.testing.assert_close(out[t].double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("pattern", ["uniform", "contiguous", "random"])
def test_indices_are_sorted_seen_keys_each_once_and_minus_one_behind(build, pattern):
    for row in ROWS["SparseFlashAttention"]:
        call = build(named(row, sparse_indices_pattern=pattern).case)
        sizes, indices = call.kwargs["call"], call.args[2]
        for t, (_, seen) in enumerate(tokens(sizes)):
            found = indices[t, 0].tolist()
            count = min(seen, sizes.chosen)
            assert found[count:] == [-1] * (sizes.topk - count)
            chosen = found[:count]
            assert chosen == sorted(set(chosen))
            assert chosen[0] >= 0
            assert chosen[-1] < seen


@pytest.mark.torch
def test_keys_and_values_are_one_cache_of_disjoint_pages(build):
    for row in ROWS["SparseFlashAttention"]:
        call = build(row.case)
        sizes, table = call.kwargs["call"], call.args[5]
        pages = [p for i, v in enumerate(sizes.pages.valid) for p in table[i, :v].tolist()]
        assert len(set(pages)) == len(pages)


@pytest.mark.torch
@pytest.mark.parametrize(
    "row",
    [*ROWS["LightningIndexer"], *ROWS["LightningIndexerVllm"]],
    ids=lambda row: row.case.describe()[:40],
)
def test_the_indexer_finds_the_best_keys(torch, build, launch, monkeypatch, row):
    monkeypatch.setattr(lightning_indexer, "_STEP_BYTES", 1 << 9)
    call = build(row.case, wide=True)
    query, key, weights, *_, table, _ = call.args
    sizes = call.kwargs["call"]
    indices, *more = launch(row.case, call)
    values = more[0] if more else None
    for t, (request, seen) in enumerate(tokens(sizes)):
        keys = torch.stack([token(key, table, request, place) for place in range(seen)])
        products = (query[t].double() @ keys.t()).relu()
        scores = (weights[t].double().unsqueeze(1) * products).sum(0)
        count = min(seen, sizes.topk)
        found = indices[t, 0].tolist()
        assert found[count:] == [-1] * (sizes.topk - count)
        assert len(set(found[:count])) == count
        best = scores.topk(count).values
        torch.testing.assert_close(scores[found[:count]], best, rtol=1e-4, atol=1e-4)
        if values is not None:
            torch.testing.assert_close(values[t, 0, :count].double(), best, rtol=1e-4, atol=1e-3)


@pytest.mark.torch
@pytest.mark.parametrize("row", QUANTISED, ids=lambda row: row.case.describe()[:40])
def test_the_quantised_indexer_finds_the_best_keys_of_what_its_numbers_stand_for(
    torch, build, launch, row
):
    call = build(row.case)
    query, key, weights, of_queries, of_keys, *_, table = call.args
    sizes = call.kwargs["call"]
    (indices,) = launch(row.case, call)
    for t, (request, seen) in enumerate(tokens(sizes)):
        keys, by = (
            torch.stack([token(pool, table, request, place) for place in range(seen)])
            for pool in (key, of_keys.unsqueeze(-1))
        )
        products = (query[t].double() @ keys.t()).relu() * of_queries[t].double().unsqueeze(1)
        scores = (weights[t].double().unsqueeze(1) * products).sum(0) * by.squeeze(-1)
        found = indices[t, 0].tolist()[: min(seen, sizes.topk)]
        best = scores.topk(len(found)).values
        torch.testing.assert_close(scores[found], best, rtol=1e-3, atol=1e-3)


@pytest.mark.fast
def test_a_completed_row_says_what_readers_want():
    row = completed(ROWS["SparseFlashAttention"][1], ATTENTION)
    said = {name.removeprefix("Runtime "): text for name, text in row.extra.items()}
    assert said == {
        "actual_seq_lengths_shape": "2",
        "actual_seq_lengths_values": "4,7",
        "actual_seq_lengths_kv_shape": "2",
        "actual_seq_lengths_kv_values": "64,64",
        "avg_seq_len": "64",
        "batch_size": "2",
        "block_size": "16",
        "block_table_shape": "2,6",
        "block_table_valid_blocks": "4,4",
        "cache_layout": "PA_BSND",
        "input_layout": "TND",
        "kv_cache_mode": "paged",
        "metadata_completeness": "complete",
        "num_heads": "4",
        "num_key_value_heads": "1",
        "phase": "mixed",
        "sparse_block_size": "1",
        "sparse_indices_pattern": "uniform",
        "sparse_indices_seed": "0",
        "sparse_indices_valid_count": "24",
        "sparse_mode": "3",
        "topk": "24",
    }


@pytest.mark.fast
def test_phase_is_told_by_the_lengths():
    row = ROWS["LightningIndexer"][0]
    for keys, queries, phase in (("61,20,42", "1,2,3", "decode"), ("1,1,1", "1,2,3", "prefill")):
        case = named(
            row,
            actual_seq_lengths_kv_values=keys,
            actual_seq_lengths_values=queries,
            avg_seq_len="",
            block_table_valid_blocks="",
            phase="",
        ).case
        assert INDEXER.runtime(case)["Runtime phase"] == phase


@pytest.mark.fast
@pytest.mark.parametrize(
    ("kernel", "columns", "rule"),
    [
        ("SparseFlashAttention", {"sparse_block_size": "4"}, "sparse_block_size & 1"),
        (
            "SparseFlashAttention",
            {"sparse_indices_pattern": "blocks"},
            "uniform, contiguous, random",
        ),
        ("SparseFlashAttention", {"sparse_indices_valid_count": "33"}, "sparse_block_size & 1"),
        ("SparseFlashAttention", {"topk": "64"}, "topk"),
        ("SparseFlashAttention", {"num_heads": "x"}, "Runtime & heads"),
        ("LightningIndexer", {"input_layout": "BSND"}, "TND"),
        ("LightningIndexer", {"cache_layout": "PA_BNSD"}, "TND"),
        ("LightningIndexer", {"sparse_mode": "4"}, "sparse_mode & 0 & 3"),
        ("LightningIndexer", {"topk": "many"}, "Runtime & heads"),
        ("LightningIndexer", {"actual_seq_lengths_values": "1,1,3"}, "lengths"),
        ("LightningIndexer", {"actual_seq_lengths_kv_values": "65,20,42"}, "pages"),
        (
            "LightningIndexer",
            {"block_table_valid_blocks": "5,5,5", "actual_seq_lengths_kv_values": "80,80,80"},
            "pages & requests",
        ),
    ],
    ids=str,
)
def test_what_contradicts_the_shapes_is_refused(kernel, columns, rule):
    row = named(ROWS[kernel][0], **columns)
    assert_rejected(row.case, "npu", rule)


@pytest.mark.torch
@given(
    row=st.sampled_from(ALL_ROWS),
    dropped=st.sets(st.sampled_from(sorted({name for r in ALL_ROWS for name in r.extra}))),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_completed_row_replays_as_before(build, row, dropped):
    bare = replace(row, extra={n: t for n, t in row.extra.items() if n not in dropped})
    op = find(row.kernel_type)
    try:
        op.check(bare.case, "cpu")
    except CaseRejected:
        assert completed(bare, op) is bare
        return
    filled = completed(bare, op)
    assert completed(filled, op) == filled
    assert op.runtime(filled.case) == op.runtime(bare.case)
    before, after = build(bare.case), build(filled.case)
    assert before.kwargs == after.kwargs
    for one, other in zip(before.args, after.args, strict=True):
        assert one is None if other is None else bool((one == other).all())
