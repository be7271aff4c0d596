"""Numbers of Ascend 950: FLOAT8, HIFLOAT8 and FLOAT4 with scales of MX, of blocks, of rows and
columns."""

import math

import pytest

from collector.ops.parts.narrow import values
from collector.ops.refusals import requires_950
from collector.ops.registry import find_operator
from tests.fixtures.op_rows import rows_alone

E4, E5, E8 = "FLOAT8_E4M3FN", "FLOAT8_E5M2", "FLOAT8_E8M0"
E2M1, E1M2 = "FLOAT4_E2M1", "FLOAT4_E1M2"
HIF8, OF_HIF8 = "HIFLOAT8", 290
MANTISSA = {296: 1, 297: 2}  # bits, by torch_npu's number of FLOAT4
PREFIXES = {"11": 4, "10": 3, "01": 2, "001": 1, "0001": 0}  # of HIFLOAT8: bits of an exponent


def narrow_rows(kernel):
    cases = [row.case for row in rows_alone(kernel) if requires_950(row.case)]
    assert cases, kernel
    return cases


def value_of(code, number):
    """The value of four bits: a sign, an exponent of bias 1 and a mantissa."""
    bits = MANTISSA[number]
    exponent, mantissa = (code & 7) >> bits, (code & (1 << bits) - 1) / (1 << bits)
    size = mantissa if exponent == 0 else (1 + mantissa) * 2.0 ** (exponent - 1)
    return -size if code & 8 else size


def tapered(code):
    """The value of a HIFLOAT8: a prefix, a signed exponent with a hidden one, a mantissa."""
    bits, sign = f"{code & 127:07b}", -1 if code & 128 else 1
    prefix = next((p for p in PREFIXES if bits.startswith(p)), "")
    if not prefix:
        return sign * (2.0 ** (code % 8 - 23) if code % 8 else 0.0)
    count, rest = PREFIXES[prefix], bits[len(prefix) :]
    exponent, mantissa = rest[:count], rest[count:]
    power = int("1" + exponent[1:], 2) * (-1 if exponent[0] == "1" else 1) if count else 0
    return sign * (1 + int(mantissa, 2) / 2 ** len(mantissa)) * 2.0**power


def all_values(torch, number):
    """The finite values of a dtype."""
    if number != OF_HIF8:
        return torch.tensor([value_of(code, number) for code in range(16)], dtype=torch.float64)
    codes = (code for code in range(256) if code & 127 != 0x6F and code != 128)
    return torch.tensor([tapered(code) for code in codes], dtype=torch.float64)


def test_values_of_tapered_numbers_are_those_of_their_bits(torch):
    codes = [0x00, 0x01, 0x07, 0x08, 0x18, 0x3F, 0x40, 0x6E, 0x7F, 0x90]
    expected = [0.0, 2**-22, 2**-16, 1.0, 0.5, 0.234375, 16.0, 32768.0, 1.5 * 2**-15, -2.0]
    assert values(torch, torch.tensor(codes, dtype=torch.uint8), OF_HIF8).tolist() == expected
    assert [tapered(code) for code in codes] == expected
    every = torch.tensor([c for c in range(256) if c & 127 != 0x6F], dtype=torch.uint8)
    assert values(torch, every, OF_HIF8).tolist() == [tapered(int(code)) for code in every]


def wide(torch, numbers, number=None):
    """FLOAT64 values of numbers, of which the number of their dtype tells those in bytes."""
    if number is None:
        return numbers.double()
    if number == OF_HIF8:
        return torch.tensor([[tapered(b) for b in row] for row in numbers.tolist()]).double()
    rows = [
        [value_of(b >> s & 15, number) for b in row for s in (0, 4)] for row in numbers.tolist()
    ]
    return torch.tensor(rows, dtype=torch.float64)


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


