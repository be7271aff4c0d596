"""Products by expert against one product for each token with the weight of its expert."""

from dataclasses import replace

import pytest

from collector.codec.errors import CaseRejected
from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import CpuMaker, assert_rejected, by_row, four_bits

pytestmark = pytest.mark.torch

NONE = "DT_UNDEFINED"
# The slots: x, weight, bias, scale, offset, antiquant scale and offset, group list, token scale.
SLOTS = {"bias": 2, "scale": 3, "antiquant_scale": 5, "antiquant_offset": 6}


def grouped(x, weight, output, *, dtypes, token_scale=False, **by_column):
    """Return the cells of a GroupedMatmul of (T, K) and 3 experts."""
    shapes, kinds = [""] * 9, [NONE] * 9
    shapes[0], shapes[1], shapes[7] = x, weight, "3"
    kinds[0], kinds[1], kinds[7] = (*dtypes, "INT64")
    for name, dtype in by_column.items():
        shapes[SLOTS[name]], kinds[SLOTS[name]] = f"3,{output[0].split(',')[1]}", dtype
    if token_scale:
        shapes[8], kinds[8] = x.split(",")[0], "FLOAT"
    return ("GroupedMatmul", ";".join(shapes), ";".join(kinds), *output)


def expert_of(torch, tokens):
    """Tokens are sorted by expert, and distributed evenly over 3."""
    counts = torch.tensor([tokens // 3 + (i < tokens % 3) for i in range(3)])
    return torch.arange(3).repeat_interleave(counts)


def by_token(torch, x, weight, columns):
    """Return sums of each token with its expert's weight in float64, and its expert's columns."""
    expert = expert_of(torch, len(x))
    total = torch.einsum("tk,tkn->tn", x.double(), weight.double()[expert])
    return total, {name: tensor.double()[expert] for name, tensor in columns.items()}


@pytest.mark.parametrize("tokens", [10, 2, 3])
@pytest.mark.parametrize("weight", ["3,32,6", "3,6,32"])
@pytest.mark.parametrize("bias", [{}, {"bias": "FLOAT"}])
def test_tokens_are_multiplied_by_the_weight_of_their_expert(
    torch, case_of, build, launch, tokens, weight, bias
):
    output = (f"{tokens},6", "FLOAT")
    cells = grouped(f"{tokens},32", weight, output, dtypes=("FLOAT", "FLOAT"), **bias)
    call = build(case := case_of(*cells))
    columns = {name: call.kwargs[name] for name in bias}
    total, columns = by_token(torch, *call.args, columns)
    expected = total + columns.get("bias", 0)
    torch.testing.assert_close(launch(case, call)[0].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("output", "options"),
    [
        ("INT32", {}),
        ("INT32", {"bias": "INT32"}),
        ("INT8", {"scale": "INT64"}),
        ("DT_BF16", {"scale": "DT_BF16"}),
        ("DT_BF16", {"scale": "FLOAT"}),
        ("DT_BF16", {"scale": "DT_BF16", "token_scale": True}),
        ("FLOAT16", {"scale": "FLOAT", "bias": "INT32", "token_scale": True}),
    ],
)
def test_quantised_tokens_are_summed_exactly(torch, case_of, build, launch, output, options):
    cells = grouped("10,32", "3,32,6", ("10,6", output), dtypes=("INT8", "INT8"), **options)
    call = build(case := case_of(*cells), wide=True)
    given = dict(call.kwargs)
    if output == "INT8":
        given["scale"] = given["scale"].to(torch.int32).view(torch.float32)
    columns = {name: given[name] for name in ("bias", "scale") if name in given}
    total, columns = by_token(torch, *call.args, columns)
    expected = (total + columns.get("bias", 0)) * columns.get("scale", 1)
    if "per_token_scale" in given:
        expected = expected * given["per_token_scale"].unsqueeze(-1)
    if output == "INT8":
        expected = expected.round().clamp(-128, 127)
    torch.testing.assert_close(launch(case, call)[0].double(), expected, rtol=1e-5, atol=1e-6)


def test_int8_weights_are_dequantised(torch, case_of, build, launch):
    columns = {"antiquant_scale": "DT_BF16", "antiquant_offset": "DT_BF16"}
    cells = grouped("10,32", "3,32,6", ("10,6", "DT_BF16"), dtypes=("DT_BF16", "INT8"), **columns)
    call = build(case := case_of(*cells), wide=True)
    x, weight = call.args
    scale, offset = (call.kwargs[name].unsqueeze(1).double() for name in columns)
    expected, _ = by_token(torch, x, (weight + offset) * scale, {})
    torch.testing.assert_close(launch(case, call)[0].double(), expected, rtol=1e-4, atol=1e-5)


def test_npu_call_has_tensor_lists_and_group_ends(torch, case_of):
    cells = grouped(
        *("10,32", "3,6,32", ("10,6", "DT_BF16")),
        dtypes=("INT8", "INT8"),
        scale="DT_BF16",
        token_scale=True,
    )
    call = find_operator("GroupedMatmul").npu.build(case_of(*cells), CpuMaker(torch))
    given = dict(call.kwargs)
    assert given.pop("group_list").tolist() == [4, 7, 10]
    shapes = [tuple(tensor.shape) for (tensor,) in (*call.args, given.pop("scale"))]
    assert shapes == [(10, 32), (3, 32, 6), (3, 6)]
    assert [tuple(tensor.shape) for tensor in given.pop("per_token_scale")] == [(10,)]
    assert given == {
        "group_list_type": 0,
        "group_type": 0,
        "split_item": 3,
        "output_dtype": torch.bfloat16,
    }


@pytest.mark.parametrize(
    ("weight", "format"),
    [("3,2,2,16,32", "FRACTAL_NZ"), ("3,32,64", "FRACTAL_NZ"), ("3,32,64", "ND")],
)
def test_weights_in_blocks_are_read_in_either_spelling(case_of, weight, format):
    op = find_operator("GroupedMatmul")
    cells = grouped(
        *("10,32", weight, ("10,64", "DT_BF16")),
        dtypes=("INT8", "INT8"),
        scale="DT_BF16",
        token_scale=True,
    )
    case = case_of(*cells, f"ND;{format};" + ";".join(["ND"] * 7))
    op.check(case, "npu")
    assert op.flops(case) == 2 * 10 * 32 * 64


def test_weights_without_tokens_are_not_counted_as_read(case_of):
    def traffic(tokens):
        cells = grouped(
            *(f"{tokens},32", "3,32,6", (f"{tokens},6", "FLOAT")), dtypes=("FLOAT", "FLOAT")
        )
        return find_operator("GroupedMatmul").traffic(case_of(*cells))

    one_token = (32 + 6) * 4
    one_weight = 32 * 6 * 4
    assert traffic(1) == one_token + one_weight + 3 * 8
    assert traffic(7) == 7 * one_token + 3 * one_weight + 3 * 8


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"weight": "3,32,2,16"}, "'weight'"),
        ({"dtypes": ("FLOAT", "FLOAT16")}, "'weight'"),
        ({"dtypes": ("INT8", "INT8")}, "'y'"),
        ({"scale": "FLOAT"}, "'scale'"),
        ({"antiquant_offset": "FLOAT"}, "'antiquant_offset'"),
    ],
)
def test_unsupported_grouped_products_are_refused(case_of, change, rule):
    usual = {"weight": "3,32,6", "dtypes": ("FLOAT", "FLOAT")}
    settings = {**usual, **change}
    cells = grouped("10,32", settings.pop("weight"), ("10,6", "FLOAT"), **settings)
    assert_rejected(case_of(*cells), "npu", rule)


