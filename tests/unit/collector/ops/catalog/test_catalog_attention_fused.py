"""Fused attention of inference: results against torch's own attention, each key looked up by hand;
the meaning of a row's lengths and pages; and that a completed row gives the same call."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from collector.codec.errors import CaseRejected
from collector.model.record import CaseRecord
from collector.model.vocabulary import BASE_CELLS
from collector.ops.catalog.attention import _sizes
from collector.ops.catalog.attention._fused import read_call
from collector.ops.refusals import refusal
from collector.ops.registry import find_operator
from collector.ops.runtime import with_runtime_columns
from tests.fixtures.op_rows import rows_alone
from tests.unit.collector.ops.conftest import assert_rejected

KERNEL = "FusedInferAttentionScore"
OP = find_operator(KERNEL)
ROWS = rows_alone(KERNEL)
MASK = "2048,2048"


def record_of(shapes, out, lse="", dtype="DT_BF16", mask_dtype="INT8", **runtime):
    """Return a row: `shapes` by position, Runtime columns by name."""
    dtypes = {4: mask_dtype, 5: "INT64", 6: "INT64", 14: "INT32"}
    slots = [
        (shapes[i], dtypes.get(i, dtype), "ND") if i in shapes else ("", "DT_UNDEFINED", "NULL")
        for i in range(31)
    ]
    cells = ("dynamic", "MIX_AIC", *(";".join(part) for part in zip(*slots, strict=True)))
    cells = (*cells, f"{out};{lse}", f"{dtype};FLOAT", "ND;ND")
    extra = {f"Runtime {name}": value for name, value in runtime.items()}
    return CaseRecord(KERNEL, dict(zip(BASE_CELLS, cells, strict=True)), extra)


def decode(**runtime):
    """Return three requests of one query each, GQA 4:2 of 16 numbers, in flat pages of 16."""
    shapes = {0: "3,4,16", 1: "9,16,32", 2: "9,16,32", 4: MASK, 5: "3", 6: "3", 14: "3,4"}
    return record_of(shapes, "3,4,16", **runtime)


def heads_first(tensor, letters, index, start, length, heads):
    """Return a request's part of a tensor in a layout, as (heads, tokens, size)."""
    if "T" in letters:
        part = tensor[start : start + length]
        return part if letters == "NTD" else part.transpose(0, 1)
    part = tensor[index]
    if letters == "BSH":
        part = part.reshape(part.shape[0], heads, -1)
    return part[:, :length] if letters == "BNSD" else part[:length].transpose(0, 1)