def is_quantised_to_mx(torch, y, scales, expected, dtype):
    """Return whether numbers are those expected, as near as their dtype can be."""
    if isinstance(dtype, int):
        return is_nearest_of_four_bits(torch, y.flatten(0, -2), scales, expected, dtype)
    near = 2.0**-4 if y.dtype == torch.float8_e4m3fn else 2.0**-3  # half of the last place
    # an E4M3 number beyond 448 is clipped: the largest of a group may lose 1/8
    allowed = (near + 0.125) * expected.abs() + 1e-4
    got = dequantised(torch, y.flatten(0, -2), scales.flatten(0, -3)).view(expected.shape)
    return ((got - expected).abs() <= allowed).all()


def is_nearest_of_four_bits(torch, y, scales, expected, number):
    k = expected.shape[-1]
    steps = 2.0 ** (scales.flatten(0, -3).double().flatten(1) - 127)
    each = steps.repeat_interleave(32, -1)[:, :k]
    targets = expected.flatten(0, -2) / each
    all_of_them = all_values(torch, number)
    emax = math.floor(math.log2(all_of_them.max()))
    largest = torch.nn.functional.pad(targets.abs(), (0, -k % 32)).unflatten(-1, (-1, 32)).amax(-1)
    fits = (largest >= 2.0**emax * 0.999) & (largest < 2.0 ** (emax + 1) * 1.001)
    return are_nearest(torch, wide(torch, y, number)[:, :k], targets, number) and fits.all()


def are_nearest(torch, got, targets, number):
    nearest = (targets.unsqueeze(-1) - all_values(torch, number)).abs().amin(-1)
    return ((got - targets).abs() <= nearest + 1e-4 * targets.abs() + 1e-4).all()


@pytest.mark.parametrize("dtype", [E2M1, E1M2])
def test_numbers_of_four_bits_are_two_to_a_byte(torch, case_of, build, launch, dtype):
    case = case_of("DynamicMxQuant", "2,32", "FLOAT16", "2,32;2,1,2", f"{dtype};{E8}")
    call = build(case)
    (x,), number = call.args, call.kwargs["dst_type"]
    assert call.kwargs["round_mode"] == "round"
    most = value_of(7, number)
    levels = torch.tensor([value_of(code, number) for code in range(16)])
    x[0] = torch.cat((levels, levels.flip(0)))
    x[1] = 0
    x[1, :3] = torch.tensor([most, (levels[2] + levels[3]) / 2, -(levels[1] + levels[2]) / 2])
    y, scales = launch(case, call)
    assert y.shape == (2, 16) and scales[0, 0, 0] == 127
    assert (wide(torch, y, number)[0] == x[0].double()).all()
    away = [most, levels[3].item(), -levels[2].item()]  # halfway between two
    assert wide(torch, y, number)[1, :3].tolist() == away


def test_results_of_swiglu_are_quantised_to_mx(torch, build, launch):
    for case in narrow_rows("SwigluMxQuant"):
        call = build(case)
        gate, value = call.args[0].double().chunk(2, -1)
        y, scales = launch(case, call)
        expected = gate * torch.sigmoid(gate) * value
        assert is_quantised_to_mx(torch, y, scales, expected, call.kwargs["dst_type"])


@pytest.mark.parametrize("kernel", ["RmsNormDynamicMxQuant", "AddRmsNormDynamicMxQuant"])
def test_norms_are_quantised_to_mx(torch, build, launch, kernel):
    for case in narrow_rows(kernel):
        call = build(case)
        *terms, gamma = call.args
        y, *total, scales, rstd = launch(case, call)
        x = sum(terms)
        assert rstd is None and all(torch.equal(one, x) for one in total)
        wide, beta = x.double(), call.kwargs["beta"]
        expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * gamma.double()
        expected = expected if beta is None else expected + beta.double()
        assert is_quantised_to_mx(torch, y, scales, expected, call.kwargs["dst_type"])