def test_an_expert_layer_up_to_its_gate(torch, case_of, build, launch):
    cells = ("10,32;3,32,64;3,64;10;3", "INT8;INT8;FLOAT;FLOAT;INT64", "10,32;10", "INT8;FLOAT")
    call = build(case := case_of("GroupedMatmulSwigluQuant", *cells))
    x, weight, weight_scale, x_scale = call.args
    total, columns = by_token(torch, x, weight, {"scale": weight_scale})
    wide = total * columns["scale"] * x_scale.unsqueeze(-1)
    gate, value = wide[:, :32], wide[:, 32:]
    gated = gate / (1 + (-gate).exp()) * value
    scales = gated.abs().amax(-1) / 127
    y, scale = launch(case, call)
    torch.testing.assert_close(scale.double(), scales, rtol=1e-4, atol=1e-8)
    assert float((y.double() - (gated / scales.unsqueeze(-1)).round()).abs().max()) <= 1


def test_gated_kernel_reads_blocks_under_any_label(torch, case_of):
    stored = []

    class Maker(CpuMaker):
        def stored(self, tensor, format):
            stored.append((tuple(tensor.shape), format))
            return tensor

    op = find_operator("GroupedMatmulSwigluQuant")
    for weight, format in (("3,32,64", "ND"), ("3,2,2,16,32", "FRACTAL_NZ")):
        cells = (f"10,32;{weight};3,64;10;3", "INT8;INT8;FLOAT;FLOAT;INT64")
        formats = f"ND;{format};ND;ND;ND"
        case = case_of(op.kernel, *cells, "10,32;10", "INT8;FLOAT", formats)
        op.check(case, "npu")
        ends = op.npu.build(case, Maker(torch)).kwargs["group_list"]
        assert ends.tolist() == [4, 7, 10]
    assert stored == [((3, 32, 64), "FRACTAL_NZ")] * 2


