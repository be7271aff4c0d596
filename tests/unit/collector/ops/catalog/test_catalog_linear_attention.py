"""Linear attention: chunks against a recurrence token by token, and its parts against torch."""

import math

import pytest

from collector.ops.registry import find_operator
from tests.fixtures.op_rows import rows_of
from tests.unit.collector.ops.conftest import CpuMaker

pytestmark = pytest.mark.torch

LENGTHS, HEADS, KEY_HEADS, KEY, VALUE = (90, 70), 4, 2, 8, 16
TOKENS = sum(LENGTHS)


def recurrence(torch, query, key, value, beta, gate, state, scale):
    """Return the output (T,H,V) and the state (H,K,V) after the tokens, one by one."""
    found = []
    for t in range(len(value)):
        q, k = (x[t].repeat_interleave(HEADS // KEY_HEADS, 0) for x in (query, key))
        state = state * gate[t].exp().view(-1, 1, 1)
        written = (value[t] - torch.einsum("hk,hkv->hv", k, state)) * beta[t].unsqueeze(1)
        state = state + torch.einsum("hk,hv->hkv", k, written)
        found.append(torch.einsum("hk,hkv->hv", q, state) * scale)
    return torch.stack(found), state


def run(torch, kernel, call, **tensors):
    """Run a kernel's reference with these tensors instead of its call's own."""
    return find_operator(kernel).run_reference(torch, *call.args, **{**call.kwargs, **tensors})


def test_chunked_computation_equals_the_recurrence(torch, case_of):
    ends, chunks = "3", 4
    by_head, keys, values = (
        f"1,{HEADS},{TOKENS}",
        f"1,{TOKENS},{KEY_HEADS},{KEY}",
        (f"1,{TOKENS},{HEADS},{VALUE}"),
    )
    states = f"2,{HEADS},{KEY},{VALUE}"
    f = "FLOAT"
    cells = {
        "chunk_local_cumsum_scalar_kernel": (
            *(f"1,{TOKENS},{HEADS};{ends};2,2", f"{f};INT32;INT32"),
            *(f"1,{TOKENS},{HEADS}", f),
        ),
        "chunk_scaled_dot_kkt_fwd_kernel": (
            f"{keys};{HEADS},1,{TOKENS};{HEADS},1,{TOKENS};{ends};{chunks},2",
            *(f"{f};{f};{f};INT32;INT32", f"1,{TOKENS},{HEADS},64", f),
        ),
        "merge_16x16_to_64x64_inverse_kernel": (
            f"1,{TOKENS},{HEADS},64;1,{TOKENS},{HEADS},16;{ends};{chunks},2",
            *(f"{f};{f};INT32;INT32", f"1,{TOKENS},{HEADS},64", f),
        ),
        "recompute_w_u_fwd_kernel": (
            f"{keys};{values};{by_head};1,{TOKENS},{HEADS},64;{by_head};{ends};{chunks},2",
            *(f"{f};{f};{f};{f};{f};INT32;INT32", f"1,{TOKENS},{HEADS},{KEY};{values}", f"{f};{f}"),
        ),
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": (
            f"{keys};{values};1,{TOKENS},{HEADS},{KEY};{by_head};{states};{ends};{ends}",
            f"{f};{f};{f};{f};{f};INT32;INT32",
            *(f"1,{chunks},{HEADS},{KEY},{VALUE};{values};{states}", f"{f};{f};{f}"),
        ),
        "chunk_fwd_kernel_o": (
            f"{keys};{keys};{values};1,{chunks},{HEADS},{KEY},{VALUE};{by_head};{ends};{ends}",
            *(f"{f};{f};{f};{f};{f};INT32;INT32", values, f),
        ),
    }
    calls = {}
    for kernel, text in cells.items():
        case = case_of(kernel, *text)
        find_operator(kernel).check(case, "cpu")
        calls[kernel] = find_operator(kernel).build(case, CpuMaker(torch))
    lengths = [call.kwargs["sizes"].lengths for call in calls.values()]
    assert lengths == [(80, 80)] * len(calls)

    make = CpuMaker(torch)
    query, key = (
        torch.nn.functional.normalize(make.normal((TOKENS, KEY_HEADS, KEY), f), dim=-1)
        for _ in range(2)
    )
    value, beta = make.normal((TOKENS, HEADS, VALUE), f), make.uniform((TOKENS, HEADS), f, 0, 1)
    gate, state = make.uniform((TOKENS, HEADS), f, -0.2, 0), make.normal((2, HEADS, KEY, VALUE), f)

    sums, products, inverse, weights, chunk_states, output = calls.items()
    g = find_operator(sums[0]).run_reference(torch, gate.unsqueeze(0), **sums[1].kwargs)
    k, b = key.unsqueeze(0), beta.unsqueeze(0)
    a = find_operator(products[0]).run_reference(
        torch, k, **{**products[1].kwargs, "beta": b, "g_cumsum": g}
    )
    solved = find_operator(inverse[0]).run_reference(torch, a, **inverse[1].kwargs)
    w, u = run(torch, *weights, k=k, v=value.unsqueeze(0), beta=b, g_cumsum=g, A=solved)
    h, new, final = run(torch, *chunk_states, k=k, w=w, u=u, g=g, initial_state=state)
    out = run(torch, *output, q=query.unsqueeze(0), k=k, v=new, h=h, g=g)

    for request in range(2):
        own = slice(80 * request, 80 * request + 80)
        tensors = [x[own] for x in (query, key, value, beta, gate)]
        expected, last = recurrence(torch, *tensors, state[request], KEY**-0.5)
        torch.testing.assert_close(out[0, own], expected, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(final[request], last, rtol=1e-3, atol=1e-4)


def test_chunks_by_head_update_the_states_that_the_output_reads(torch, build, launch):
    chunks = ((0, 0, 64), (0, 64, 75), (1, 75, 139), (1, 139, 150))
    states = build(rows_of("ChunkGatedDeltaRuleFwdH")[1].case, wide=True)
    k, w, u = states.args
    g, initial = (states.kwargs[name] for name in ("g", "initial_state"))
    h, new, final = launch(rows_of("ChunkGatedDeltaRuleFwdH")[1].case, states)
    output = build(rows_of("ChunkFwdO")[1].case, wide=True)
    q, keys, v, read, scale = output.args
    (out,) = launch(rows_of("ChunkFwdO")[1].case, output)
    for head in range(4):
        kept = initial[:, head].clone()
        for number, (request, start, stop) in enumerate(chunks):
            own, key = slice(start, stop), k[0, head // 2, start:stop]
            torch.testing.assert_close(h[0, head, number], kept[request], rtol=1e-4, atol=1e-5)
            values = u[0, head, own] - w[0, head, own] @ kept[request]
            torch.testing.assert_close(new[0, head, own], values, rtol=1e-4, atol=1e-5)
            rest = (g[0, head, stop - 1] - g[0, head, own]).exp().unsqueeze(1)
            kept[request] = kept[request] * g[0, head, stop - 1].exp() + key.T @ (values * rest)

            gates = output.kwargs["g"][0, head, own]
            earlier = q[0, head // 2, own] @ read[0, head, number] * gates.exp().unsqueeze(1)
            decay = (gates.unsqueeze(1) - gates).exp().tril()
            products = q[0, head // 2, own] @ keys[0, head // 2, own].T * decay
            expected = (earlier + products @ v[0, head, own]) * scale
            torch.testing.assert_close(out[0, head, own], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(final[:, head], kept, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "numbers, value, words",
    [
        (3, 128, "places % 2"),
        (4, 128, "'h'"),
        (2, 256, "d_value == 128"),
    ],
)
def test_tables_and_blocks_that_the_kernel_does_not_read_are_refused(
    case_of, numbers, value, words
):
    keys, values = "1,2,9,64", f"1,4,9,{value}"
    inputs = f"{keys};{keys};{values};1,4,1,64,{value};1,4,9;2;{numbers}"
    f = "DT_BF16"
    dtypes = f"{f};{f};{f};{f};FLOAT;INT64;INT64"
    case = case_of("ChunkFwdO", inputs, dtypes, values, f)
    assert words in find_operator("ChunkFwdO").rejection_reason(case, "cpu")


def test_blocks_of_16_are_solved_separately(torch, build, launch):
    (row,) = rows_of("solve_tril_16x16_kernel")
    (matrices,) = (call := build(row.case)).args
    (found,) = launch(row.case, call)
    for first in (0, 48, 64):  # the second chunk begins at token 64
        last = min(first + 16, 100)
        own = slice(first % 64, first % 64 + last - first)
        for head in range(4):
            part = matrices[0, first:last, head, own] + torch.eye(last - first)
            inverse = torch.linalg.inv(part)
            torch.testing.assert_close(found[0, first:last, head, : last - first], inverse)


def test_a_decode_updates_the_states_of_its_requests(torch, build, launch):
    for row in rows_of("RecurrentGatedDeltaRule"):
        given = (call := build(row.case, wide=True)).kwargs
        before, places = given["state"].clone(), given["ssm_state_indices"]
        out, after = launch(row.case, call)
        assert after is given["state"]
        requests = len(given["actual_seq_lengths"])
        each = len(places) // requests
        groups = given["value"].shape[1] // given["key"].shape[1]
        for request in range(requests):
            state = before[places[request * each]]
            for token in range(request * each, (request + 1) * each):
                q, k = (given[x][token].repeat_interleave(groups, 0) for x in ("query", "key"))
                state = state * given["g"][token].exp().view(-1, 1, 1)
                known = torch.einsum("hvk,hk->hv", state, k)
                written = (given["value"][token] - known) * given["beta"][token].unsqueeze(1)
                state = state + torch.einsum("hv,hk->hvk", written, k)
                read = torch.einsum("hvk,hk->hv", state, q) * given["scale"]
                torch.testing.assert_close(out[token], read, rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(after[places[token]], state, rtol=1e-4, atol=1e-5)
        untouched = sorted({*range(len(before))} - set(places.tolist()))
        assert torch.equal(after[untouched], before[untouched])


def test_each_library_gets_the_lengths_that_it_reads(torch, build):
    def function(name):
        def api(**named):
            return [named["actual_seq_lengths"].tolist()]

        api._qualified_op_name = name
        return api

    of_cann, of_vllm_ascend = map(
        function,
        ("npu::npu_recurrent_gated_delta_rule", "_C_ascend::npu_recurrent_gated_delta_rule"),
    )
    expected = ([1, 1, 1], [3, 3], [1, 1, 1, 1], [3, 3])
    for row, lengths in zip(rows_of("RecurrentGatedDeltaRule"), expected, strict=True):
        call, run = build(row.case), find_operator(row.kernel_type).npu.run
        assert run(of_cann, **call.kwargs)[0] == [lengths]
        assert run(of_vllm_ascend, **call.kwargs)[0] == [[0, *lengths]]


@pytest.mark.parametrize(
    "tokens, lengths, words",
    [(4, 6, "lengths"), (4, 3, "lengths"), (1, 3, "lengths"), (0, 1, "t = 0")],
)
def test_lengths_that_no_requests_have_are_refused(case_of, tokens, lengths, words):
    heads, state = f"{tokens},2,8", "16,2,8,8"
    inputs = f"{heads};{heads};{heads};{tokens},2;{state};{lengths};{tokens};{tokens},2;;"
    bf16, undefined = "DT_BF16", "DT_UNDEFINED"
    dtypes = ";".join((*(bf16,) * 5, "INT32", "INT32", "FLOAT", undefined, undefined))
    case = case_of("RecurrentGatedDeltaRule", inputs, dtypes, f"{heads};{state}", f"{bf16};{bf16}")
    assert words in find_operator("RecurrentGatedDeltaRule").rejection_reason(case, "cpu")


def test_the_fused_decode_computes_its_gates(torch, build, launch):
    (row,) = rows_of("fused_sigmoid_gating_delta_rule_update_kernel")
    given = (call := build(row.case, wide=True)).kwargs
    before, places = given["initial_state_source"].clone(), given["initial_state_indices"]
    out, after = launch(row.case, call)
    for token, place in enumerate(places.tolist()):
        for head in range(4):
            q, k = (
                torch.nn.functional.normalize(given[x][0, token, head // 2], dim=0) for x in "qk"
            )
            step = float(given["a"][0, token, head] + given["dt_bias"][head])
            gate = -math.exp(given["A_log"][head]) * math.log1p(math.exp(step))
            state = before[place, head] * math.exp(gate)
            written = (given["v"][0, token, head] - k @ state) * given["b"][
                0, token, head
            ].sigmoid()
            state = state + torch.outer(k, written)
            torch.testing.assert_close(after[place, head], state, rtol=1e-4, atol=1e-5)
            read = q @ state / 8**0.5
            torch.testing.assert_close(out[0, 0, token, head], read, rtol=1e-4, atol=1e-5)


def test_gates_are_negative_steps(torch, build, launch):
    for kernel in ("FusedGdnGating", "fused_gdn_gating_kernel"):
        row = rows_of(kernel)[0]
        log, a, b, bias = (call := build(row.case, wide=True)).args
        gates, beta = launch(row.case, call)
        expected = -log.exp() * torch.log1p((a + bias).exp())
        torch.testing.assert_close(gates[0], expected)
        torch.testing.assert_close(beta[0], 1 / (1 + (-b).exp()))


def test_projections_are_split_head_by_head(torch, build, launch):
    (row,) = rows_of("fused_qkvzba_split_reshape_cat_kernel")
    qkvz, ba, keys, heads, _, size = (call := build(row.case)).args
    qkv, gate, b, a = launch(row.case, call)
    each = heads // keys
    for key in range(keys):
        line = qkvz[:, 2 * size * (1 + each) * key :]
        assert torch.equal(qkv[:, size * key : size * (key + 1)], line[:, :size])
        start = size * (keys + key)
        assert torch.equal(qkv[:, start : start + size], line[:, size : 2 * size])
        for number in range(each):
            head, at = key * each + number, size * (2 + number)
            start = size * (2 * keys + head)
            assert torch.equal(qkv[:, start : start + size], line[:, at : at + size])
            at += size * each
            assert torch.equal(gate[:, head], line[:, at : at + size])
            assert torch.equal(b[:, head], ba[:, 2 * each * key + number])
            assert torch.equal(a[:, head], ba[:, 2 * each * key + each + number])


def test_norms_of_rows(torch, build, launch):
    for row in rows_of("_layer_norm_fwd_1pass_kernel_npu"):
        x, weight, *_ = (call := build(row.case, wide=True)).args
        y, means, inverse = launch(row.case, call)
        expected = torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)
        gate = call.kwargs["z"]
        expected = expected if gate is None else expected * gate * gate.sigmoid()
        torch.testing.assert_close(y, expected)
        assert means is None
        torch.testing.assert_close(
            inverse, 4 / torch.linalg.vector_norm(x, dim=1), rtol=1e-4, atol=0
        )
    for kernel, size in (("l2norm_fwd_kernel2_loop", 1), ("triton_rms_kernel", 4)):
        (row,) = rows_of(kernel)
        (y,) = launch(row.case, build(row.case, wide=True))
        norms = torch.linalg.vector_norm(y.squeeze(0), dim=1)
        torch.testing.assert_close(norms, torch.full((6,), float(size)), rtol=1e-4, atol=0)


def test_states_are_cleared_where_no_tokens_precede(torch, build, launch):
    (row,) = rows_of("_clear_ssm_states_kernel")
    states, modes = (call := build(row.case)).args
    before = states.clone()
    modes[1] = True
    (after,) = launch(row.case, call)
    assert torch.equal(after[1], before[1]) and not after[0].any()


def convolved(torch, line, weight, bias):
    """Compute a convolution of each channel by torch, over tokens (T,D) with the preceding ones."""
    channels, each = line.t().unsqueeze(0), weight.t().unsqueeze(1)
    total = torch.nn.functional.conv1d(channels, each, bias, groups=len(each))
    return torch.nn.functional.silu(total)[0].t()


def test_convolution_reads_the_preceding_tokens(torch, build, launch):
    for row in rows_of("CausalConv1d"):
        x, weight, bias, state, _, places, initial = (call := build(row.case, wide=True)).args
        before, (out,) = state.clone(), launch(row.case, call)
        start = 0
        assert places.shape == row.case.inputs[5].shape
        first = places.view(len(places), -1)[:, 0].tolist()
        for place, length in zip(first, call.kwargs["lengths"], strict=True):
            held = before[place] if initial is None else torch.zeros(3, x.shape[1])
            line = torch.cat((held, x[start : start + length]))
            expected = convolved(torch, line, weight, bias)
            torch.testing.assert_close(out[start : start + length], expected, rtol=1e-4, atol=1e-5)
            assert torch.equal(state[place], line[-3:])
            start += length


def test_single_token_convolution_updates_its_state(torch, build, launch):
    (row,) = rows_of("_causal_conv1d_update_kernel_npu_tiled")
    x, weight, bias, state, places = (call := build(row.case, wide=True)).args
    before, (out, after) = state.clone(), launch(row.case, call)
    for request, place in enumerate(places.tolist()):
        line = torch.cat((before[place], x[request]))
        expected = convolved(torch, line, weight, bias)
        torch.testing.assert_close(out[request], expected, rtol=1e-4, atol=1e-5)
        assert torch.equal(after[place], line[1:])


@pytest.mark.parametrize(
    ("tokens", "ends", "chunks", "expected"),
    [  # of recorded passes of Qwen3-Next
        (123, 5, 3, [41, 41, 41, 0]),  # prompts, and a request that pads the pass
        (4099, 3, 65, [4099, 0]),
        (605, 6, 14, [1, 1, 1, 1, 601]),  # decodes before a prompt
        (1303, 81, 97, [1] * 77 + [613, 613, 0]),
        (1224, 25, 40, [1] * 20 + [301] * 4),
    ],
)
def test_lengths_of_requests_give_the_number_of_chunks(
    torch, case_of, build, tokens, ends, chunks, expected
):
    kernel, dtypes = "chunk_scaled_dot_kkt_fwd_kernel", "FLOAT;FLOAT;FLOAT;INT32;INT32"
    shapes = f"1,{tokens},4,8;8,1,{tokens};8,1,{tokens};{ends};{{}},2"
    out = f"1,{tokens},8,64", "FLOAT"
    call = build(case_of(kernel, shapes.format(chunks), dtypes, *out))
    assert torch.diff(call.kwargs["cu_seqlens"]).tolist() == expected
    wrong = case_of(kernel, shapes.format(tokens + 1), dtypes, *out)
    assert "an index for each chunk" in " ".join(
        find_operator(kernel).rejection_reason(wrong, "npu").split()
    )