def paged(cache, table, index, keys, heads):
    """Return keys of a request, one by one: page, position in it, head."""
    flat = cache.dim() == 3
    if cache.dim() == 5:  # blocks, heads, size / 16, tokens, 16
        cache = by_tokens(cache)
    block = cache.shape[1 if flat else 2]
    found = []
    for key in range(keys):
        page = cache[int(table[index, key // block])]
        found.append(page[key % block].view(heads, -1) if flat else page[:, key % block])
    return found[0].new_tensor([[row.tolist() for row in token] for token in found]).transpose(0, 1)


def by_tokens(cache):
    """Return pages of NZ as (blocks, heads, tokens, size), part by part."""
    whole = cache.new_empty(*cache.shape[:2], cache.shape[3], cache.shape[2] * 16)
    for part in range(cache.shape[2]):
        whole[..., 16 * part : 16 * part + 16] = cache[:, :, part]
    return whole


def expected(torch, call_args, sizes, index):
    """Compute attention of one request in float64 by torch's own function."""
    query, key, value, mask, table, query_rope, key_rope, sinks = call_args
    start, kv_start = sum(sizes.queries[:index]), sum(sizes.keys[:index])
    n, m = sizes.queries[index], sizes.keys[index]
    letters = sizes.layout.split("_")[0]
    parts = []
    for q, k in ((query, key), (query_rope, key_rope), (None, value)):
        if k is None:
            continue
        if q is not None:
            q = heads_first(q, letters, index, start, n, sizes.heads).double()
        held = (
            paged(k, table, index, m, sizes.kv_heads)
            if sizes.pages
            else heads_first(k, letters, index, kv_start, m, sizes.kv_heads)
        )
        parts.append((q, held.double()))
    *scored, (_, v) = parts
    q, k = (torch.cat(side, -1) for side in zip(*scored, strict=True))
    bias = torch.zeros(n, m, dtype=torch.float64)
    if sizes.sparse_mode in (3, 4):
        hidden = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)
        for row in range(n if sizes.sparse_mode == 4 else 0):
            hidden[row, : max(0, m - n + row - sizes.before)] = True
        bias.masked_fill_(hidden, float("-inf"))
        assert sizes.pairs <= sizes.heads * sum(map(int.__mul__, sizes.queries, sizes.keys))
    elif mask is not None:
        of_all = mask.shape[0] == 1 or (mask.dim() == 2 and max(sizes.queries) > 1)
        own = mask if of_all else mask[index]
        hidden = own.reshape(-1, own.shape[-1])[:n, :m].bool()
        assert bool(hidden.any()) or n == 1 or m > 16
        bias.masked_fill_(hidden, float("-inf"))
    group = sizes.heads // sizes.kv_heads
    k, v = (side.repeat_interleave(group, 0) for side in (k, v))
    scores = q @ k.transpose(1, 2) * sizes.scale + bias
    if sinks is not None:
        column = sinks.double().view(-1, 1, 1).expand(-1, n, 1)
        weights = torch.cat((scores, column), -1).softmax(-1)[..., :-1]
        return weights @ v, None
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=bias, scale=sizes.scale
    )
    return out, scores.logsumexp(-1, keepdim=True)


@pytest.mark.torch
@pytest.mark.parametrize("blocks", ["whole", "small"])
@pytest.mark.parametrize("record", ROWS, ids=lambda record: record.case.describe()[:60])
def test_each_request_is_computed_as_attention(torch, build, launch, monkeypatch, record, blocks):
    if blocks == "small":
        monkeypatch.setattr(_sizes, "_BLOCK_ROWS", 2)
    case = record.case
    call, sizes = build(case, wide=True), read_call(case)
    out, *lses = launch(case, call)
    letters = sizes.layout.split("_")[-1]
    for index, length in enumerate(sizes.queries):
        correct, expected_lse = expected(torch, call.args, sizes, index)
        start = sum(sizes.queries[:index])
        if letters == "NBSD":
            actual = out[:, index, :length]
        elif letters == "NTD":
            actual = out[:, start : start + length]
        else:
            actual = heads_first(out, letters, index, start, length, sizes.heads)
        torch.testing.assert_close(actual.double(), correct, rtol=1e-4, atol=1e-5)
        for lse in lses:
            order = "TND" if "T" in sizes.layout else "BNSD"
            rows = heads_first(lse, order, index, start, length, sizes.heads)
            torch.testing.assert_close(rows.double(), expected_lse, rtol=1e-4, atol=1e-5)


@pytest.mark.torch
def test_pages_are_not_shared_and_are_within_the_pool(build):
    for record in ROWS:
        sizes, table = read_call(record.case), build(record.case).args[4]
        if sizes.pages is None:
            continue
        used = [table[i, :count].tolist() for i, count in enumerate(sizes.pages.valid)]
        pages = [page for row in used for page in row]
        assert len(set(pages)) == len(pages)
        assert set(table.flatten().tolist()) <= set(range(sizes.pages.blocks))
        assert pages != sorted(pages) or len(pages) < 4


@pytest.mark.fast
def test_lengths_precede_their_mean_and_used_pages():
    def keys(**runtime):
        return read_call(decode(**runtime).case).keys

    assert keys() == (16, 16, 16)
    assert keys(block_table_valid_blocks="1,3,2") == (16, 48, 32)
    assert keys(block_table_valid_blocks="1,3,2", avg_seq_len="11.333333") == (12, 11, 11)
    assert keys(avg_seq_len="40.0", actual_seq_lengths_kv_values="7;20;33") == (7, 20, 33)
    assert keys(actual_seq_lengths_kv_values="[7, 20, 33]") == (7, 20, 33)


@pytest.mark.fast
def test_window_bounds_the_pairs_and_the_keys_that_are_read():
    shapes = {0: "40,4,16", 1: "40,2,16", 2: "40,2,16", 4: MASK, 5: "2", 6: "2"}
    lengths = {"actual_seq_lengths_values": "30,40", "actual_seq_lengths_kv_values": "30,40"}
    window = {"sparse_mode": "4", "pre_tokens": "8"}
    case = record_of(shapes, "40,4,16", **lengths, **window).case
    pairs = sum(min(position, 8) + 1 for n in (30, 10) for position in range(n))
    assert read_call(case).pairs == 4 * pairs
    paged = decode(actual_seq_lengths_kv_values="33,40,9", **window).case
    assert read_call(paged).pairs == 4 * (9 + 9 + 9)
    whole = decode(actual_seq_lengths_kv_values="33,40,9").case
    assert OP.traffic(whole) - OP.traffic(paged) == 2 * 2 * 2 * 16 * (33 + 40 - 9 - 9)


@pytest.mark.fast
def test_one_number_in_place_of_statistics_returns_none():
    """vLLM-Ascend passes it in captured graphs, in the dtype of the query."""
    row = decode(actual_seq_lengths_kv_values="20,9,30")
    cells = {"Output Shapes": "3,4,16;1", "Output Data Types": "DT_BF16;DT_BF16"}
    case = CaseRecord(KERNEL, {**row.cells, **cells}, row.extra).case
    assert refusal(case, find_operator, "npu") is None
    assert not read_call(case).returns_lse


def test_heads_of_keys_follow_from_a_flat_cache():
    call = read_call(decode(num_heads="4.0").case)
    assert (call.heads, call.kv_heads, call.pages.block_size) == (4, 2, 16)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("runtime", "rule"),
    [
        ({"num_heads": "8", "input_layout": "TND"}, "Runtime num_heads"),
        ({"num_heads": "many"}, "Runtime & heads & modes"),
        ({"avg_seq_len": "nan"}, "Runtime & heads & modes"),
        ({"num_key_value_heads": "4"}, "num_key_value_heads"),
        ({"sparse_mode": "0"}, "mask & 2048,2048 & 3"),
        ({"sparse_mode": "2"}, "mask & 2048,2048 & 3"),
        ({"sparse_mode": "4"}, "Runtime pre_tokens & sparse mode 4"),
        ({"sparse_mode": "4", "pre_tokens": "-1"}, "Runtime pre_tokens"),
        ({"block_size": "128"}, "Runtime block_size"),
        ({"input_layout": "NTD"}, "layout & TND"),
        ({"input_layout": "BSH"}, "Runtime num_heads & BSH"),
        ({"actual_seq_lengths_values": "1,2"}, "query lengths"),
        ({"actual_seq_lengths_values": "1,1,1"}, "query lengths"),
        ({"actual_seq_lengths_kv_values": "16,0,16"}, "key lengths"),
        ({"actual_seq_lengths_kv_values": "16,16"}, "key lengths"),
        ({"actual_seq_lengths_kv_values": "16,65,16"}, "pages & requests"),
        ({"actual_seq_lengths_kv_values": "60,60,60"}, "pages & requests"),
        ({"block_table_valid_blocks": "1,1"}, "key lengths"),
        (
            {"block_table_valid_blocks": "1,1,1", "actual_seq_lengths_kv_values": "16,17,16"},
            "pages & requests",
        ),
        ({"operator_input_shapes_raw": "3,4,1,16;9,16,32"}, "Runtime operator_input_shapes_raw"),
    ],
    ids=str,
)
def test_row_that_contradicts_its_shapes_is_refused(runtime, rule):
    assert_rejected(decode(**runtime).case, "npu", rule)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("record", "rule"),
    [
        (record_of({0: "3,4,24", 1: "9,16,48", 2: "9,16,48", 14: "3,4"}, "3,4,24"), "512 & 16"),
        (
            record_of({0: "3,4,16", 1: "9,8,32", 2: "9,8,32", 14: "3,4"}, "3,4,16"),
            "block_size & 16 & 512",
        ),
        (
            record_of({0: "6,4,16", 1: "9,16,32", 2: "9,16,32", 14: "3,4"}, "6,4,16"),
            "block_size & 16 & 512",
        ),
        (
            record_of({0: "3,1,4,16", 1: "9,2,16,16", 2: "9,2,16,16", 14: "3,4"}, "3,1,4,16"),
            "65535 & BSH & BSND",
        ),
        (
            record_of({0: "3,4,16", 1: "3,4,16", 2: "3,4,16", 3: "3,4"}, "3,4,16"),
            "'pse_shift'",
        ),
        (
            record_of({0: "3,4,16", 1: "3,4,16", 2: "3,4,16", 5: "1", 28: "3"}, "3,4,16"),
            "sink & head",
        ),
        (
            record_of({0: "3,4,16", 1: "3,2,16", 2: "3,2,16", 5: "1"}, "3,4,17"),
            "output & softmax_lse",
        ),
        (
            record_of({0: "9,4,16", 1: "3,2,16", 2: "3,2,16", 4: MASK, 5: "1"}, "9,4,16"),
            "sparse mode 3 & keys",
        ),
        (
            record_of({0: "3,4,16", 1: "3,2,16", 2: "3,2,16", 5: "1"}, "3,4,16", dtype="FLOAT"),
            "DT_BF16 & FLOAT16",
        ),
        (
            record_of(
                {0: "2,2,20,512", 1: "9,1,16,512", 2: "9,1,16,512", 4: MASK, 6: "2"}
                | {14: "2,4", 24: "2,2,20,64", 25: "9,1,16,64"},
                "2,2,20,512",
            ),
            "512 & pages & TND",
        ),
        (
            record_of({0: "3,4,16", 1: "3,4,16", 2: "3,4,16", 5: "1", 24: "3,4,64"}, "3,4,16"),
            "rope & queries & keys",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsupported_arguments_are_refused(record, rule):
    assert_rejected(record.case, "npu", rule)


def latent():
    """Two requests of one query, with latent keys in pages of 16, whose lengths are 16 each."""
    shapes = {0: "2,2,1,512", 1: "5,1,16,512", 2: "5,1,16,512", 5: "2", 6: "2", 14: "2,2"}
    shapes |= {24: "2,2,1,64", 25: "5,1,16,64"}
    return record_of(shapes, "2,2,1,512", input_layout="BNSD_NBSD")


@pytest.mark.torch
def test_latent_values_are_the_keys_themselves(build):
    _, key, value, *_ = build(latent().case).args
    assert value is key
    _, key, value, *_ = build(decode().case).args
    assert value is not key


@pytest.mark.fast
def test_latent_keys_are_read_once():
    # queries and their ropes in and the output, 32 keys with their ropes, a page number for each
    queries = 2 * 2 * (512 + 64) * 2
    assert OP.traffic(latent().case) == queries + 2 * 2 * 512 * 2 + 32 * (512 + 64) * 2 + 2 * 4


@st.composite
def fused_records(draw):
    """Return rows of prefill and decode, with some columns and most missing."""
    batch, kv_heads, group = draw(st.tuples(*(st.integers(1, 3) for _ in range(3))))
    heads, size = kv_heads * group, draw(st.sampled_from([16, 32]))
    lengths = draw(st.lists(st.integers(1, 40), min_size=batch, max_size=batch))
    runtime, shapes = {}, {}
    layout = draw(st.sampled_from(["TND", "BNSD", "BSND"]))
    is_paged = layout != "BSND" and draw(st.booleans())
    tokens, longest = sum(lengths), max(lengths)
    ragged = (tokens, heads, size)
    query = {"TND": ragged, "BNSD": (batch, heads, longest, size)}.get(
        layout, (batch, longest, heads, size)
    )
    key = {"TND": (tokens, kv_heads, size), "BNSD": (batch, kv_heads, longest, size)}.get(
        layout, (batch, longest, kv_heads, size)
    )
    if is_paged:
        flat = draw(st.booleans())
        pages = batch * 2
        key = (pages, 128, kv_heads * size) if flat else (pages, kv_heads, 128, size)
        shapes[14] = (batch, 2)
    shapes |= {0: query, 1: key, 2: key, 5: (batch,), 6: (batch,)}
    if draw(st.booleans()):
        shapes[4] = (2048, 2048)
    named = {
        "input_layout": layout,
        "num_heads": str(heads),
        "avg_seq_len": f"{draw(st.integers(40, 200))}.000000",
        "source_profile": "profile_a",
        "metadata_completeness": draw(st.sampled_from(["", "legacy", "profile_shapes_only"])),
    }
    runtime = {name: text for name, text in named.items() if draw(st.booleans())}
    texts = {i: ",".join(map(str, shape)) for i, shape in shapes.items()}
    return record_of(texts, texts[0], **runtime)


@pytest.mark.torch
@given(record=fused_records())
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_completed_row_replays_as_before(build, record):
    try:
        OP.check(record.case, "cpu")
    except CaseRejected:
        assert with_runtime_columns(record, OP) is record
        return
    filled = with_runtime_columns(record, OP)
    assert with_runtime_columns(filled, OP) == filled
    assert filled.cells == record.cells
    assert OP.runtime(filled.case) == OP.runtime(record.case)
    assert {name: filled.extra[name] for name in OP.runtime(filled.case)} == OP.runtime(filled.case)
    before, after = build(record.case), build(filled.case)
    assert before.kwargs == after.kwargs
    for one, other in zip(before.args, after.args, strict=True):
        assert (one is None) == (other is None)
        assert one is None or (one.shape, one.dtype) == (other.shape, other.dtype)
    assert OP.flops(record.case) == OP.flops(filled.case)
    assert OP.traffic(record.case) == OP.traffic(filled.case)


def square(mask, **runtime):
    """Return two requests of 40 queries and as many keys in BSND."""
    shapes = dict.fromkeys((0, 1, 2), "2,40,4,16") | {4: mask}
    return record_of(shapes, "2,40,4,16", mask_dtype="BOOL", **runtime).case


@pytest.mark.parametrize("mask", ["40,40", "1,40,40", "1,1,40,40", "2,1,40,40", "48,64", "64,40"])
@pytest.mark.parametrize(("reported", "mode"), [({}, 0), ({"sparse_mode": "1"}, 1)])
def test_a_full_mask_leaves_nothing_out(mask, reported, mode):
    call = read_call(square(mask, **reported))
    OP.check(square(mask, **reported), "npu")
    assert call.sparse_mode == mode
    assert call.pairs == 2 * 4 * 40 * 40
    assert OP.runtime(square(mask, **reported))["Runtime sparse_mode"] == str(mode)


def test_ambiguous_mask_is_compressed_unless_a_column_gives_the_mode():
    shapes = dict.fromkeys((0, 1, 2), "1,2048,2,16") | {4: MASK}
    modes = [
        read_call(record_of(shapes, "1,2048,2,16", **reported).case).sparse_mode
        for reported in ({}, {"sparse_mode": "0"}, {"sparse_mode": "3"})
    ]
    assert modes == [3, 0, 3]


@pytest.mark.parametrize(
    ("mask", "reported"),
    [
        ("39,40", {}),
        ("40,72", {}),
        ("3,1,40,40", {}),
        ("2,40", {}),
        ("40,40", {"sparse_mode": "3"}),
    ],
)
def test_mask_of_a_wrong_size_is_refused(mask, reported):
    assert_rejected(square(mask, **reported), "npu", "mask & (Q_S,KV_S) & sparse mode")


def test_ragged_requests_and_rope_parts_take_no_full_mask():
    ragged = record_of(dict.fromkeys((0, 1, 2), "12,4,16") | {4: "12,12", 5: "1"}, "12,4,16")
    assert_rejected(ragged.case, "npu", "mask & BSH, BSND or BNSD & rope")


@pytest.mark.parametrize(
    ("cache", "rope", "message"),
    [
        ("5,1,32,128,16", "5,1,4,128,16", ""),
        ("5,1,32,16,16", "5,1,4,16,16", "pages & block_size,16 & 128"),
        ("5,1,16,128,32", "5,1,2,128,32", "keys & pages & block_size,16"),
        ("5,1,8,128,16", "5,1,4,128,16", "keys & pages & block_size,16"),
    ],
)
def test_pages_in_nz_format_hold_latent_keys(cache, rope, message):
    shapes = {0: "2,1,4,512", 1: cache, 2: cache, 14: "2,2", 24: "2,1,4,64", 25: rope}
    case = record_of(shapes, "2,1,4,512").case
    if not message:
        OP.check(case, "npu")
        assert read_call(case).layout == "BSND"
        return
    assert_rejected(case, "npu", message)