@pytest.mark.parametrize(
    "kernel, inputs, dtypes, outputs",
    [
        ("RmsNormDynamicMxQuant", "8,64;64", "DT_BF16;DT_BF16", "8,64;8,1,2;8,1"),  # with rstd
        ("RmsNormDynamicMxQuant", "8,64;64", "DT_BF16;FLOAT16", "8,64;8,1,2;"),
        ("RmsNormDynamicMxQuant", "8,64;64;64", "DT_BF16;FLOAT;DT_BF16", "8,64;8,1,2;"),
        ("RmsNormDynamicMxQuant", "2,8,64;8,64", "DT_BF16;DT_BF16", "2,8,64;2,8,1,2;"),
        (
            "AddRmsNormDynamicMxQuant",
            "8,64;8,64;64;;8,64",  # a third term
            "DT_BF16;DT_BF16;DT_BF16;;DT_BF16",
            "8,64;8,64;8,1,2;",
        ),
        (
            "AddRmsNormDynamicMxQuant",
            "8,64;1,64;64",
            "DT_BF16;DT_BF16;DT_BF16",
            "8,64;8,64;8,1,2;",
        ),
    ],
)
def test_other_norms_are_refused(case_of, kernel, inputs, dtypes, outputs):
    named = f"{E4};{E8};FLOAT" if kernel.startswith("Rms") else f"{E4};DT_BF16;{E8};FLOAT"
    assert find_operator(kernel).rejection_reason(
        case_of(kernel, inputs, dtypes, outputs, named), "npu"
    )


@pytest.mark.parametrize(
    "inputs, dtypes, outputs",
    [
        ("8,128;300", "DT_BF16;INT64", "8,64;8,1,2"),
        ("2,4,128;3", "DT_BF16;INT64", "2,4,64;2,4,1,2"),
        ("8,128", "DT_BF16", "4,128;4,2,2"),  # halves of another dimension
        ("128,128", "DT_BF16", "128,64;2,64,2"),  # groups along another dimension
        ("8,128", "FLOAT", "8,64;8,1,2"),
    ],
)
def test_other_swiglus_are_refused(case_of, inputs, dtypes, outputs):
    case = case_of("SwigluMxQuant", inputs, dtypes, outputs, f"{E4};{E8}")
    assert find_operator("SwigluMxQuant").rejection_reason(case, "npu")


