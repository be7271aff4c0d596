"""Paged caches: their contents, compared position by position."""

from dataclasses import replace

import pytest

from collector.model.case import Case
from collector.ops.parts.tensors import equal_parts
from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import CpuMaker, assert_rejected

pytestmark = pytest.mark.torch

BLOCK = 4
MLA_BLOCK = 16


def place(cache, number):
    return cache[number // cache.shape[1], number % cache.shape[1]]


def written(torch, cache, before, places, rows):
    """Return whether the cache has these rows at these positions, and is otherwise unchanged."""
    expected = before.clone()
    for number, row in zip(places.tolist(), rows, strict=True):
        place(expected, number)[:] = row
    return torch.equal(cache, expected)


@pytest.mark.parametrize("count", [1, 7, 24])
def test_cache_positions_are_in_range_and_distinct(torch, count):
    from collector.ops.parts.tensors import distinct_numbers

    places = distinct_numbers(CpuMaker(torch), count, 24, "INT32")
    assert places.dtype == torch.int32
    numbers = places.tolist()
    assert len(set(numbers)) == count
    assert all(0 <= number < 24 for number in numbers)


def cache_case(case_of, kernel):
    key, value = "5,2,8", "5,2,6"
    caches = [f"3,{BLOCK},2,8", f"3,{BLOCK},2,6"]
    floats, places = "DT_BF16", "INT32"
    if kernel == "ReshapeAndCacheNdKernel":
        slots, dtypes = [key, value, *caches, "5"], [*[floats] * 4, places]
    else:
        slots = [key, caches[0], "5", value, caches[1], "", "", ""]
        dtypes = [floats, floats, places, floats, floats, *["DT_UNDEFINED"] * 3]
    return case_of(kernel, ";".join(slots), ";".join(dtypes), ";".join(caches), "DT_BF16;DT_BF16")


@pytest.mark.parametrize("kernel", ["ReshapeAndCacheNdKernel", "ScatterPaKvCache"])
def test_each_token_is_written_to_its_position_only(torch, case_of, build, launch, kernel):
    case = cache_case(case_of, kernel)
    key, value, keys, values, places = (call := build(case)).args
    before = keys.clone(), values.clone()
    actual = launch(case, call)
    assert actual[0] is keys and actual[1] is values
    assert written(torch, keys, before[0], places, key)
    assert written(torch, values, before[1], places, value)


@pytest.mark.parametrize("kernel", ["ReshapeAndCacheNdKernel", "ScatterPaKvCache"])
def test_npu_call_has_the_tensors_in_the_order_of_the_function(torch, case_of, kernel):
    case = cache_case(case_of, kernel)
    op, seen = find_operator(kernel), []
    call = op.build(case, CpuMaker(torch))
    actual = op.npu.run(lambda *args, **named: seen.append(args), *call.args, **call.kwargs)
    assert [tuple(tensor.shape) for tensor in seen[0]] == [
        *((5, 2, 8), (5, 2, 6), (3, BLOCK, 2, 8), (3, BLOCK, 2, 6), (5,))
    ]
    assert actual[0] is seen[0][2] and actual[1] is seen[0][3]


@pytest.mark.parametrize("lengths", ["3", "4"], ids=["lengths", "sums"])
@pytest.mark.parametrize("blocks", [9, 2], ids=["own blocks", "shared blocks"])
def test_rows_are_read_from_the_blocks_of_their_request(
    torch, case_of, build, launch, lengths, blocks
):
    caches = f"{blocks},{BLOCK},1,8;{blocks},{BLOCK},1,6"
    rows = "17,1,8;17,1,6"
    cells = (
        f"{caches};3,4;{lengths};{rows};3",
        "FLOAT16;FLOAT16;INT32;INT32;FLOAT16;FLOAT16;INT32",
        rows,
        "FLOAT16;FLOAT16",
    )
    case = case_of("PagedCacheLoadNdKernel", *cells)
    keys, values, table, given = (call := build(case)).args
    counts = [6, 6, 5]
    assert given.tolist() == (counts if lengths == "3" else [0, 6, 12, 17])
    assert call.kwargs["cumsum"] is (lengths == "4")
    used = table[:, :2].flatten().tolist()
    assert len(set(used)) == (6 if blocks == 9 else len(set(used)))
    assert not table[:, 2:].any()
    actual = launch(case, call)
    for cache, tensor in ((keys, actual[0]), (values, actual[1])):
        expected = [
            cache[table[request, token // BLOCK], token % BLOCK]
            for request, count in enumerate(counts)
            for token in range(count)
        ]
        assert torch.equal(tensor, torch.stack(expected))
    other = case_of("GatherPaKvCache", *cells)
    assert all(map(torch.equal, launch(other, build(other)), actual))
    passed = []
    find_operator("GatherPaKvCache").npu.run(
        lambda *args, **how: passed.append((args, how)), *call.args, **call.kwargs
    )
    ((args, how),) = passed
    assert len(args) == 6 and args[4] is call.kwargs["key"]
    assert how["is_seq_lens_cumsum"] is (lengths == "4")
    assert how["seq_offset"] is call.kwargs["seq_starts"]


@pytest.mark.fast
@pytest.mark.parametrize(("tokens", "requests"), [(20, 3), (2, 3), (6, 6)])
def test_tokens_are_spread_evenly(tokens, requests):
    counts = equal_parts(tokens, requests)
    assert sum(counts) == tokens and len(counts) == requests
    assert max(counts) - min(counts) <= 1


def mla_case(case_of, mode="", angles="2,1,3,64", block=MLA_BLOCK):
    case = case_of(
        "KvRmsNormRopeCache",
        f"2,1,3,576;512;{angles};{angles};6;4,{block},1,64;4,{block},1,512;;;;;",
        ";".join([*["FLOAT16"] * 4, "INT64", *["FLOAT16"] * 2, *["DT_UNDEFINED"] * 5]),
        f"4,{block},1,64;4,{block},1,512;2,1,3,64;2,1,3,512",
        "FLOAT16;FLOAT16;FLOAT16;FLOAT16",
    )
    if not mode:
        return case
    return Case(
        case.kernel_type, case.inputs, case.outputs, case.op_state, (("Runtime cache_mode", mode),)
    )


def mla_rows(torch, call):
    """Compute the kernel's result in float64: the rotated part of pairs, and the normalised
    part."""
    kv, gamma, cos, sin = (tensor.double() for tensor in call.args[:4])
    latent, pairs = kv.split([512, 64], -1)
    pairs = torch.view_as_complex(pairs.unflatten(-1, (-1, 2)).contiguous())
    turned = pairs * torch.complex(cos[..., :32], sin[..., :32])
    normal = torch.nn.functional.rms_norm(latent, (512,), gamma, 1e-5)
    return torch.cat((turned.real, turned.imag), -1), normal


@pytest.mark.parametrize("angles", ["2,1,3,64", "2,1,1,64"], ids=["each", "one a request"])
def test_new_keys_are_normalised_rotated_and_cached(torch, case_of, build, launch, angles):
    case = mla_case(case_of, angles=angles)
    call = build(case, wide=True)
    correct = mla_rows(torch, call)
    before = [cache.clone() for cache in call.args[5:7]]
    keys, latents, key, latent = launch(case, call)
    for row, expected in ((key, correct[0]), (latent, correct[1])):
        torch.testing.assert_close(row.double(), expected, rtol=1e-5, atol=1e-5)
    places = call.args[4]
    assert written(torch, keys, before[0], places, key.flatten(0, 2).unsqueeze(1))
    assert written(torch, latents, before[1], places, latent.flatten(0, 2).unsqueeze(1))


def test_cache_in_columns_of_16_has_the_same_rows(torch, case_of, build, launch):
    case = mla_case(case_of, "PA_NZ")
    call = build(case, wide=True)
    assert call.kwargs["cache_mode"] == "PA_NZ"
    keys, _, key, _ = launch(case, call)
    columns = keys.view(4, 4, MLA_BLOCK, 16).permute(0, 2, 1, 3).reshape(4, MLA_BLOCK, 64)
    for number, row in zip(call.args[4].tolist(), key.flatten(0, 2), strict=True):
        assert torch.equal(place(columns, number), row)


@pytest.mark.fast
def test_block_of_the_latent_cache_has_a_multiple_of_16_tokens(case_of):
    assert_rejected(mla_case(case_of, block=24), "npu", "16")


@pytest.mark.fast
def test_cache_mode_is_that_of_the_case_or_the_default(case_of):
    op = find_operator("KvRmsNormRopeCache")
    assert op.runtime(mla_case(case_of)) == {"Runtime cache_mode": "PA_BNSD"}
    assert op.runtime(mla_case(case_of, "PA")) == {"Runtime cache_mode": "PA"}


@pytest.mark.parametrize(("reported", "page"), [((), 128), ((("Runtime block_size", "192"),), 192)])
def test_places_of_tokens_follow_from_their_positions_and_pages(
    torch, case_of, build, launch, reported, page
):
    cells = ("3;300;4,2", "INT32;INT64;INT32", "512", "INT32")
    case = replace(case_of("_compute_slot_mapping_kernel", *cells), attributes=reported)
    assert find_operator(case.kernel_type).runtime(case) == {"Runtime block_size": str(page)}
    starts, positions, table, *_ = (call := build(case)).args
    expected = [-1] * 512
    for request in range(2):
        for token in range(starts[request], starts[request + 1]):
            at, row = divmod(int(positions[token]), page)
            expected[token] = int(table[request, at]) * page + row
    assert launch(case, call)[0].tolist() == expected
    assert len(set(expected[:300])) == 300, "no place is written twice"
    assert -1 not in expected[:300]


def test_places_in_pages_of_an_unknown_size_are_refused(case_of):
    cells = ("3;300;4,2", "INT32;INT64;INT32", "512", "INT32")
    case = case_of("_compute_slot_mapping_kernel", *cells)
    for text in ("0", "many", "-128", "999999"):
        wrong = replace(case, attributes=(("Runtime block_size", text),))
        assert "block_size" in find_operator(case.kernel_type).rejection_reason(wrong, "npu")


@pytest.mark.parametrize("has_rejected", [True, False])
def test_queries_of_drafts_follow_the_accepted_context(torch, case_of, build, launch, has_rejected):
    """Queries are the last token and masks, at the positions and places behind the context."""
    inputs = ["3", "8", "9", "4,2", "4", "3", *["3"] * has_rejected]
    outputs = "14;8;12;9;12;9", ";".join(["INT32"] * 6)
    dtypes = ";".join(["INT32"] * len(inputs))
    case = case_of(
        "copy_and_expand_dflash_inputs_kernel_single_grid", ";".join(inputs), dtypes, *outputs
    )
    call = build(case)
    tokens, positions, slots, table, starts, lengths, rejected, _ = call.args
    ids, contexts, queries, copied, places, samples = launch(case, call)
    assert contexts[:8].tolist() == positions.tolist()
    assert copied[:9].tolist() == [*slots[:8].tolist(), 0]
    for request in range(3):
        skipped = int(rejected[request]) if has_rejected else 0
        last = int(starts[request + 1]) - 1 - skipped
        assert last >= starts[request]
        for query in range(4):
            at = request * 4 + query
            assert ids[at] == (1 if query else tokens[request])
            assert queries[at] == positions[last] + 1 + query
            page, row = divmod(int(lengths[request]) - skipped + query, 128)
            assert places[at] == table[request, page] * 128 + row
            assert query == 0 or samples[request * 3 + query - 1] == at
    assert ids[12:].tolist() == [0, 0]


def test_queries_of_drafts_need_pages_for_the_context(case_of):
    shapes, dtypes = "1;126;126;1,1;2;1", ";".join(["INT32"] * 6)
    outputs = "4;126;4;126;4;3", dtypes
    kernel = "copy_and_expand_dflash_inputs_kernel_single_grid"
    assert_rejected(case_of(kernel, shapes, dtypes, *outputs), "npu", "ceil_div(t, requests)")
