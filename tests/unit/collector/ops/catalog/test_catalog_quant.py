"""Quantised operators against float64 and integer arithmetic, group by group."""

import pytest

from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import CpuMaker

pytestmark = pytest.mark.torch

NONE = "DT_UNDEFINED"


def rows_as_int8(torch, wide):
    scale = wide.abs().amax(-1) / 127
    return (wide / scale.unsqueeze(-1)).round(), scale


@pytest.mark.parametrize("smooth", ["", ";16"])
def test_each_row_is_quantised_by_its_maximum(torch, case_of, build, launch, smooth):
    dtypes = "DT_BF16;DT_BF16" if smooth else "DT_BF16"
    case = case_of("DynamicQuant", f"2,3,16{smooth}", dtypes, "2,3,16;2,3", "INT8;FLOAT")
    call = build(case, wide=True)
    before = call.args[0].clone()
    y, scale = launch(case, call)
    wide = before if call.args[1] is None else before * call.args[1]
    expected, scales = rows_as_int8(torch, wide)
    assert torch.equal(y.to(wide.dtype), expected)
    assert torch.equal(y.amax(-1).maximum(-y.amin(-1)), torch.full((2, 3), 127, dtype=torch.int8))
    torch.testing.assert_close(scale, scales)
    assert torch.equal(call.args[0], before)


def test_each_expert_has_smoothing_scales(torch, case_of, build, launch):
    cells = ("6,16;4,16;4", "DT_BF16;DT_BF16;INT32", "6,16;6", "INT8;FLOAT")
    case = case_of("DynamicQuant", *cells)
    call = build(case, wide=True)
    x, smooth = call.args
    expert = torch.tensor([0, 0, 1, 1, 2, 3])  # 6 rows of 4 experts: 2, 2, 1, 1
    y, scale = launch(case, call)
    expected, scales = rows_as_int8(torch, x * smooth[expert])
    assert torch.equal(y.float(), expected)
    torch.testing.assert_close(scale, scales)
    ends = find_operator("DynamicQuant").npu.build(case, CpuMaker(torch)).kwargs["group_index"]
    assert ends.tolist() == [2, 4, 5, 6]


@pytest.mark.parametrize("kernel", ["AscendQuantV2", "AscendQuantV2Aicore"])
@pytest.mark.parametrize("cells", [("6,16;16;16", 3), ("6,16;1", 2), ("2,3,16;1,1,16", 2)])
def test_static_quantisation_multiplies_by_the_scale_and_adds_the_offset(
    torch, case_of, build, launch, kernel, cells
):
    inputs, count = cells
    out = inputs.split(";")[0]
    case = case_of(kernel, inputs, ";".join(["FLOAT"] * count), out, "INT8")
    call = build(case)
    x, scale, offset = call.args
    expected = (x * scale + (0 if offset is None else offset)).round().clamp(-128, 127)
    assert torch.equal(launch(case, call)[0].float(), expected)
    tail = find_operator(kernel).npu.build(case, CpuMaker(torch)).args[3:]
    assert tail == (torch.qint8, -1, False)


@pytest.mark.parametrize("activation", ["6", "6,1"])
def test_sums_are_dequantised_gated_and_quantised(torch, case_of, build, launch, activation):
    cells = (f"6,64;64;{activation};64;32", "INT32;FLOAT;FLOAT;INT32;FLOAT", "6,32;6", "INT8;FLOAT")
    case = case_of("DequantSwigluQuant", *cells)
    call = build(case)
    (x,), given = call.args, call.kwargs
    wide = (x + given["bias"]).double() * given["weight_scale"]
    wide = wide * given["activation_scale"].reshape(6, 1)
    y, scale = launch(case, call)
    check_gated(torch, wide, given["quant_scale"], y, scale)


def test_each_group_has_quantisation_scales(torch, case_of, build, launch):
    dtypes = f"INT32;FLOAT;FLOAT;{NONE};FLOAT;{NONE};INT64"
    case = case_of("DequantSwigluQuant", "6,128;4,128;6;;4,64;;4", dtypes, "6,64;6", "INT8;FLOAT")
    call = build(case)
    (x,), given = call.args, call.kwargs
    group = torch.tensor([0, 0, 1, 1, 2, 3])
    wide = x.double() * given["weight_scale"][group] * given["activation_scale"].unsqueeze(-1)
    y, scale = launch(case, call)
    check_gated(torch, wide, given["quant_scale"][group], y, scale)
    index = (
        find_operator("DequantSwigluQuant").npu.build(case, CpuMaker(torch)).kwargs["group_index"]
    )
    assert index.tolist() == [2, 2, 1, 1]


