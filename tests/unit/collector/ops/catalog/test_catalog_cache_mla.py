"""MLA's preparation, up to its caches, against its formulas."""

from dataclasses import replace

import pytest

from collector.model.case import Slot
from collector.ops.registry import find_operator

pytestmark = pytest.mark.torch

SIZES = {"T": 3, "H": 64, "N": 2, "Q": 32, "L": 512, "P": 16, "R": 64, "C": 2, "B": 4}


def mla_case(case_of):
    """Return T tokens of H, N heads of P + R, a query rank Q, latent keys of L, C blocks of B."""
    s = SIZES
    down, up = s["L"] + s["R"] + s["Q"], s["N"] * (s["P"] + s["R"])
    inputs = [
        *(f"3,{s['H']}", f"1,{s['H'] // 32},{down},32", down, s["Q"], s["Q"]),
        *(f"1,{s['Q'] // 32},{up},32", up, s["L"], f"3,{s['R']}", f"3,{s['R']}"),
        *(f"2,{s['P']},{s['L']}", f"2,4,1,{s['L']}", f"2,4,1,{s['R']}", 3),
        *(1, 1, down, 1, 1, up, 1, 1),
    ]
    b = "DT_BF16"
    dtypes = [
        *(b, "INT8", "FLOAT", b, b, "INT8", "FLOAT", b, b, b, b, b, b, "INT32"),
        *(b, "INT8", "INT32", b, "INT8", "INT32", b, b),
    ]
    outputs = f"3,2,{s['L']};2,4,1,{s['L']};3,2,{s['R']};2,4,1,{s['R']};3,{s['Q']}"
    cells = (";".join(map(str, inputs)), ";".join(dtypes), outputs, ";".join([b] * 5))
    return case_of("mla_preprocess_0_mix_aic", *cells)


def unblocked(weight):
    """(1, K / 32, N, 32) -> (N, K), element by element."""
    _, blocks, columns, width = weight.shape
    plain = weight.new_empty(columns, blocks * width)
    for block in range(blocks):
        for inner in range(width):
            plain[:, block * width + inner] = weight[0, block, :, inner]
    return plain


def product(torch, x, weight, scale, offset, bias, descale):
    """Compute with whole numbers, like the cube unit."""
    quantised = (x.double() / scale.double() + offset.double()).round().clamp(-128, 127).long()
    return (quantised @ unblocked(weight).long().t() + bias.long()).double() * descale.double()


def turned(torch, x, cos, sin):
    half = x.shape[-1] // 2
    number = torch.complex(x[..., :half], x[..., half:])
    number = number * torch.complex(cos[..., :half].double(), sin[..., :half].double())
    return torch.cat((number.real, number.imag), -1)


def norm(torch, x, gamma):
    return torch.nn.functional.rms_norm(x, gamma.shape, gamma.double(), 1e-6)