def test_tokens_of_an_expert_are_quantised_in_groups_of_their_own(torch, build, launch):
    for case in narrow_rows("GroupedDynamicMxQuant"):
        call = build(case)
        (x,), counts = call.args, call.kwargs["counts"]
        y, scales = launch(case, call)
        start = 0
        for expert, count in enumerate(counts):
            at = start // 64 + expert
            own = scales[at : at - (-count // 64)].permute(1, 0, 2)
            rows, dtype = slice(start, start + count), call.kwargs["dst_type"]
            numbers = y[rows] if y.dtype != torch.uint8 else paired_along_rows(torch, y[rows])
            assert is_quantised_to_mx(torch, numbers.t(), own, x[rows].t().double(), dtype)
            start += count


def paired_along_rows(torch, y):
    """Four bits of two rows in a byte, of those of two columns; an odd row is paired with zero."""
    codes = torch.stack((y & 15, y >> 4), -1).flatten(1)
    codes = torch.nn.functional.pad(codes, (0, 0, 0, y.shape[0] % 2))
    return codes[::2] | codes[1::2] << 4


def as_numbers(torch, y, dtype):
    """Values of a quantised output, and the largest number of its dtype."""
    if isinstance(dtype, int):
        return wide(torch, y, dtype).float(), 32768.0
    return y.float(), torch.finfo(dtype).max


def test_blocks_of_an_expert_begin_with_its_tokens(torch, build, launch):
    for case in narrow_rows("GroupedDynamicBlockQuant"):
        call = build(case)
        (x,), counts = call.args, call.kwargs["counts"]
        rows, dtype = call.kwargs["row_block_size"], call.kwargs["dst_type"]
        y, scales = launch(case, call)
        y, most = as_numbers(torch, y, dtype)
        start = 0
        for expert, count in enumerate(counts):
            for at in range(0, count, rows):
                own = scales[start // rows + expert + at // rows]
                part = slice(start + at, start + min(at + rows, count))
                for column in range(own.numel()):
                    columns = slice(128 * column, 128 * column + 128)
                    largest = x[part, columns].float().abs().max()
                    torch.testing.assert_close(own[column], largest / most)
                    assert y[part, columns].float().abs().max() == most
            start += count
        first = find_operator(case.kernel_type).written(case)
        assert (scales[:first] > 0).all() and first == -(-counts[0] // rows)


@pytest.mark.parametrize(
    "kernel, x, groups, scales",
    [
        ("GroupedDynamicMxQuant", "256,64", "4 INT64", "8,64,2"),
        ("GroupedDynamicMxQuant", "256,64", "4 INT32", "256,1,2"),
        ("GroupedDynamicMxQuant", "2,128,64", "4 INT32", "2,6,64,2"),
        ("GroupedDynamicBlockQuant", "256,256", "4 INT32", "64,2"),
        ("GroupedDynamicBlockQuant", "256,256", "4 INT32", "260,4"),  # 64 columns
    ],
)
def test_other_quantisation_by_expert_is_refused(case_of, kernel, x, groups, scales):
    groups, dtype = groups.split()
    of_scales = E8 if "Mx" in kernel else "FLOAT"
    cells = f"{x};{groups}", f"DT_BF16;{dtype}", f"{x};{scales}", f"{E4};{of_scales}"
    assert find_operator(kernel).rejection_reason(case_of(kernel, *cells), "npu")


@pytest.mark.parametrize("dtype", [E5, HIF8])
def test_scales_of_blocks_bring_the_largest_number_to_the_largest(
    torch, case_of, build, launch, dtype
):
    case = case_of("DynamicBlockQuant", "130,200", "FLOAT16", "130,200;2,2", f"{dtype};FLOAT")
    call = build(case)
    (x,), number = call.args, call.kwargs["dst_type"]
    y, scale = launch(case, call)
    y, most = as_numbers(torch, y, number)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        part = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
        torch.testing.assert_close(scale[i, j], x[part].float().abs().max() / most)
        assert y[part].abs().max() == most
        targets = x[part].double() / scale[i, j]
        assert dtype != HIF8 or are_nearest(torch, y[part].double(), targets, number)


def test_products_of_narrow_numbers_are_those_of_their_values(torch, build, launch):
    for case in narrow_rows("QuantBatchMatmulV3"):
        call = build(case)
        x1, x2, scale = call.args
        of_rows, bias = call.kwargs["pertoken_scale"], call.kwargs["bias"]
        x1 = wide(torch, x1, call.kwargs.get("x1_dtype"))
        x2 = wide(torch, x2.t(), call.kwargs.get("x2_dtype")).t()
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
                a = value(x1[i, place], of_rows, i, place, m)
                total += a * value(x2[place, j], of_columns, j, place, n)
            got = launch(case, call)[0][i, j].double()
            torch.testing.assert_close(got, total, rtol=0.01, atol=0.01)


def dequantised(torch, numbers, scales, number=None):
    """FLOAT64 values of (rows, K) with scales (rows, K / 64, 2), (rows) or of blocks of 128."""
    numbers = wide(torch, numbers, number).clone()
    if scales.dim() == 1:
        return numbers * scales.double().unsqueeze(-1)
    if scales.dim() == 2:
        each = scales.double().repeat_interleave(128, 1)[:, : numbers.shape[1]]
        each = each if len(each) == len(numbers) else each.repeat_interleave(128, 0)[: len(numbers)]
        return numbers * each
    for group in range(-(-numbers.shape[1] // 32)):
        step = 2.0 ** (scales[:, group // 2, group % 2].double() - 127)
        numbers[:, 32 * group : 32 * group + 32] *= step.unsqueeze(-1)
    return numbers


def by_expert(torch, x, weight, weight_scale, x_scale, options):
    """The product of each expert in FLOAT64."""
    parts, start = [], 0
    of_weight = options.get("weight_dtype")
    tokens = dequantised(torch, x, x_scale, options.get("x_dtype"))
    for expert, count in enumerate(options["counts"]):
        scales = weight_scale[expert]
        scales = scales.transpose(0, 1) if scales.dim() > 1 else scales
        own = dequantised(torch, weight[expert].t(), scales, of_weight)
        parts.append(tokens[start : start + count] @ own.t())
        start += count
    return torch.cat(parts)


def test_products_by_expert_are_those_of_their_values(torch, build, launch):
    cases = narrow_rows("GroupedMatmul")
    shapes = {(3, 48, 192), (3, 96, 48), (3, 256, 384)}
    assert {case.inputs[1].shape for case in cases} == shapes
    for case in cases:
        call = build(case)
        x, weight = call.args
        scales = (call.kwargs[name] for name in ("scale", "per_token_scale"))
        expected = by_expert(torch, x, weight, *scales, call.kwargs)
        (got,) = launch(case, call)
        torch.testing.assert_close(got.double(), expected, rtol=0.01, atol=0.01)


def test_gated_products_are_quantised_to_mx(torch, build, launch):
    for case in narrow_rows("GroupedMatmulSwigluQuantV2"):
        call = build(case)
        product, dtype = by_expert(torch, *call.args, call.kwargs), call.kwargs["quant_dtype"]
        gate, value = product.chunk(2, -1)
        expected = gate * torch.sigmoid(gate) * value
        y, scale = launch(case, call)
        assert scale.shape == case.outputs[1].shape
        if scale.dtype != torch.uint8:
            y, most = as_numbers(torch, y, dtype)
            torch.testing.assert_close(scale.double(), expected.abs().amax(-1) / most)
            targets = expected / scale.double().unsqueeze(-1)
            if dtype == OF_HIF8:
                assert are_nearest(torch, y.double(), targets, dtype)
            else:
                torch.testing.assert_close(y.double(), targets, rtol=0.07, atol=0.01)
            continue
        if isinstance(dtype, int):
            assert is_nearest_of_four_bits(torch, y, scale, expected.float().double(), dtype)
            continue
        assert y.dtype == dtype
        got, near = dequantised(torch, y, scale), 0.13 * expected.abs() + 0.02
        assert ((got - expected).abs() <= near).all()


@pytest.mark.parametrize(
    "kernel, inputs, dtypes",
    [
        ("GroupedMatmul", "8,64;2,64,16;;2,1,16,2;;;;2;8", f"{E4};{E4};;{E8};;;;INT64;FLOAT"),
        (
            "GroupedMatmul",
            "8,64;2,64,16;2,16;2,1,16,2;;;;2;8,1,2",
            f"{E4};{E4};FLOAT;{E8};;;;INT64;{E8}",
        ),
        ("GroupedMatmul", "8,64;2,64,16;;2,16,1,2;;;;2;8,1,2", f"{E4};{E4};;{E8};;;;INT64;{E8}"),
        (
            "GroupedMatmulSwigluQuantV2",
            "8,64;8,1,2;2;2,64,32;2,1,32,2",
            f"{E4};{E8};INT64;{E4};{E8}",
        ),
        ("GroupedMatmulSwigluQuant", "8,64;2,64,32;2,32;8;2", f"{E4};{E4};FLOAT;FLOAT;INT64"),
        (
            "GroupedMatmul",
            "8,64;2,64,16;;2,1,16,2;;;;2;8,1,2",
            f"{HIF8};{HIF8};;{E8};;;;INT64;{E8}",
        ),
        ("GroupedMatmul", "8,64;2,64,16;;2,16;;;;2;8", f"{HIF8};{E4};;FLOAT;;;;INT64;FLOAT"),
        ("GroupedMatmul", "8,64;2,64,16;;2,16;;;;2;8,1", f"{HIF8};{HIF8};;FLOAT;;;;INT64;FLOAT"),
        (  # its output is FLOAT8
            "GroupedMatmulSwigluQuantV2",
            "8,64;8;2;2,64,32;2,32",
            f"{HIF8};FLOAT;INT64;{HIF8};FLOAT",
        ),
        # FLOAT4 as it lies for a product without a transpose, and with FLOAT8
        (
            "GroupedMatmul",
            "8,64;2,64,16;;2,1,16,2;;;;2;8,1,2",
            f"{E2M1};{E2M1};;{E8};;;;INT64;{E8}",
        ),
        (
            "GroupedMatmul",
            "8,64;2,16,64;;2,16,1,2;;;;2;8,1,2",
            f"{E4};{E2M1};;{E8};;;;INT64;{E8}",
        ),
    ],
)
def test_other_products_by_expert_are_refused(case_of, kernel, inputs, dtypes):
    outputs = {
        "GroupedMatmul": ("8,16", "DT_BF16"),
        "GroupedMatmulSwigluQuantV2": ("8,16;8,1,2", f"{E4};{E8}"),
        "GroupedMatmulSwigluQuant": ("8,16;8", "INT8;FLOAT"),
    }
    assert find_operator(kernel).rejection_reason(
        case_of(kernel, inputs, dtypes, *outputs[kernel]), "npu"
    )


@pytest.mark.parametrize(
    "inputs, dtypes, out",
    [
        ("8,64;64,16;1,16,2;;;8,2,2", f"{E4};{E4};{E8};;;{E8}", "8,16"),
        ("8,64;64,16;16;;;8", f"{E4};{E4};{E8};;;FLOAT", "8,16"),
        ("8,64;64,16;16;16;;8", f"{E4};{E4};FLOAT;FLOAT;;FLOAT", "8,16"),
        ("8,64;64,16;16", f"{E4};{E4};FLOAT", "8,16"),
        ("8,256;256,128;2,1;;128;8,2", f"{E4};{E4};FLOAT;;FLOAT;FLOAT", "8,128"),
        ("8,64;64,16;16;;;8", f"{E4};INT8;FLOAT;;;FLOAT", "8,16"),
        ("8,64;64,16;1,16,2;;;8,1,2", f"{E2M1};{E2M1};{E8};;;{E8}", "8,16"),
        ("8,96;16,96;16,2,2;;;8,2,2", f"{E2M1};{E2M1};{E8};;;{E8}", "8,16"),  # three groups
        ("8,64;16,64;16,1,2;;;8,1,2", f"{E1M2};{E1M2};{E8};;;{E8}", "8,16"),
        ("8,64;16,64;16;;;8", f"{E2M1};{E2M1};FLOAT;;;FLOAT", "8,16"),
        ("8,64;16,64;16,1,2;;;8,1,2", f"{HIF8};{HIF8};{E8};;;{E8}", "8,16"),
        ("8,64;16,64;16;;;8", f"{HIF8};{E4};FLOAT;;;FLOAT", "8,16"),
    ],
)
def test_other_products_of_narrow_numbers_are_refused(case_of, inputs, dtypes, out):
    case = case_of("QuantBatchMatmulV3", inputs, dtypes, out, "DT_BF16")
    assert find_operator("QuantBatchMatmulV3").rejection_reason(case, "npu")


def test_rows_of_eight_bits_meet_a_weight_of_four(torch, build, launch):
    for case in narrow_rows("QuantBatchMatmulV4"):
        call = build(case)
        x1, x2, scale = call.args
        rows = dequantised(torch, x1, call.kwargs["pertoken_scale"])
        columns = dequantised(torch, x2.t(), scale.transpose(0, 1), call.kwargs["x2_dtype"])
        expected, bias = rows @ columns.t(), call.kwargs["bias"]
        expected = expected if bias is None else expected + bias.double()
        (got,) = launch(case, call)
        torch.testing.assert_close(got.double(), expected, rtol=0.01, atol=0.01)


@pytest.mark.parametrize(
    "inputs, dtypes",
    [
        ("8,64;16,64;;8,1,2;16,1,2;;;;8", f"{E4};{E2M1};;{E8};{E8};;;;FLOAT"),
        ("8,64;16,64;16;8,1,2;16,1,2", f"{E4};{E2M1};DT_BF16;{E8};{E8}"),
        ("8,96;16,96;;8,2,2;16,2,2", f"{E4};{E2M1};;{E8};{E8}"),
        ("8,64;16,64;;8,1,2;16,1,2", f"{E5};{E2M1};;{E8};{E8}"),
    ],
)
def test_other_products_of_eight_and_four_bits_are_refused(case_of, inputs, dtypes):
    case = case_of("QuantBatchMatmulV4", inputs, dtypes, "8,16", "DT_BF16")
    assert find_operator("QuantBatchMatmulV4").rejection_reason(case, "npu")