def check_gated(torch, wide, smooth, y, scale):
    half = wide.shape[-1] // 2
    gate, value = wide[:, :half], wide[:, half:]
    expected, scales = rows_as_int8(torch, gate / (1 + (-gate).exp()) * value * smooth)
    assert float((y.double() - expected).abs().max()) <= 1
    torch.testing.assert_close(scale.double(), scales, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(
    ("cells", "flops", "traffic"),
    [
        # 96 elements, 3 each; 96 * 2 in, 96 + 6 * 4 out
        (("DynamicQuant", "6,16", "DT_BF16", "6,16;6", "INT8;FLOAT"), 288, 312),
        # 96 elements, 3 each; (96 + 16 + 16) * 2 in, 96 out
        (("AscendQuantV2", "6,16;16;16", ";".join(["DT_BF16"] * 3), "6,16", "INT8"), 288, 352),
        # 384 of x with 2 scales each, 192 of y with 8; (384 + 64 + 6) * 4 in, 192 + 6 * 4 out
        (
            (
                *("DequantSwigluQuant", "6,64;1,64;6,1;;;;"),
                *(";".join(["INT32", "FLOAT", "FLOAT", *[NONE] * 4]), "6,32;6", "INT8;FLOAT"),
            ),
            2304,
            2032,
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_costs(case_of, cells, flops, traffic):
    case = case_of(*cells)
    op = find_operator(case.kernel_type)
    op.check(case, "npu")
    assert (op.flops(case), op.traffic(case)) == (flops, traffic)


def test_asymmetric_quantisation_maps_the_range_of_each_row(torch, case_of, build, launch):
    for smooth in ("", ";16"):
        dtypes = ";".join(["DT_BF16"] * (1 + bool(smooth)))
        cells = (f"6,16{smooth}", dtypes, "6,16;6;6", "INT8;FLOAT;FLOAT")
        call = build(case := case_of("DynamicQuantV2", *cells), wide=True)
        x, factors = call.args
        wide = x if factors is None else x * factors
        y, scale, offset = launch(case, call)
        assert torch.equal(y.amax(-1), torch.full((6,), 127, dtype=torch.int8))
        assert torch.equal(y.amin(-1), torch.full((6,), -128, dtype=torch.int8))
        back = (y.float() - offset.unsqueeze(-1)) * scale.unsqueeze(-1)
        assert float(((back - wide).abs() / scale.unsqueeze(-1)).max()) <= 0.501


def test_shared_experts_are_one_group_with_scales_of_one_dimension(torch, case_of, build, launch):
    shapes, dtypes = "6,128;128;6;;;;1", "INT32;FLOAT;FLOAT;;;;INT64"
    case = case_of("DequantSwigluQuant", shapes, dtypes, "6,64;6", "INT8;FLOAT")
    call = build(case)
    scale, rows = (call.kwargs[name] for name in ("weight_scale", "activation_scale"))
    gate, value = (call.args[0] * scale * rows.view(-1, 1)).chunk(2, -1)
    wide = torch.nn.functional.silu(gate) * value
    found, scales = launch(case, call)
    torch.testing.assert_close(scales, wide.abs().amax(-1) / 127)
    assert (found - wide / scales.view(-1, 1)).abs().max() <= 0.51


def test_experts_of_four_bits_are_activated_and_quantised_row_by_row(torch, case_of, build, launch):
    case = case_of("_swiglu_quant_kernel", "12,64;4", "FLOAT;INT64", "12,32;12", "INT8;FLOAT")
    call = build(case)
    x, counts = call.args
    assert counts.tolist() == [3, 3, 3, 3]
    wide = x[:, :32] * torch.sigmoid(x[:, :32]) * x[:, 32:]
    found, scales = launch(case, call)
    torch.testing.assert_close(scales, wide.abs().amax(-1) / 127)
    assert (found - wide / scales.view(-1, 1)).abs().max() <= 0.51