ENDS = "Runtime group_list_values"


def routed(case, ends):
    """Return the case with the end of each expert's rows."""
    return replace(case, attributes=((ENDS, ends),))


def test_rows_behind_the_last_group_are_not_computed(torch, case_of, build, launch):
    """As after an exchange between ranks, which reserves rows for any routing."""
    cells = grouped("10,32", "3,32,6", ("10,6", "FLOAT"), dtypes=("FLOAT", "FLOAT"))
    case = routed(case_of(*cells), "2,2,5")
    call = build(case)
    x, weight = (tensor.double() for tensor in call.args)
    expected = torch.cat((x[:2] @ weight[0], x[2:5] @ weight[2]))
    out = launch(case, call)[0]
    assert out.shape == (10, 6)
    torch.testing.assert_close(out[:5].double(), expected, rtol=1e-5, atol=1e-5)
    op = find_operator("GroupedMatmul")
    assert op.written(case) == 5
    assert op.written(case_of(*cells)) is None
    assert op.flops(case) == op.flops(case_of(*cells)) // 2
    row_bytes, weight_bytes = 4 * (32 + 6), 4 * 32 * 6
    assert op.traffic(case_of(*cells)) - op.traffic(case) == 5 * row_bytes + weight_bytes


@pytest.mark.parametrize(
    "ends", ["", "2,5", "2,1,5", "2,2,11", "0,0,0", "2,2,-5", "a,b,c", "1,2,3,4"]
)
def test_invalid_group_ends_are_refused(case_of, build, ends):
    cells = grouped("10,32", "3,32,6", ("10,6", "FLOAT"), dtypes=("FLOAT", "FLOAT"))
    with pytest.raises(CaseRejected, match="Runtime group_list_values"):
        build(routed(case_of(*cells), ends))


W4A8 = (
    *("GroupedMatmul", "10,512;3,512,64;3,64;3,2,64;;;;3;10"),
    f"INT8;INT4;FLOAT;UINT64;{';'.join(['DT_UNDEFINED'] * 3)};INT64;FLOAT",
    *("10,64", "DT_BF16"),
)


def signed(number):
    """Of four bits."""
    return number - 16 if number > 7 else number


def test_four_bit_weights_are_multiplied_by_the_scale_of_their_rows(torch, case_of, build, launch):
    for scale in ("3,2,64", "3,1,64", "3,64"):
        cells = [cell.replace("3,2,64", scale) for cell in W4A8]
        call = build(case := case_of(*cells))
        (x, packed), how = call.args, call.kwargs
        assert (packed.dtype, tuple(packed.shape)) == (torch.int32, (3, 512, 8))
        weights = four_bits(torch, packed)
        assert set(weights.unique().tolist()) == set(range(-8, 8))
        whole = weights * by_row(how["scale"].to(torch.int32).view(torch.float32), 512)
        torch.testing.assert_close(how["bias"].double(), 8 * whole.sum(1), rtol=1e-4, atol=1e-5)
        expected, _ = by_token(torch, x, whole, {})
        expected *= how["per_token_scale"].double().unsqueeze(-1)
        (actual,) = launch(case, call)
        torch.testing.assert_close(actual.double(), expected, rtol=1e-2, atol=1e-3)


W4A16 = (
    *("GroupedMatmul", "10,64;3,64,32;;;;3,2,32;3,2,32;3;"),
    f"DT_BF16;INT4;{';'.join([NONE] * 3)};DT_BF16;DT_BF16;INT64;{NONE}",
    *("10,32", "DT_BF16"),
)


def test_four_bit_weights_are_dequantised(torch, case_of, build, launch):
    for scale in ("3,2,32", "3,32"):
        cells = [cell.replace("3,2,32", scale) for cell in W4A16]
        call = build(case := case_of(*cells), wide=True)
        x, packed = call.args
        scales, offsets = (
            by_row(call.kwargs[name], 64) for name in ("antiquant_scale", "antiquant_offset")
        )
        whole = (four_bits(torch, packed) + offsets) * scales
        expected, _ = by_token(torch, x, whole, {})
        torch.testing.assert_close(launch(case, call)[0].double(), expected, rtol=1e-4, atol=1e-4)


def test_an_npu_counts_the_rows_of_four_bits_with_int8_tokens_alone(torch, case_of):
    op = find_operator("GroupedMatmul")
    for cells, groups, kind in ((W4A8, [4, 3, 3], 1), (W4A16, [4, 7, 10], 0)):
        call = op.npu.build(case_of(*cells), CpuMaker(torch))
        assert call.kwargs["group_list"].tolist() == groups
        assert call.kwargs["group_list_type"] == kind


