"""MLA's preparation, up to its caches, against its formulas."""

from dataclasses import replace

import pytest

from collector.ops.registry import find

pytestmark = pytest.mark.torch

SIZES = {"T": 3, "H": 64, "N": 2, "Q": 32, "L": 512, "P": 16, "R": 64, "C": 2, "B": 4}


def mla_case(case_of):
    """T tokens of H, N heads of P + R, a query rank Q, latent keys of L, C blocks of B."""
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
    """With whole numbers, as the cube unit has it."""
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
    came = launch(case, call)
    torch.testing.assert_close(came[4].double(), query, rtol=1e-4, atol=1e-4)
    # From here on with the kernel's own rounding of what it quantises next.
    spread = product(torch, came[4], args[5], *args[17:20], args[6]).view(3, 2, 80)
    plain, rotated = spread.split([16, 64], -1)
    absorbed = torch.stack([plain[:, n] @ args[10][n].double() for n in range(2)], 1)
    cos, sin = args[8], args[9]
    wanted = {0: absorbed, 2: turned(torch, rotated, cos[:, None], sin[:, None])}
    for position, expected in wanted.items():
        torch.testing.assert_close(came[position].double(), expected, rtol=1e-4, atol=1e-4)
    rows = {1: norm(torch, new, args[7]), 3: turned(torch, key, cos, sin)}
    for position, expected in rows.items():
        for place, row in zip(args[13].tolist(), expected, strict=True):
            cached = came[position][place // 4, place % 4, 0]
            torch.testing.assert_close(cached.double(), row, rtol=1e-4, atol=1e-4)


def test_mla_preprocess_gives_no_inner_output_where_its_row_has_none(torch, case_of, build, launch):
    case = mla_case(case_of)
    *given, inner = case.outputs
    alone = replace(case, outputs=(*given, replace(inner, shape=None)))
    call, whole = build(alone), build(case)
    assert call.kwargs["enable_inner_out"] is False and call.kwargs["inner_out"].numel() == 0
    came, wanted = launch(alone, call), launch(case, whole)
    assert came[4] is None
    torch.testing.assert_close(came[:4], wanted[:4])
    columns = find(case.kernel_type).runtime(alone)
    assert columns["Runtime enable_inner_out"] == "False"


@pytest.mark.fast
def test_mla_preprocess_names_what_a_row_does_not(case_of):
    case = mla_case(case_of)
    columns = find(case.kernel_type).runtime(case)
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
