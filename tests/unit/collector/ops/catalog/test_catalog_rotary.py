"""Rotary positions against turning each pair as a complex number, in float64."""

import pytest

from collector.ops.catalog.rotary._tables import head_size
from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import assert_rejected, gradients

pytestmark = pytest.mark.torch


def turned(torch, a, b, cos, sin):
    """Return (a + ib) times (cos + i sin), as its two parts."""
    number = torch.complex(a.double(), b.double()) * torch.complex(cos.double(), sin.double())
    return number.real, number.imag


def halves_turned(torch, x, cos, sin):
    """Element i and the one half a head further are a pair; cos and sin have a half's width."""
    half = cos.shape[-1]
    parts = turned(torch, x[..., :half], x[..., half : 2 * half], cos, sin)
    return torch.cat((*parts, x[..., 2 * half :].double()), -1)


def neighbours_turned(torch, x, cos, sin):
    """Elements 2i and 2i + 1 are a pair; the results are stored as halves."""
    half = x.shape[-1] // 2
    return torch.cat(turned(torch, x[..., ::2], x[..., 1::2], cos[..., :half], sin[..., :half]), -1)


def close(torch, actual, correct, size=1e-5):
    torch.testing.assert_close(actual.double(), correct, rtol=size, atol=size)


@pytest.mark.parametrize("positions", ["2,1,3,64", "2,1,1,64"])
def test_interleave_rope(torch, case_of, build, launch, positions):
    shapes = f"2,4,3,64;{positions};{positions}"
    case = case_of("InterleaveRope", shapes, ";".join(["FLOAT16"] * 3), "2,4,3,64", "FLOAT16")
    call = build(case, wide=True)
    close(torch, launch(case, call)[0], neighbours_turned(torch, *call.args))


@pytest.mark.parametrize(("tokens", "layout"), [("5", "TND"), ("2,5", "BSND")])
def test_apply_rotary_pos_emb(torch, case_of, build, launch, tokens, layout):
    shapes = [f"{tokens},{heads},64" for heads in (4, 2, 1, 1)]
    case = case_of(
        "ApplyRotaryPosEmb",
        ";".join(shapes),
        "FLOAT;FLOAT;FLOAT;FLOAT",
        ";".join(shapes[:2]),
        "FLOAT;FLOAT",
    )
    query, key, cos, sin = (call := build(case)).args
    assert call.kwargs["layout"] == layout
    half = [each[..., :32] for each in (cos, sin)]
    correct = [halves_turned(torch, x, *half) for x in (query, key)]
    actual = launch(case, call)
    assert actual[0] is query and actual[1] is key
    for tensor, expected in zip(actual, correct, strict=True):
        close(torch, tensor, expected)


def test_the_positions_are_rotations(torch, case_of, build):
    case = case_of(
        "InterleaveRope", "4,2,1,64;4,1,1,64;4,1,1,64", "DT_BF16;DT_BF16;DT_BF16", "N/A", "N/A"
    )
    _, cos, sin = build(case, wide=True).args
    torch.testing.assert_close(cos.square() + sin.square(), torch.ones_like(cos))


