"""Numbers of Ascend 950: FLOAT8 with scales of MX, of blocks, of rows and columns."""

import pytest

from collector.ops.registry import find
from tests.fixtures.op_rows import rows_alone

E4, E5, E8 = "FLOAT8_E4M3FN", "FLOAT8_E5M2", "FLOAT8_E8M0"


def narrow_rows(kernel):
    return [row.case for row in rows_alone(kernel) if "FLOAT8" in row.case.describe()]


@pytest.mark.parametrize("dtype, most, emax", [(E4, 448.0, 8), (E5, 57344.0, 15)])
def test_scales_of_mx_are_powers_of_two_for_32_numbers(
    torch, case_of, build, launch, dtype, most, emax
):
    case = case_of("DynamicMxQuant", "3,96", "FLOAT16", "3,96;3,2,2", f"{dtype};{E8}")
    call = build(case)
    (x,) = call.args
    x[1, :32] = 0
    y, scales = launch(case, call)
    assert scales.dtype == torch.uint8 and scales[1, 0, 0] == 0
    assert scales[:, 1, 1].tolist() == [0, 0, 0], "a fourth group has no numbers"
    for row, group in ((0, 0), (1, 2), (2, 1)):
        part = x[row, 32 * group : 32 * group + 32].double()
        step = 2.0 ** (torch.log2(part.abs().max()).floor().item() - emax)
        assert scales[row].flatten()[group] == 127 + round(torch.log2(torch.tensor(step)).item())
        got = y[row, 32 * group : 32 * group + 32].double() * step
        near = 2.0**-3 if dtype == E4 else 2.0**-2  # half of the last place
        clipped = part.clamp(-most * step, most * step)
        assert ((got - clipped).abs() <= near * clipped.abs() / 2 + step * 2**-9).all()


def test_scales_of_blocks_bring_the_largest_number_to_the_largest(torch, case_of, build, launch):
    case = case_of("DynamicBlockQuant", "130,200", "FLOAT16", "130,200;2,2", f"{E5};FLOAT")
    call = build(case)
    (x,) = call.args
    y, scale = launch(case, call)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        part = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
        torch.testing.assert_close(scale[i, j], x[part].float().abs().max() / 57344)
        assert y[part].float().abs().max() == 57344


def test_products_of_narrow_numbers_are_those_of_their_values(torch, build, launch):
    for case in narrow_rows("QuantBatchMatmulV3"):
        call = build(case)
        x1, x2, scale = call.args
        of_rows, bias = call.kwargs["pertoken_scale"], call.kwargs["bias"]
        m, n, k = x1.shape[0], x2.shape[1], x1.shape[1]

        def value(numbers, scales, row, place, count):
            """A number by its scale, both at a row of scales and at a place within the row."""
            if scales.dtype == torch.uint8:
                return numbers * 2.0 ** (int(scales[row, place // 64, place // 32 % 2]) - 127)
            if scales.dim() == 2:
                at = row if scales.shape[0] == count else row // 128
                return numbers * scales[at, place // 128].double()
            return numbers * scales[row if scales.numel() > 1 else 0].double()

        of_columns = scale.transpose(0, 1) if scale.dim() > 1 else scale
        for i, j in ((0, 0), (m - 1, n - 1), (m // 2, n // 3)):
            total = 0.0 if bias is None else bias.flatten()[j].double()
            for place in range(k):
                a = value(x1[i, place].double(), of_rows, i, place, m)
                total += a * value(x2[place, j].double(), of_columns, j, place, n)
            got = launch(case, call)[0][i, j].double()
            torch.testing.assert_close(got, total, rtol=0.01, atol=0.01)


@pytest.mark.parametrize(
    "inputs, dtypes, out",
    [
        ("8,64;64,16;1,16,2;;;8,2,2", f"{E4};{E4};{E8};;;{E8}", "8,16"),
        ("8,64;64,16;16;;;8", f"{E4};{E4};{E8};;;FLOAT", "8,16"),
        ("8,64;64,16;16;16;;8", f"{E4};{E4};FLOAT;FLOAT;;FLOAT", "8,16"),
        ("8,64;64,16;16", f"{E4};{E4};FLOAT", "8,16"),
        ("8,256;256,128;2,1;;128;8,2", f"{E4};{E4};FLOAT;;FLOAT;FLOAT", "8,128"),
        ("8,64;64,16;16;;;8", f"{E4};INT8;FLOAT;;;FLOAT", "8,16"),
    ],
)
def test_other_products_of_narrow_numbers_are_refused(case_of, inputs, dtypes, out):
    case = case_of("QuantBatchMatmulV3", inputs, dtypes, out, "DT_BF16")
    assert find("QuantBatchMatmulV3").rejection_reason(case, "npu")