def test_four_bits_take_half_a_byte_in_traffic(case_of):
    op, four = find_operator("GroupedMatmul"), case_of(*W4A8)
    op.check(four, "npu")
    assert four.inputs[1].size_bytes == 3 * 512 * 64 // 2
    assert op.flops(four) == 2 * 10 * 512 * 64
    assert op.traffic(four) == sum(s.size_bytes for s in four.inputs if s.shape) + 10 * 64 * 2


@pytest.mark.parametrize(
    ("row", "changes", "message"),
    [
        (W4A8, {1: "10,128;3,128,64;3,64;3,2,64;;;;3;10"}, "groups == 1 or k == 256 * groups"),
        (W4A8, {1: "10,512;3,64,512;3,64;3,2,64;;;;3;10"}, "'weight'"),
        (W4A8, {1: "10,512;3,512,60;3,60;3,2,60;;;;3;10", 3: "10,60"}, "n % 8 == 0"),
        (W4A8, {1: "10,512;3,512,64;3,64;64;;;;3;10"}, "'scale'"),
        (W4A8, {1: "10,18688;3,18688,64;3,64;3,64;;;;3;10"}, "k <= 18432"),
        (W4A8, {2: W4A8[2].replace("UINT64", "FLOAT")}, "'scale'"),
        (W4A8, {1: "10,512;3,512,64;;3,2,64;;;;3;10"}, "'bias'"),
        (W4A8, {2: W4A8[2].replace("INT8;INT4", "INT4;INT4", 1)}, "INT4 & input 1"),
        (W4A16, {1: W4A16[1].replace("3,2,32", "3,3,32")}, "k % groups == 0"),
        (W4A16, {1: W4A16[1].replace("3,2,32", "3,32", 1)}, "'antiquant_offset'"),
        (W4A16, {5: "ND;FRACTAL_NZ;;;;ND;ND;ND;"}, "FRACTAL_NZ & INT8 tokens"),
    ],
)
def test_unsupported_four_bit_products_are_refused(case_of, row, changes, message):
    cells = [changes.get(i, cell) for i, cell in enumerate(row)]
    formats = [changes[5]] if 5 in changes else []
    assert_rejected(case_of(*cells, *formats), "npu", message)


GATED = (
    *("GroupedMatmulSwigluQuantV2", "10,64;10;3;3,64,64;3,2,64;3,64"),
    *("INT8;FLOAT;INT64;INT4;UINT64;FLOAT", "10,32;10", "INT8;FLOAT"),
)


def test_both_kernels_up_to_the_gate_multiply_four_bits(torch, case_of, build, launch):
    first = (
        *("GroupedMatmulSwigluQuant", "10,64;3,64,64;3,2,64;10;3,64;3"),
        *("INT8;INT4;UINT64;FLOAT;FLOAT;INT64", *GATED[3:]),
    )
    for cells in (first, GATED):
        call = build(case := case_of(*cells))
        x, packed, weight_scale, x_scale = call.args
        weights = four_bits(torch, packed) * by_row(
            weight_scale.to(torch.int32).view(torch.float32), 64
        )
        total, _ = by_token(torch, x, weights, {})
        gate, value = (total * x_scale.unsqueeze(-1)).chunk(2, -1)
        gated = gate / (1 + (-gate).exp()) * value
        y, scale = launch(case, call)
        torch.testing.assert_close(scale.double(), gated.abs().amax(-1) / 127, rtol=1e-4, atol=1e-8)
        op = find_operator(case.kernel_type)
        assert op.flops(case) == 2 * 10 * 64 * 64 + 8 * 10 * 32
        assert op.traffic(case) == sum(s.size_bytes for s in (*case.inputs, *case.outputs))
        npu = op.npu.build(case, CpuMaker(torch)).kwargs
        assert npu.get("dequant_mode", 0) == (case.kernel_type == GATED[0])


def test_unsupported_gated_products_are_refused(case_of):
    for changes, message in (
        ({1: GATED[1].replace("3,2,64", "3,3,64")}, "k % groups == 0"),
        ({1: GATED[1].rpartition(";")[0], 2: GATED[2].rpartition(";")[0]}, "weight_assist_matrix"),
        ({2: GATED[2].replace("INT4", "INT8")}, "'weight_scale'"),
        ({1: GATED[1] + ";;3", 2: GATED[2] + ";DT_UNDEFINED;FLOAT"}, "'smooth_scale'"),
    ):
        cells = [changes.get(i, cell) for i, cell in enumerate(GATED)]
        assert_rejected(case_of(*cells), "npu", message)
