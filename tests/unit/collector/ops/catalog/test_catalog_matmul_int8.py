"""Products of INT8 against integer arithmetic."""

from types import SimpleNamespace

import pytest

from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import CpuMaker, assert_rejected, by_row, four_bits

pytestmark = pytest.mark.torch

NONE = "DT_UNDEFINED"


def exact(torch, a, b):
    return (a.to(torch.int64) @ b.to(torch.int64)).double()


def test_products_of_the_largest_numbers_are_exact(torch, case_of, build, launch):
    case = case_of("QuantBatchMatmulV3", "2,4096;4096,2;2", "INT8;INT8;FLOAT", "2,2", "INT32")
    call = build(case)
    x1, x2, _ = call.args
    x1.fill_(-127)
    x2.fill_(127)
    assert launch(case, call)[0].tolist() == [[-127 * 127 * 4096] * 2] * 2


@pytest.mark.parametrize(
    ("inputs", "dtypes", "output", "roles"),
    [
        ("10,32;32,6;6", "FLOAT", "DT_BF16", set()),
        ("10,32;6,32;6", "FLOAT", "DT_BF16", set()),
        ("10,32;32,6;1", "DT_BF16", "DT_BF16", set()),
        ("10,32;32,6;6;6", "FLOAT;INT32", "DT_BF16", {"bias"}),
        ("10,32;32,6;6;6", "FLOAT;DT_BF16", "DT_BF16", {"bias"}),
        ("10,32;32,6;6;6", "FLOAT;FLOAT", "DT_BF16", {"bias"}),
        ("10,32;32,6;6;10", "FLOAT;FLOAT", "DT_BF16", {"pertoken_scale"}),
        # as many rows as columns: a scale of rows
        ("6,32;32,6;6;6", "FLOAT;FLOAT", "DT_BF16", {"pertoken_scale"}),
        ("10,32;32,6;6;6", "FLOAT;FLOAT", "INT8", {"offset"}),
        ("10,32;32,6;6;1", "INT64;FLOAT", "INT8", {"offset"}),
        # rows have no scale if the output is INT8
        ("6,32;32,6;6;6", "FLOAT;FLOAT", "INT8", {"offset"}),
        ("6,32;32,6;6;;6", f"FLOAT;{NONE};FLOAT", "DT_BF16", {"bias"}),
        ("6,32;32,6;6;;6;6", f"FLOAT;{NONE};INT32;FLOAT", "FLOAT16", {"bias", "pertoken_scale"}),
        ("10,32;32,6;6;6;6", "INT64;FLOAT;INT32", "INT8", {"offset", "bias"}),
    ],
)
def test_a_quantised_product(torch, case_of, build, launch, inputs, dtypes, output, roles):
    out = f"{inputs.split(',')[0]},6"
    case = case_of("QuantBatchMatmulV3", inputs, f"INT8;INT8;{dtypes}", out, output)
    call = build(case, wide=True)
    options = {name: tensor for name, tensor in call.kwargs.items() if name != "output_dtype"}
    assert set(options) == roles
    x1, x2, scale = call.args
    if scale.dtype == torch.int64:
        scale = scale.to(torch.int32).view(torch.float32)
    offset, bias, per_token = (
        options[name].double() if name in options else 0
        for name in ("offset", "bias", "pertoken_scale")
    )
    total = exact(torch, x1, x2)
    whole_bias = "bias" in options and not options["bias"].is_floating_point()
    expected = (total + bias if whole_bias else total) * scale.double()
    if "pertoken_scale" in options:
        expected = expected * per_token.unsqueeze(-1)
    expected = expected + offset + (0 if whole_bias else bias)
    (result,) = launch(case, call)
    if output == "INT8":
        expected = expected.round().clamp(-128, 127)
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)


def test_npu_call_has_packed_scales_if_the_kernel_requires_them(torch, case_of):
    """Otherwise the API packs them before each launch, by a separate kernel."""
    packed = []

    def pack(scale, offset):
        packed.append((scale.dtype, offset is not None))
        return scale.to(torch.int64)

    class TorchOfNpu:
        ops = SimpleNamespace(npu=SimpleNamespace(npu_trans_quant_param=pack))

        def __getattr__(self, name):
            return getattr(torch, name)

    def scale_of(inputs, dtypes, output):
        case = case_of("QuantBatchMatmulV3", inputs, f"INT8;INT8;{dtypes}", "10,6", output)
        make = CpuMaker(torch)
        make.torch = TorchOfNpu()
        return find_operator("QuantBatchMatmulV3").npu.build(case, make).args[2].dtype

    assert scale_of("10,32;32,6;6", "FLOAT", "FLOAT16") == torch.int64
    assert scale_of("10,32;32,6;6;6", "INT64;FLOAT", "INT8") == torch.int64
    assert packed == [(torch.float32, False), (torch.float32, True)]
    assert scale_of("10,32;32,6;6", "FLOAT", "DT_BF16") == torch.float32
    assert scale_of("10,32;32,6;6;10", "FLOAT;FLOAT", "FLOAT16") == torch.float32
    assert len(packed) == 2


def test_int8_weight_in_blocks_has_the_order_k_by_n(case_of):
    cells = ("QuantBatchMatmulV3", "136,7168;66,448,16,32;2112;2112", "INT8;INT8;FLOAT;INT32")
    case = case_of(*cells, "136,2112", "DT_BF16", "ND;FRACTAL_NZ;ND;ND")
    op = find_operator("QuantBatchMatmulV3")
    op.check(case, "npu")
    assert op.flops(case) == 2 * 136 * 7168 * 2112