def test_mla_preprocess(torch, case_of, build, launch):
    case = mla_case(case_of)
    args = (call := build(case, wide=True)).args
    mixed = product(torch, args[0], args[1], *args[14:17], args[2])
    new, key, query = mixed.split([512, 64, 32], -1)
    query = norm(torch, query, args[3]) + args[4].double()
    actual = launch(case, call)
    torch.testing.assert_close(actual[4].double(), query, rtol=1e-4, atol=1e-4)
    # From here on with the kernel's own rounding before each further quantisation.
    spread = product(torch, actual[4], args[5], *args[17:20], args[6]).view(3, 2, 80)
    plain, rotated = spread.split([16, 64], -1)
    absorbed = torch.stack([plain[:, n] @ args[10][n].double() for n in range(2)], 1)
    cos, sin = args[8], args[9]
    correct = {0: absorbed, 2: turned(torch, rotated, cos[:, None], sin[:, None])}
    for position, expected in correct.items():
        torch.testing.assert_close(actual[position].double(), expected, rtol=1e-4, atol=1e-4)
    rows = {1: norm(torch, new, args[7]), 3: turned(torch, key, cos, sin)}
    for position, expected in rows.items():
        for place, row in zip(args[13].tolist(), expected, strict=True):
            cached = actual[position][place // 4, place % 4, 0]
            torch.testing.assert_close(cached.double(), row, rtol=1e-4, atol=1e-4)


def test_mla_preprocess_returns_no_inner_output_if_its_row_has_none(torch, case_of, build, launch):
    case = mla_case(case_of)
    *given, inner = case.outputs
    alone = replace(case, outputs=(*given, replace(inner, shape=None)))
    call, whole = build(alone), build(case)
    assert call.kwargs["enable_inner_out"] is False and call.kwargs["inner_out"].numel() == 0
    actual, correct = launch(alone, call), launch(case, whole)
    assert actual[4] is None
    torch.testing.assert_close(actual[:4], correct[:4])
    columns = find_operator(case.kernel_type).runtime(alone)
    assert columns["Runtime enable_inner_out"] == "False"


@pytest.mark.fast
def test_mla_preprocess_fills_in_missing_runtime_columns(case_of):
    case = mla_case(case_of)
    columns = find_operator(case.kernel_type).runtime(case)
    assert columns == {
        "Runtime num_tokens": "3",
        "Runtime hidden_size": "64",
        "Runtime local_num_heads": "2",
        "Runtime q_lora_rank": "32",
        "Runtime kv_lora_rank": "512",
        "Runtime qk_nope_head_dim": "16",
        "Runtime qk_rope_head_dim": "64",
        "Runtime block_size": "4",
        "Runtime cache_mode": "krope_ctkv",
        "Runtime quant_mode": "per_tensor_quant_asymm",
        "Runtime weight_format": "ND",
        "Runtime enable_inner_out": "True",
        "Runtime weight_quantized": "True",
        "Runtime metadata_completeness": "runtime_values",
    }


def prolog_case(case_of, mode):
    """3 tokens of 64, 2 heads of 128 + 64, a query rank of 96, latents of 512, 2 pages of 16."""
    t, h, q, n, p, lat, r = 3, 64, 96, 2, 128, 512, 64
    up, down = n * (p + r), lat + r
    shapes = [f"{t},{h}", f"{h},{q}", f"{q},{up}", f"{n},{p},{lat}", f"{h},{down}", q, lat]
    shapes += [f"{t},{r}", f"{t},{r}", t, f"2,16,1,{lat}", f"2,16,1,{r}"]
    real, wide = "DT_BF16", "DT_BF16" if mode == "bf16" else "INT8"
    cache = "INT8" if mode == "cache" else real
    dtypes = [wide, wide, wide, real, wide, *[real] * 4, "INT64", cache, real]
    if mode != "bf16":
        shapes += [f"{t},1", f"1,{q}", f"1,{up}", f"1,{down}"]
        dtypes += ["FLOAT"] * 4
    if mode == "cache":
        shapes, dtypes = [*shapes, f"1,{lat}"], [*dtypes, "FLOAT"]
    steps = f"{t},{n},1" if mode == "cache" else "1"
    outputs = f"{t},{n},{lat};{t},{n},{r};2,16,1,{lat};2,16,1,{r};{steps}"
    written = ";".join((cache, real, cache, real, "FLOAT"))
    return case_of("MlaPrologV2", ";".join(map(str, shapes)), ";".join(dtypes), outputs, written)


def third(case, norm):
    """Return a case of version 3 from one of version 2, with the outputs of the norm if any."""
    *tensors, places, latents, keys = case.inputs[:12]
    moved = (*tensors, latents, keys, places, *case.inputs[12:])
    empty = replace(case.outputs[4], shape=None)
    is_int8 = case.inputs[0].dtype == "INT8"
    more = [empty, empty]
    if norm:
        more[0] = replace(empty, shape=(3, 96), dtype="INT8" if is_int8 else "DT_BF16")
        more[1] = replace(empty, shape=(3, 1)) if is_int8 else empty
    outputs = (*case.outputs[:4], empty, *more)
    return replace(case, kernel_type="MlaPrologV3", inputs=moved, outputs=outputs)


@pytest.mark.parametrize("mode", ["bf16", "int8"])
def test_third_prolog_equals_the_second_and_returns_the_norm(torch, case_of, build, launch, mode):
    second = prolog_case(case_of, mode)
    case = third(second, norm=True)
    op = find_operator("MlaPrologV3")
    assert (
        op.rejection_reason(case, "npu") == op.rejection_reason(third(second, False), "npu") == ""
    )
    expected, found = launch(second, build(second)), launch(case, call := build(case))
    for mine, other in zip(found[:4], expected[:4], strict=True):
        torch.testing.assert_close(mine, other)
    x, down, *_, gamma = call.args[:6]
    query = x.double() @ down.double()
    if mode == "int8":
        query = query * call.kwargs["dequant_scale_x"] * call.kwargs["dequant_scale_w_dq"]
    norm = torch.nn.functional.rms_norm(query, gamma.shape, gamma.double(), 1e-5)
    scales = found[6].double() if mode == "int8" else 1
    torch.testing.assert_close(found[5].double() * scales, norm, rtol=0.02, atol=0.05)
    assert launch(case, build(third(second, False)))[4:] == (None, None, None)


def test_third_prolog_packs_rows_as_sparse_attention_reads_them(torch, case_of, build, launch):
    plain = third(prolog_case(case_of, "int8"), norm=True)
    row = replace(plain.inputs[9], shape=(2, 16, 1, 656), dtype="INT8")
    empty = replace(plain.inputs[10], shape=None)
    inputs, outputs = list(plain.inputs), list(plain.outputs)
    inputs[9:11], outputs[2:4] = (row, empty), (row, empty)
    packed = replace(plain, inputs=tuple(inputs), outputs=tuple(outputs))
    op = find_operator("MlaPrologV3")
    assert op.rejection_reason(packed, "npu") == ""
    call = build(packed)
    *tensors, latents, keys = call.args
    assert keys.shape == (0,)
    assert (call.kwargs["kv_cache_quant_mode"], call.kwargs["ckvkr_repo_mode"]) == (3, 1)
    caches = [torch.zeros((2, 16, 1, size), dtype=torch.bfloat16) for size in (512, 64)]
    expected = op.run_reference(torch, *tensors, *caches, **call.kwargs)
    found = launch(packed, call)
    torch.testing.assert_close(found[0], expected[0])
    assert found[4] is None
    for place in call.kwargs["cache_index"].tolist():
        one = latents.view(32, 656)[place]
        scales = one[640:].view(torch.float32).repeat_interleave(128)
        read = one[:512].float() * scales
        latent = caches[0].view(32, 512)[place].float()
        torch.testing.assert_close(read, latent, rtol=0.02, atol=0.02)
        assert torch.equal(one[512:640].view(torch.bfloat16), caches[1].view(32, 64)[place])
    absent = [Slot(None, "DT_UNDEFINED", "NULL")] * 4
    assert "has_k_nope_clip_alpha" in op.rejection_reason(
        replace(plain, inputs=(*plain.inputs, *absent, replace(empty, shape=(1,)))), "npu"
    )


def test_third_prolog_quantises_queries_with_an_int8_cache(torch, case_of, build, launch):
    second = prolog_case(case_of, "cache")
    case = third(second, norm=False)
    scale = replace(second.inputs[16], shape=(1,))
    inputs = (*case.inputs[:16], scale, *case.inputs[17:])
    outputs = (*case.outputs[:4], replace(second.outputs[4], shape=(3, 2, 1)), *case.outputs[5:])
    op = find_operator("MlaPrologV3")
    assert "quant_scale_ckv" in op.rejection_reason(replace(case, outputs=outputs), "npu")
    case = replace(case, inputs=inputs, outputs=outputs)
    assert op.rejection_reason(case, "npu") == ""
    call = build(case)
    assert (call.kwargs["kv_cache_quant_mode"], call.kwargs["query_quant_mode"]) == (1, 1)
    assert call.kwargs["cache_mode"] == "PA_BSND"
    queries, _, latents, _, scales, *_ = launch(case, call)
    assert (queries.dtype, latents.dtype, scales.shape) == (torch.int8, torch.int8, (3, 2, 1))
    assert queries.abs().amax(-1).tolist() == [[127, 127]] * 3


def whole(torch, x):
    """Numbers as INT8 and the scale of each row, element by element."""
    rows = x.flatten(0, -2)
    scales = torch.tensor([[float(row.abs().max()) / 127] for row in rows], dtype=torch.float64)
    return (rows / scales).round().view(x.shape), scales.view(*x.shape[:-1], 1)


@pytest.mark.parametrize("mode", ["bf16", "int8", "cache"])
def test_prolog_of_cann_equals_its_formulas(torch, case_of, build, launch, mode):
    case = prolog_case(case_of, mode)
    assert find_operator("MlaPrologV2").rejection_reason(case, "cpu") == ""
    call = build(case)
    x, down, up, absorb, keys_down, gamma, gamma_latent, sin, cos, places, latents, keys = call.args
    by = {name: one for name, one in call.kwargs.items() if name != "cache_mode"}
    query, both = x.double() @ down.double(), x.double() @ keys_down.double()
    if by:
        query = query * by["dequant_scale_x"] * by["dequant_scale_w_dq"]
        both = both * by["dequant_scale_x"] * by["dequant_scale_w_dkv_kr"]
    query = torch.nn.functional.rms_norm(query, gamma.shape, gamma.double(), 1e-5)
    query = query.to(gamma.dtype).double()
    if by:
        integers, scales = whole(torch, query)
        spread = integers @ up.double() * scales * by["dequant_scale_w_uq_qr"]
    else:
        spread = query @ up.double()
    spread = spread.view(3, 2, 192)
    expected_query = torch.stack(
        [spread[:, head, :128] @ absorb[head].double() for head in range(2)], 1
    )
    pairs = torch.complex(spread[..., 128::2], spread[..., 129::2])  # interleaved
    angles = torch.complex(cos[:, :32].double(), sin[:, :32].double())
    pairs = pairs * angles.unsqueeze(1)
    rotated = torch.cat((pairs.real, pairs.imag), -1)
    new = torch.nn.functional.rms_norm(
        both[:, :512], gamma_latent.shape, gamma_latent.double(), 1e-5
    )
    key = torch.complex(both[:, 512::2], both[:, 513::2]) * angles
    key = torch.cat((key.real, key.imag), -1)
    found = launch(case, call)
    close = {"rtol": 0.02, "atol": 0.02 * float(expected_query.abs().max())}
    answer = found[0].double() * (found[4].double() if mode == "cache" else 1)
    torch.testing.assert_close(answer, expected_query, **close)
    torch.testing.assert_close(found[1].double(), rotated, **close)
    for at, place in enumerate(places.tolist()):
        page, row = divmod(place, 16)
        if mode == "cache":  # the first 32 bytes of each row of a page precede
            one = (
                latents[page].view(16, 16, 32)[:, row].flatten().double()
                / by["quant_scale_ckv"].flatten()
            )
            other = keys[page].view(4, 16, 16)[:, row].flatten().double()
        else:
            one, other = latents[page, row, 0].double(), keys[page, row, 0].double()
        torch.testing.assert_close(one, new[at], rtol=0.02, atol=0.05)
        torch.testing.assert_close(other, key[at], rtol=0.02, atol=0.05)