@pytest.mark.parametrize("size", [16, 8], ids=["whole", "partial"])
def test_triton_rope(torch, case_of, build, launch, size):
    shapes = f"6,4,16;6,2,16;40,{size};6"
    dtypes = "FLOAT;FLOAT;FLOAT;INT32"
    case = case_of("_triton_rope", shapes, dtypes, "6,4,16;6,2,16", "FLOAT;FLOAT")
    positions, query, key, table, head, rotary, _ = (call := build(case)).args
    assert (head, rotary) == (16, size)
    cos, sin = table[positions.long()].unsqueeze(1).split(size // 2, -1)
    correct = [halves_turned(torch, x, cos, sin) for x in (query, key)]
    for tensor, expected in zip(launch(case, call), correct, strict=True):
        close(torch, tensor, expected)


def test_triton_rope_siso(torch, case_of, build, launch):
    case = case_of("_triton_rope_siso", "6,4,16;6,8;6,8", "FLOAT;FLOAT;FLOAT", "6,4,16", "FLOAT")
    x, cos, sin = (call := build(case)).args
    correct = halves_turned(torch, x, cos[:, None, :4], sin[:, None, :4])
    close(torch, launch(case, call)[0], correct)


@pytest.mark.parametrize(
    ("rotary", "head"), [("16", 16), ("12", 16), ("40,16", 16)], ids=["whole", "partial", "table"]
)
def test_split_qkv_rmsnorm_rope(torch, case_of, build, launch, rotary, head):
    case = case_of(
        "split_qkv_rmsnorm_rope_kernel",
        f"3,96;{rotary}",
        "FLOAT;FLOAT",
        "3,64;3,16;3,16",
        "FLOAT;FLOAT;FLOAT",
    )
    named = (call := build(case)).kwargs
    assert named["head_dim"] == head
    half = named["cos_sin_cache"].shape[1] // 2
    assert len(named["cos_sin_cache"]) == (40 if "," in rotary else 2048)
    cos, sin = named["cos_sin_cache"][named["positions"]].unsqueeze(1).split(half, -1)
    query, key, value = named["input"].split([64, 16, 16], -1)
    actual = launch(case, call)
    for x, weight, tensor in ((query, "q_weight", actual[0]), (key, "k_weight", actual[1])):
        heads = x.double().unflatten(-1, (-1, head))
        normal = torch.nn.functional.rms_norm(heads, (head,), named[weight].double(), 1e-6)
        close(torch, tensor, halves_turned(torch, normal, cos, sin).flatten(-2))
    torch.testing.assert_close(actual[2], value)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("queries", "keys", "rotary", "head"),
    [(512, 128, 128, 128), (128, 64, 24, 32), (768, 64, 64, 64), (96, 64, 33, 0)],
)
def test_head_size_is_that_of_its_rotation_or_the_next_divisor(queries, keys, rotary, head):
    assert head_size(queries, keys, rotary) == head


@pytest.mark.parametrize("named", [True, False], ids=["with x", "without x"])
def test_rotary_gradient_requests_only_the_outputs_of_the_row(torch, case_of, named):
    from tests.unit.collector.ops.conftest import CpuMaker

    x, dtype = ("6,1,4,16", "FLOAT") if named else ("", "DT_UNDEFINED")
    grads = "6,1,1,16;6,1,1,16" if named else ";"
    case = case_of(
        "RotaryPositionEmbeddingGrad",
        f"6,1,4,16;6,1,1,16;6,1,1,16;{x}",
        f"FLOAT;FLOAT;FLOAT;{dtype}",
        f"6,1,4,16;{grads}",
        "FLOAT;FLOAT;FLOAT",
    )
    op = find_operator(case.kernel_type)
    call = op.npu.build(case, CpuMaker(torch))
    dy, x, cos, sin = call.args
    assert cos.requires_grad is sin.requires_grad is named
    assert (x is dy) is not named
    actual = op.npu.run(lambda dy, x, cos, sin: (dy, cos, sin), *call.args)
    assert [tensor is None for tensor in actual] == [False, not named, not named]


def rotary(torch, x, cos, sin):
    """Rotate each pair (i, i + half) in its plane."""
    half = x.shape[-1] // 2
    first = x[..., :half] * cos[..., :half] - x[..., half:] * sin[..., :half]
    second = x[..., half:] * cos[..., half:] + x[..., :half] * sin[..., half:]
    return torch.cat((first, second), -1)


def test_rotary_position_embedding(torch, case_of, build, launch):
    shapes = "6,1,4,16;6,1,1,16;6,1,1,16"
    case = case_of("RotaryPositionEmbedding", shapes, "FLOAT;FLOAT;FLOAT", "6,1,4,16", "FLOAT")
    call = build(case)
    torch.testing.assert_close(launch(case, call)[0], rotary(torch, *call.args))


def test_rotary_position_embedding_grad(torch, case_of, build, launch):
    positions = "6,1,1,16;6,1,1,16"
    case = case_of(
        "RotaryPositionEmbeddingGrad",
        f"6,1,4,16;{positions};6,1,4,16",
        "FLOAT;FLOAT;FLOAT;FLOAT",
        f"6,1,4,16;{positions}",
        "FLOAT;FLOAT;FLOAT",
    )
    dy, cos, sin, x = (call := build(case)).args
    expected = gradients(torch, lambda *t: rotary(torch, *t), (x, cos, sin), dy)
    for actual, correct in zip(launch(case, call), expected, strict=True):
        torch.testing.assert_close(actual, correct)