@pytest.mark.parametrize(
    ("inputs", "dtypes", "output", "rule"),
    [
        ("10,32;32,6;6", "FLOAT;INT8;FLOAT", "DT_BF16", "'x1'"),
        ("10,32;31,6;6", "INT8;INT8;FLOAT", "DT_BF16", "'x2'"),
        ("10,32;32,6;5", "INT8;INT8;FLOAT", "DT_BF16", "'scale'"),
        ("10,32;32,6;6", "INT8;INT8;INT64", "DT_BF16", "dtypes & scale & output"),
        ("10,32;32,6;6", "INT8;INT8;DT_BF16", "FLOAT16", "dtypes & scale & output"),
        ("10,32;32,6;6;6", "INT8;INT8;FLOAT;FLOAT16", "DT_BF16", "dtypes & scale & output"),
        ("10,32;32,6;6;6;6", "INT8;INT8;FLOAT;FLOAT;INT32", "DT_BF16", "dtypes & scale & output"),
        ("10,32;32,6;6;;;9", f"INT8;INT8;FLOAT;{NONE};{NONE};FLOAT", "DT_BF16", "'pertoken_scale'"),
        ("1,65536;65536,6;6", "INT8;INT8;FLOAT", "DT_BF16", "65535"),
    ],
)
def test_unsupported_quantised_products_are_refused(case_of, inputs, dtypes, output, rule):
    out = f"{inputs.split(',')[0]},6"
    case = case_of("QuantBatchMatmulV3", inputs, dtypes, out, output)
    assert_rejected(case, "npu", rule)


def test_four_bit_weight_is_dequantised(torch, case_of, build, launch):
    for scale in ("2,32", "1,32", "32"):
        dtypes = f"DT_BF16;INT4;DT_BF16;DT_BF16;{NONE};{NONE};FLOAT"
        shapes = f"10,64;64,32;{scale};{scale};;;32"
        case = case_of("WeightQuantBatchMatmulV2", shapes, dtypes, "10,32", "DT_BF16")
        find_operator(case.kernel_type).check(case, "npu")
        call = build(case, wide=True)
        (x, packed, of_rows), given = call.args, call.kwargs
        assert given.get("antiquant_group_size") == (32 if scale == "2,32" else None)
        scales, offsets = (
            by_row(each.view(1, -1, 32), 64)[0] for each in (of_rows, given["antiquant_offset"])
        )
        expected = x.double() @ ((four_bits(torch, packed) + offsets) * scales)
        expected += given["bias"].double()
        torch.testing.assert_close(launch(case, call)[0].double(), expected, rtol=1e-4, atol=1e-4)


V4 = (
    *("QuantBatchMatmulV4", "10,512;512,64;;10,1;2,64;;;;64;"),
    f"INT8;INT4;{NONE};FLOAT;UINT64;{NONE};{NONE};{NONE};FLOAT;{NONE}",
    *("10,64", "DT_BF16"),
)


def test_rows_of_int8_and_a_weight_of_four_bits(torch, case_of, build, launch):
    for scale in ("2,64", "1,64"):
        call = build(case := case_of(*(cell.replace(";2,64;", f";{scale};") for cell in V4)))
        (x1, packed, of_rows), given = call.args, call.kwargs
        scales = by_row(of_rows.to(torch.int32).view(torch.float32).unsqueeze(0), 512)[0]
        whole = four_bits(torch, packed) * scales
        torch.testing.assert_close(given["offset"].double(), 8 * whole.sum(0), rtol=1e-4, atol=1e-5)
        expected = x1.double() @ whole * given["pertoken_scale"].double()
        torch.testing.assert_close(launch(case, call)[0].double(), expected, rtol=1e-2, atol=1e-3)
    op = find_operator(case.kernel_type)
    assert op.flops(case) == 2 * 10 * 512 * 64
    assert case.inputs[1].size_bytes == 512 * 64 // 2


def test_unsupported_four_bit_weights_are_refused(case_of):
    for changes, message in (
        ({1: V4[1].replace("512", "128")}, "'x2_scale'"),
        ({1: V4[1].replace(";2,64", ";4,64")}, "'x2_scale'"),
        ({1: V4[1].replace("512,64;;", "512,64;64;"), 2: V4[2].replace(NONE, "FLOAT", 1)}, "bias"),
        ({2: V4[2].replace("INT4", "INT8")}, "'x2'"),
        ({2: V4[2].replace("UINT64", "FLOAT")}, "UINT64"),
    ):
        cells = [changes.get(i, cell) for i, cell in enumerate(V4)]
        assert_rejected(case_of(*cells), "npu", message)
    dtypes = "DT_BF16;INT4;DT_BF16"
    for shapes, message in (
        ("10,64;64,32;4,32", "INT4 & group"),
        ("10,64;32,64;2,32", "'weight'"),
        ("10,64;64,32;1", "INT4 & group"),
    ):
        case = case_of("WeightQuantBatchMatmulV2", shapes, dtypes, "10,32", "DT_BF16")
        assert_rejected(case, "npu", message)
    blocked = case_of(
        *("WeightQuantBatchMatmulV2", "10,64;64,32;32", "DT_BF16;INT8;DT_BF16", "10,32"),
        *("DT_BF16", "ND;FRACTAL_NZ;ND"),
    )
    assert_rejected(blocked, "npu", "FRACTAL_NZ")
