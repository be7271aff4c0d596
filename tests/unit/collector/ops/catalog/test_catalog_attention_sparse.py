"""Sparse attention and its indexer against sums over keys that are looked up one by one."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.codec.errors import CaseRejected
from collector.ops.catalog.attention import (
    lightning_indexer,
    shared_kv,
    sparse_flash_attention,
)
from collector.ops.registry import find_operator
from collector.ops.runtime import with_runtime_columns
from tests.fixtures.op_rows import rows_of
from tests.unit.collector.ops.conftest import assert_rejected

ATTENTION, INDEXER = find_operator("SparseFlashAttention"), find_operator("LightningIndexer")
OURS = find_operator("LightningIndexerVllm")
SHARED = [row for kernel in ("SparseAttnSharedkv", "SparseFlashMla") for row in rows_of(kernel)]
COMPRESSED = [
    row
    for kernel in ("VllmQuantLightningIndexer", "QuantLightningIndexerV2")
    for row in rows_of(kernel)
]
QUANTISED = [*rows_of("LightningIndexerQuant"), *rows_of("QuantLightningIndexer")]


def named(row, **columns):
    extra = {**row.extra, **{f"Runtime {name}": text for name, text in columns.items()}}
    return replace(row, extra=extra)


# Of the second request, other ranks have the queries.
SHARES = {
    "actual_seq_lengths_values": "1,1,3",
    "actual_seq_lengths_kv_values": "61,0,42",
    "avg_seq_len": "",
    "block_table_valid_blocks": "",
}
ROWS = {
    op.kernel: [*rows_of(op.kernel), named(rows_of(op.kernel)[0], **SHARES)]
    for op in (ATTENTION, INDEXER, OURS)
}
ALL_ROWS = [*(row for rows in ROWS.values() for row in rows), *SHARED, *COMPRESSED]


def token(cache, table, request, place):
    """Return one token of a request's cache."""
    block = cache.shape[1]
    return cache[int(table[request, place // block]), place % block, 0].double()


def tokens(call):
    """Return (request, number of its visible keys) for each query."""
    for request in range(len(call.queries)):
        for position in range(call.queries[request]):
            behind = call.queries[request] - position - 1 if call.sparse_mode == 3 else 0
            yield request, call.keys[request] - behind


@pytest.mark.torch
@pytest.mark.parametrize(
    "row", ROWS["SparseFlashAttention"], ids=lambda row: row.case.describe()[:40]
)
def test_attention_to_selected_keys_equals_the_reference(torch, build, launch, monkeypatch, row):
    monkeypatch.setattr(sparse_flash_attention, "_STEP_BYTES", 1 << 17)
    call = build(row.case, wide=True)
    query, key, indices, query_rope, key_rope, table, *_ = call.args
    (out,) = launch(row.case, call)
    for t, (request, _) in enumerate(tokens(call.kwargs["call"])):
        chosen = [place for place in indices[t, 0].tolist() if place >= 0]
        k = torch.stack([token(key, table, request, place) for place in chosen])
        r = torch.stack([token(key_rope, table, request, place) for place in chosen])
        scores = (query[t].double() @ k.t() + query_rope[t].double() @ r.t()) / 576**0.5
        correct = scores.softmax(-1) @ k
        torch.testing.assert_close(out[t].double(), correct, rtol=1e-4, atol=1e-5)


@pytest.mark.torch
def test_attention_to_a_quantised_cache_equals_the_reference(torch, build, launch):
    row, _ = rows_of("KvQuantSparseFlashAttention")
    call = build(row.case, wide=True)
    query, cache, indices, table, *_ = call.args
    (out,) = launch(row.case, call)
    for t, (request, _) in enumerate(tokens(call.kwargs["call"])):
        rows = []
        for place in (place for place in indices[t, 0].tolist() if place >= 0):
            whole = cache[int(table[request, place // 16]), place % 16, 0].clone()
            scale = whole[640:].view(torch.float32).double().repeat_interleave(128)
            rope = whole[512:640].view(torch.bfloat16).double()
            rows.append(torch.cat((whole[:512].double() * scale, rope)))
        k = torch.stack(rows)
        scores = query[t].double() @ k.t() / 576**0.5
        expected = scores.softmax(-1) @ k[:, :512]
        torch.testing.assert_close(out[t].double(), expected, rtol=1e-4, atol=1e-5)
    op = find_operator("KvQuantSparseFlashAttention")
    pairs = call.kwargs["call"].pairs(call.kwargs["call"].chosen)
    assert op.flops(row.case) == 2 * (2 * 512 + 64) * 4 * pairs
    for old, new, name in (("576", "512", "'query'"), ("656", "576", "'key'")):
        shapes = {"Input Shapes": row.cells["Input Shapes"].replace(old, new)}
        wrong = replace(row, cells={**row.cells, **shapes})
        assert_rejected(wrong.case, "npu", name)


@pytest.mark.torch
@pytest.mark.parametrize("pattern", ["uniform", "contiguous", "random"])
def test_indices_are_sorted_unique_keys_padded_with_minus_one(build, pattern):
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
def test_quantised_indexer_finds_the_best_dequantised_keys(torch, build, launch, row):
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
def test_completed_row_has_the_runtime_columns():
    row = with_runtime_columns(ROWS["SparseFlashAttention"][1], ATTENTION)
    message = {name.removeprefix("Runtime "): text for name, text in row.extra.items()}
    assert message == {
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
def test_phase_follows_from_the_lengths():
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
def test_row_that_contradicts_its_shapes_is_refused(kernel, columns, rule):
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
    op = find_operator(row.kernel_type)
    try:
        op.check(bare.case, "cpu")
    except CaseRejected:
        assert with_runtime_columns(bare, op) is bare
        return
    filled = with_runtime_columns(bare, op)
    assert with_runtime_columns(filled, op) == filled
    assert op.runtime(filled.case) == op.runtime(bare.case)
    before, after = build(bare.case), build(filled.case)
    assert before.kwargs == after.kwargs
    for one, other in zip(before.args, after.args, strict=True):
        assert one is None if other is None else bool((one == other).all())


@pytest.mark.torch
@pytest.mark.parametrize("row", SHARED, ids=lambda row: row.case.describe()[:60])
def test_attention_to_a_window_and_compressed_keys_uses_the_sink(
    torch, build, launch, monkeypatch, row
):
    monkeypatch.setattr(shared_kv, "_STEP_BYTES", 1 << 18)
    call = build(row.case, wide=True)
    query, near, far, chosen, near_table, far_table, _, _, sinks, *_ = call.args
    out, _ = launch(row.case, call)
    sizes = call.kwargs["call"]
    owners = [r for r, count in enumerate(sizes.queries) for _ in range(count)]
    for t, (request, place) in enumerate(zip(owners, sizes.places(), strict=True)):
        window = range(max(0, place - 127), place + 1)
        keys = [token(near, near_table, request, one) for one in window]
        seen = (place + 1) // sizes.ratio if far is not None else 0
        picked = range(seen) if chosen is None else [k for k in chosen[t, 0].tolist() if k >= 0]
        assert len(picked) == min(seen, sizes.topk or seen) and all(k < seen for k in picked)
        keys = torch.stack([*keys, *(token(far, far_table, request, one) for one in picked)])
        scores = query[t].double() @ keys.t() / 512**0.5
        scores = torch.cat((scores, sinks.double().unsqueeze(1)), 1).softmax(-1)[:, :-1]
        torch.testing.assert_close(out[t].double(), scores @ keys, rtol=1e-4, atol=1e-5)


@pytest.mark.torch
def test_best_compressed_keys_are_complete_before_the_query(torch, build, launch):
    for row in COMPRESSED:
        call = build(row.case)
        query, key, weights, own, scale, *_, table, _ = call.args
        (found, _), sizes = launch(row.case, call), call.kwargs["call"]
        owners = [r for r, count in enumerate(sizes.queries) for _ in range(count)]
        for t, (request, seen) in enumerate(zip(owners, sizes.seen(), strict=True)):
            keys = torch.stack(
                [
                    token(key, table, request, i) * flat(scale, table, request, i)
                    for i in range(seen)
                ]
            )
            scores = ((query[t].double() * own[t].double().unsqueeze(1)) @ keys.t()).relu()
            best = (weights[t].double() @ scores).topk(min(seen, sizes.topk)).indices.tolist()
            assert sorted(best) == sorted(i for i in found[t, 0].tolist() if i >= 0)


def flat(scale, table, request, place):
    """Return the scale of one key of a request's cache."""
    block = scale.shape[1]
    return scale[int(table[request, place // block]), place % block].double()


@pytest.mark.torch
def test_tokens_are_compressed_with_their_predecessors(torch, build, launch):
    """Compare with a loop over keys, for all tokens at once: the earlier ones' projections are put
    into the state first."""
    for row in rows_of("Compressor"):
        call = build(row.case, wide=True)
        x, values, gate, state, ape, norm, sin, cos, table, *_ = call.args
        sizes = call.kwargs["call"]
        earlier, block, rows = [], sizes.block_size, iter(range(sizes.rows))
        for request, before in enumerate(sizes.befores):
            old = torch.randn(before, 2 * sizes.coff * sizes.size)
            earlier.append(old)
            for place in range(before):
                page = int(table[request, place // block])
                if page:
                    state[page, place % block] = old[place]
        out, _ = launch(row.case, call)
        for request in sizes.requests():
            new = x[request.start : request.start + request.queries]
            places = torch.arange(request.keys - request.queries, request.keys) % sizes.ratio
            own = torch.cat((new @ values.t(), new @ gate.t() + ape[places]), 1)
            value, score = torch.cat((earlier[request.index], own)).chunk(2, 1)
            for end in range(sizes.ratio, request.keys + 1, sizes.ratio):
                if end <= request.keys - request.queries:
                    continue
                parts = [(end - sizes.ratio, sizes.coff - 1)]
                if sizes.coff == 2 and end > sizes.ratio:
                    parts.insert(0, (end - 2 * sizes.ratio, 0))
                v, s = (
                    torch.cat(
                        [
                            numbers[first : first + sizes.ratio].unflatten(1, (sizes.coff, -1))[
                                :, c
                            ]
                            for first, c in parts
                        ]
                    )
                    for numbers in (value, score)
                )
                key = torch.nn.functional.rms_norm(
                    (v * s.softmax(0)).sum(0), norm.shape, norm, 1e-6
                )
                at = next(rows)
                pair = torch.view_as_complex(key[-64:].reshape(-1, 2).contiguous())
                turn = torch.complex(cos[at, ::2].float(), sin[at, ::2].float())
                key = torch.cat((key[:-64], torch.view_as_real(pair * turn).flatten()))
                torch.testing.assert_close(out[at], key, rtol=1e-3, atol=1e-4)


@pytest.mark.torch
def test_compressor_plan_has_the_first_token_of_each_key(torch, build, launch):
    for row, keys in zip(rows_of("CompressorMetadata"), ([], [(0, 0), (1, 0)]), strict=True):
        call = build(row.case, wide=True)
        given = call.kwargs
        cos, sin, slots = launch(row.case, call)
        assert sum(given["cu_seqlens"].diff()) == (3, 12)[len(keys) // 2]
        ends = given["start_pos"] + given["cu_seqlens"].diff()
        assert sum(ends // 4 - given["start_pos"] // 4) == (0, 2)[len(keys) // 2]
        for number, (request, key) in enumerate(keys):
            torch.testing.assert_close(cos[number, 0, 0], given["rope_cos"][4 * key])
            torch.testing.assert_close(sin[number, 0, 0], given["rope_sin"][4 * key])
            assert slots[number].tolist() == [int(given["kv_block_table"][request, 0]), key]
        none = slots[len(keys) :]
        assert none.tolist() == [[-1, 31]] * len(none)
        assert bool((cos[len(keys) :] == 1).all()) and not bool(sin[len(keys) :].any())


def test_window_starts_must_equal_those_of_the_queries_or_be_absent():
    row = next(row for row in rows_of("SparseAttnSharedkv") if not row.case.inputs[2].shape)
    op, slots = find_operator("SparseAttnSharedkv"), list(row.case.inputs)
    slots[8] = slots[7]
    case = replace(row.case, inputs=tuple(slots))
    assert op.rejection_reason(case, "npu") == ""
    slots[8] = slots[11]
    case = replace(row.case, inputs=tuple(slots))
    assert "cu_seqlens_ori_kv" in op.rejection_reason(case, "npu")