def test_rotary_position_embedding_grad_without_x(torch, case_of, build, launch):
    case = case_of(
        "RotaryPositionEmbeddingGrad",
        "6,1,4,16;6,1,1,16;6,1,1,16;",
        "FLOAT;FLOAT;FLOAT;DT_UNDEFINED",
        "6,1,4,16;;",
        "FLOAT;FLOAT;FLOAT",
    )
    dy, cos, sin = (call := build(case)).args
    x = torch.zeros_like(dy)
    (expected,) = gradients(torch, lambda x: rotary(torch, x, cos, sin), (x,), dy)
    dx, dcos, dsin = launch(case, call)
    torch.testing.assert_close(dx, expected)
    assert dcos is dsin is None


def test_last_dimensions_of_a_head_are_rotated_in_place_by_pairs(torch, case_of, build, launch):
    shapes = "3,1,2,16;3,1,1,8;3,1,1,8"
    case = case_of("InplacePartialRotaryMul", shapes, "FLOAT;FLOAT;FLOAT", "3,1,2,16", "FLOAT")
    x, cos, sin = (call := build(case)).args
    before, (after,) = x.clone(), launch(case, call)
    assert after is x
    pairs = [tensor[..., part::2] for tensor in (before[..., 8:], cos, sin) for part in (0, 1)]
    a, b, *angles = pairs
    assert torch.equal(angles[0], angles[1]) and torch.equal(angles[2], angles[3])
    expected = torch.stack(turned(torch, a, b, angles[0], angles[2]), -1).flatten(-2)
    torch.testing.assert_close(x[..., 8:].double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(x[..., :8], before[..., :8])


@pytest.mark.fast
@pytest.mark.parametrize(
    ("reported", "head"), [("128", 128), ("32", 0), ("96", 0), ("128.0", 0), ("x", 0)]
)
def test_runtime_column_may_give_a_partly_rotated_head_size(reported, head):
    assert head_size(512, 128, 64, reported) == head


def test_queries_and_keys_are_rotated_by_a_table_of_positions(torch, case_of, build, launch):
    cells = ("6;6,128;6,64;20,64", "INT64;FLOAT;FLOAT;FLOAT", "6,128;6,64", "FLOAT;FLOAT")
    call = build(case := case_of("RopeWithSinCosCache", *cells))
    positions, query, key, table, size = call.args
    assert size == 64 and int(positions.max()) < 20
    cos, sin = table[positions].unsqueeze(1).chunk(2, -1)
    for x, turned in zip((query, key), launch(case, call), strict=True):
        a, b = x.view(6, -1, 64).chunk(2, -1)
        expected = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        torch.testing.assert_close(turned.view(6, -1, 64), expected, rtol=1e-5, atol=1e-6)
    op = find_operator("RopeWithSinCosCache")
    assert op.flops(case) == 3 * 6 * (128 + 64)
    for wrong, words in (
        ("3,6;6,128;6,64;20,64", "'positions'"),
        ("6;6,100;6,64;20,64", "'query'"),
        ("6;6,128;5,64;20,64", "'key'"),
    ):
        assert_rejected(case_of(op.kernel, wrong, *cells[1:]), "npu", words)


@pytest.mark.parametrize(("gated", "biased", "size"), [(0, True, 16), (1, False, 12)])
def test_a_projection_is_split_and_rotated_by_three_positions(
    torch, case_of, build, launch, gated, biased, size
):
    width, bias = 64 + 64 * gated + 2 * 32, "16" if biased else ""
    case = case_of(
        "split_qkv_rmsnorm_mrope_kernel",
        f"3,{width};16;{bias};16;{bias};3,3,{size}",
        ";".join(["FLOAT"] * 6),
        f"3,64;3,32;3,32;{'3,64' if gated else ''}",
        ";".join(["FLOAT"] * 4),
    )
    assert find_operator(case.kernel_type).rejection_reason(case, "cpu") == ""
    call = build(case)
    named, half = call.kwargs, size // 2
    x, wide = named["qkv"].double(), 16 * (1 + gated)
    heads = x.view(3, -1, 16)
    query, gate = [heads[:, at : 4 * (1 + gated) : 1 + gated] for at in (0, gated)]
    key, value = x[:, 4 * wide : 4 * wide + 32].view(3, 2, 16), x[:, -32:]
    sections = named["mrope_section"]
    place = [
        1 if i % 3 == 1 and i < 3 * sections[1] else 2 if i % 3 == 2 else 0 for i in range(half)
    ]
    assert [place.count(i) for i in range(3)] == sections
    tables = torch.stack([named["cos_sin"][p][:, i::half] for i, p in enumerate(place)], -1)
    cos, sin = tables[:, :1].double(), tables[:, 1:].double()
    found = launch(case, call)
    for name, part, actual in (("q", query, found[0]), ("k", key, found[1])):
        weight = named[f"{name}_weight"].double()
        normal = torch.nn.functional.rms_norm(part, (16,), weight, 1e-6)
        normal = normal if not biased else normal + named[f"{name}_bias"]
        a, b = normal[..., :half], normal[..., half:size]
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin, normal[..., size:]), -1)
        torch.testing.assert_close(actual.double(), turned.flatten(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[2].double(), value)
    if gated:
        torch.testing.assert_close(found[3].double(), gate.flatten(1))


def test_a_norm_of_all_heads_follows_the_split_by_its_mean_squares(torch, case_of, build, launch):
    split = case_of(
        "_split_qkv_and_compute_local_qk_var_kernel",
        *("3,96", "FLOAT", "3,64;3,16;3,16;3,2", "FLOAT;FLOAT;FLOAT;FLOAT"),
    )
    qkv, _ = (call := build(split)).args
    query, key, value, squares = launch(split, call)
    assert torch.equal(torch.cat((query, key, value), -1), qkv)
    for at, part in enumerate((qkv[:, :64], qkv[:, 64:80])):
        torch.testing.assert_close(squares[:, at], (part.norm(dim=-1) ** 2) / part.shape[-1])
    cells = ";".join(["FLOAT"] * 7), "3,64;3,16", "FLOAT;FLOAT"
    norm = case_of("_apply_global_rmsnorm_kernel", "3,64;3,16;3,8;3,8;64;16;3,2", *cells)
    *parts, cos, sin, of_q, of_k, squares, head = (call := build(norm)).args
    assert head == 8
    for at, (x, weight) in enumerate(zip(parts, (of_q, of_k), strict=True)):
        normal = x.double() * weight / (squares[:, at : at + 1].double() + 1e-6).sqrt()
        turned = halves_turned(torch, normal.view(3, -1, 8), cos[:, None, :4], sin[:, None, :4])
        close(torch, launch(norm, call)[at], turned.flatten(1))


@pytest.mark.fast
def test_projections_whose_parts_do_not_fit_are_refused(case_of):
    real = ";".join(["DT_BF16"] * 6)
    for kernel, inputs, dtypes, outputs, written in (
        # more than queries, keys and values, and no gate
        ("split_qkv_rmsnorm_mrope_kernel", "3,320;32;;32;;3,3,16", real, "3,128;3,32;3,32;", "4"),
        # a gate of one dimension
        ("split_qkv_rmsnorm_mrope_kernel", "3,192;32;;32;;3,3,16", real, "3,128;3,32;3,32;0", "4"),
        # a bias for queries alone
        ("split_qkv_rmsnorm_mrope_kernel", "3,192;32;32;32;;3,3,16", real, "3,128;3,32;3,32;", "4"),
        # one position for each token
        ("split_qkv_rmsnorm_mrope_kernel", "3,192;32;;32;;1,3,16", real, "3,128;3,32;3,32;", "4"),
        (
            "_split_qkv_and_compute_local_qk_var_kernel",
            *("3,760", "DT_BF16", "3,512;3,128;3,128;3,2", "4"),
        ),
        (
            "_apply_global_rmsnorm_kernel",
            "3,512;3,128;3,640;3,640;512;128;3,2",  # more than a head is rotated
            *(f"{real};FLOAT", "3,512;3,128", "2"),
        ),
    ):
        case = case_of(kernel, inputs, dtypes, outputs, ";".join(["DT_BF16"] * int(written)))
        assert "expected" in find_operator(kernel).rejection_reason(case, "npu"), inputs
