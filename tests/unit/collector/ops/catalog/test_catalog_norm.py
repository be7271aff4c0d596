"""Normalisations against torch's own functions and autograd."""

import pytest

from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import assert_rejected, gradients

pytestmark = pytest.mark.torch

F3 = "FLOAT;FLOAT;FLOAT"


def normal(torch, x, gamma):
    return torch.nn.functional.rms_norm(x, gamma.shape, gamma, 1e-6)


@pytest.mark.parametrize("kernel", ["AddRmsNorm", "AddRmsNormBias", "InplaceAddRmsNorm"])
@pytest.mark.parametrize(
    ("x", "gamma", "rstd"), [("6,16", "16", "6,1"), ("2,3,4,8", "4,8", "2,3,1,1")]
)
def test_a_sum_is_normalised(torch, case_of, build, launch, kernel, x, gamma, rstd):
    case = case_of(kernel, f"{x};{x};{gamma}", F3, f"{x};{rstd};{x}", F3)
    call = build(case)
    x1, x2, weight = (tensor.clone() for tensor in call.args)
    y, inverse, total = launch(case, call)
    torch.testing.assert_close(total, x1 + x2)
    torch.testing.assert_close(y, normal(torch, x1 + x2, weight))
    dims = tuple(range(-weight.dim(), 0))
    norm = torch.linalg.vector_norm(x1 + x2, dim=dims, keepdim=True)
    torch.testing.assert_close(inverse, weight.numel() ** 0.5 / norm, rtol=1e-4, atol=1e-5)


def test_bias_is_added_after_the_norm(torch, case_of, build, launch):
    case = case_of("AddRmsNormBias", "6,16;6,16;16;16", f"{F3};FLOAT", "6,16;6,1;6,16", F3)
    x1, x2, gamma, beta = (call := build(case)).args
    torch.testing.assert_close(launch(case, call)[0], normal(torch, x1 + x2, gamma) + beta)


def test_in_place_norm_writes_over_its_inputs(torch, case_of, build, launch):
    case = case_of("InplaceAddRmsNorm", "6,16;6,16;16", F3, "6,16;6,1;6,16", F3)
    call = build(case)
    y, _, total = launch(case, call)
    assert y is call.args[0]
    assert total is call.args[1]


def test_npu_run_of_an_in_place_norm_returns_the_inputs_and_the_statistics(torch, case_of, build):
    case = case_of("InplaceAddRmsNorm", "6,16;6,16;16", F3, "6,16;6,1;6,16", F3)
    x1, x2, gamma = build(case).args
    given = find_operator("InplaceAddRmsNorm").npu.run(lambda *tensors: len(tensors), x1, x2, gamma)
    assert given == (x1, 3, x2)


QUANT = "AddRmsNormDynamicQuant"


def int8_rows(torch, wide):
    scale = wide.abs().amax(-1) / 127
    return (wide / scale.unsqueeze(-1)).round().to(torch.int8), scale


@pytest.mark.parametrize("more", [False, True])
def test_normalised_sum_is_quantised_by_given_scales(torch, case_of, build, launch, more):
    slots, dtype = (";16;;16", "DT_BF16") if more else (";;;", "DT_UNDEFINED")
    dtypes = f"{';'.join(['DT_BF16'] * 4)};DT_UNDEFINED;{dtype};DT_UNDEFINED;{dtype}"
    outputs = ("6,16;6,16;6,16", "INT8;INT8;DT_BF16")
    case = case_of("AddRmsNormQuant", f"6,16;6,16;16;16;{slots}", dtypes, *outputs)
    call = build(case, wide=True)
    x1, x2, gamma, scales, zeros, beta, room = call.args
    rows, second, total = launch(case, call)
    torch.testing.assert_close(total, x1 + x2)
    assert second is room  # not written
    y = normal(torch, x1 + x2, gamma) + (beta if more else 0)
    expected = (y / scales + (zeros if more else 0)).round().clamp(-128, 127)
    assert int((rows.int() - expected.int()).abs().max()) <= 1


@pytest.mark.parametrize("smooth", [0, 1, 2])
def test_a_normalised_sum_is_quantised_twice(torch, case_of, build, launch, smooth):
    slots = "16;" * smooth + ";" * (2 - smooth) + "16"  # and a beta
    dtypes = ["DT_BF16"] * (3 + smooth) + ["DT_UNDEFINED"] * (2 - smooth) + ["DT_BF16"]
    outputs = ("6,16;6,16;6,16;6;6", "INT8;INT8;DT_BF16;FLOAT;FLOAT")
    case = case_of(QUANT, f"6,16;6,16;16;{slots}", ";".join(dtypes), *outputs)
    call = build(case, wide=True)
    x1, x2, gamma = call.args
    y = normal(torch, x1 + x2, gamma) + call.kwargs["beta"]
    y1, y2, total, scale1, scale2 = launch(case, call)
    torch.testing.assert_close(total, x1 + x2)
    for name, rows, scale in (("smooth_scale1", y1, scale1), ("smooth_scale2", y2, scale2)):
        expected, scales = int8_rows(torch, y * call.kwargs.get(name, 1))
        torch.testing.assert_close(scale, scales)
        assert int((rows.int() - expected.int()).abs().max()) <= 1
    assert call.kwargs["output_mask"] == [True, True]


def test_second_quantisation_is_optional(torch, case_of, build, launch):
    outputs = ("6,16;;6,16;6;", "INT8;INT8;DT_BF16;FLOAT;FLOAT")
    case = case_of(QUANT, "6,16;6,16;16", ";".join(["DT_BF16"] * 3), *outputs)
    call = build(case)
    _, y2, _, _, scale2 = launch(case, call)
    assert (y2, scale2) == (None, None)
    assert call.kwargs["output_mask"] == [True, False]
    run = find_operator(QUANT).npu.run
    given = run(lambda *tensors, **options: tuple("abcde"), *call.args, **call.kwargs)
    assert given == ("a", None, "c", "d", None)


@pytest.mark.parametrize(
    ("inputs", "outputs", "rule"),
    [
        ("6,16;6,16;16;;16", "6,16;6,16;6,16;6;6", "has_smooth_scale2"),
        ("6,16;6,16;16;16;16", "6,16;;6,16;6;", "has_smooth_scale2 & has_y2"),
        ("6,16;6,16;16", "6,16;;6,16;6;6", "has_scale2"),
        ("6,16;6,16;8", "6,16;6,16;6,16;6;6", "'gamma'"),
    ],
)
def test_unsupported_quantised_norms_are_refused(case_of, inputs, outputs, rule):
    dtypes = ";".join("DT_BF16" if shape else "DT_UNDEFINED" for shape in inputs.split(";"))
    case = case_of(QUANT, inputs, dtypes, outputs, "INT8;INT8;DT_BF16;FLOAT;FLOAT")
    assert_rejected(case, "npu", rule)


@pytest.mark.parametrize("kernel", ["LayerNormV3", "LayerNormV3WithImplMode"])
@pytest.mark.parametrize(
    ("x", "gamma", "rows"), [("6,16", "16", "6,1"), ("2,3,4,8", "4,8", "2,3,1,1")]
)
def test_layer_norm(torch, case_of, build, launch, kernel, x, gamma, rows):
    case = case_of(kernel, f"{x};{gamma};{gamma}", F3, f"{x};{rows};{rows}", F3)
    tensor, weight, beta, _ = (call := build(case)).args
    y, mean, rstd = launch(case, call)
    torch.testing.assert_close(
        y, torch.nn.functional.layer_norm(tensor, weight.shape, weight, beta)
    )
    dims = tuple(range(-weight.dim(), 0))
    torch.testing.assert_close(mean, tensor.mean(dims, keepdim=True))
    variance = tensor.var(dims, unbiased=False, keepdim=True)
    torch.testing.assert_close(rstd, (variance + 1e-5).rsqrt())


@pytest.mark.parametrize("dtype", ["FLOAT16", "DT_BF16"])
def test_layer_norm_returns_statistics_in_the_dtype_of_gamma(torch, case_of, build, dtype):
    half, name = ";".join([dtype] * 3), "LayerNormV3"
    case = case_of(name, "6,16;16;16", half, "6,16;6,1;6,1", half)
    find_operator(name).check(case, "npu")
    x, gamma, beta, correct = (call := build(case)).args
    y, mean, rstd = find_operator(name).run_reference(torch, *call.args)
    torch.testing.assert_close(mean, x.double().mean(-1, keepdim=True).to(correct))
    assert {number.dtype for number in (y, mean, rstd)} == {x.dtype} == {correct}
    of_npu = find_operator(name).npu.run(lambda *_: (y, mean.float(), rstd.float()), *call.args)
    assert [tensor.dtype for tensor in of_npu] == [correct] * 3
    other = f"{dtype};FLOAT;FLOAT"
    find_operator(name).check(case_of(name, "6,16;16;16", half, "6,16;6,1;6,1", other), "npu")
    mixed = case_of(name, "6,16;16;16", other, "6,16;6,1;6,1", half)
    assert_rejected(mixed, "npu", "'mean'")


def test_layer_norm_of_a_sum(torch, case_of, build, launch):
    outputs = ("6,16;6,1;6,1;6,16", f"{F3};FLOAT")
    case = case_of("AddLayerNorm", "6,16;6,16;16;16", f"{F3};FLOAT", *outputs)
    x1, x2, gamma, beta = (call := build(case)).args
    y, mean, _, total = launch(case, call)
    torch.testing.assert_close(total, x1 + x2)
    torch.testing.assert_close(mean, (x1 + x2).mean(-1, keepdim=True))
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(x1 + x2, (16,), gamma, beta))


def test_sum_output_of_a_layer_norm_is_optional(case_of, build, launch):
    outputs = ("6,16;6,1;6,1;", f"{F3};FLOAT")
    case = case_of("AddLayerNorm", "6,16;6,16;16;16", f"{F3};FLOAT", *outputs)
    assert launch(case, build(case))[3] is None
    given = find_operator("AddLayerNorm").npu.run(
        lambda *args: args[:4], 1, 2, 3, 4, keeps_the_sum=False
    )
    assert given == (1, 2, 3, None)


def test_rms_norm_gradient_passes_its_tensors_in_the_order_of_the_api(torch, case_of, build):
    cells = ("6,8;6,8;6,1;8", ";".join(["FLOAT"] * 4), "6,8;8", "FLOAT;FLOAT")
    dy, x, rstd, gamma = build(case_of("RmsNormGrad", *cells)).args
    given = find_operator("RmsNormGrad").npu.run(lambda *tensors: tensors, dy, x, rstd, gamma)
    assert all(a is b for a, b in zip(given, (dy, x, gamma, rstd), strict=True))


@pytest.mark.parametrize(
    ("x", "gamma", "rstd"), [("6,1,8", "8", "6,1,1"), ("6,3,2,4", "2,4", "6,3,1,1")]
)
def test_rms_norm(torch, case_of, build, launch, x, gamma, rstd):
    case = case_of("RmsNorm", f"{x};{gamma}", "FLOAT;FLOAT", f"{x};{rstd}", "FLOAT;FLOAT")
    tensor, weight = (call := build(case)).args
    y, inverse = launch(case, call)
    expected = torch.nn.functional.rms_norm(tensor, weight.shape, weight, 1e-6)
    torch.testing.assert_close(y, expected)
    dims = tuple(range(-weight.dim(), 0))
    norm = torch.linalg.vector_norm(tensor, dim=dims, keepdim=True)
    torch.testing.assert_close(inverse, weight.numel() ** 0.5 / norm, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "gamma", "rstd"), [("6,1,8", "8", "6,1,1"), ("6,3,2,4", "2,4", "6,3,1,1")]
)
def test_rms_norm_grad(torch, case_of, build, launch, x, gamma, rstd):
    cells = (f"{x};{x};{rstd};{gamma}", "FLOAT;FLOAT;FLOAT;FLOAT", f"{x};{gamma}", "FLOAT;FLOAT")
    case = case_of("RmsNormGrad", *cells)
    call = build(case)
    dy, tensor, inverse, weight = call.args
    dims = tuple(range(-weight.dim(), 0))
    inverse.copy_(tensor.square().mean(dims, keepdim=True).add(1e-6).rsqrt())

    def forward(x, gamma):
        return torch.nn.functional.rms_norm(x, gamma.shape, gamma, 1e-6)

    expected = gradients(torch, forward, (tensor, weight), dy)
    for actual, correct in zip(launch(case, call), expected, strict=True):
        torch.testing.assert_close(actual, correct)


def test_rms_norm_output_is_quantised_row_by_row(torch, case_of, build, launch):
    cells = ("6,16;16;16;;16", "FLOAT16;FLOAT16;FLOAT16;DT_UNDEFINED;FLOAT16")
    case = case_of("RmsNormDynamicQuant", *cells, "6,16;;6;", "INT8;INT8;FLOAT;FLOAT")
    x, gamma = (call := build(case, wide=True)).args
    y = normal(torch, x, gamma) + call.kwargs["beta"]
    expected, scales = int8_rows(torch, y * call.kwargs["smooth_scale"])
    actual, absent, scale, second = launch(case, call)
    assert absent is second is None
    assert (actual.int() - expected.int()).abs().max() <= 1
    torch.testing.assert_close(scale, scales)


def hyper_connection(case_of):
    shapes = "3,4,4096;24,16384;3;24", "3,4096;3,4;3,4,4"
    return case_of("HcPre", shapes[0], f"DT_BF16;{F3}", shapes[1], "DT_BF16;FLOAT;FLOAT")


def test_streams_without_a_projection_use_the_base_alone(torch, case_of, build, launch):
    case = hyper_connection(case_of)
    x, projection, _, base, *_ = (call := build(case, wide=True)).args
    projection.zero_()
    y, write, _ = launch(case, call)
    expected = torch.einsum("s,tsd->td", base[:4].sigmoid(), x)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(write, 2 * base[4:8].sigmoid().expand(3, 4))


def test_streams_are_mixed_by_a_doubly_stochastic_matrix(torch, case_of, build, launch):
    case = hyper_connection(case_of)
    *_, mix = launch(case, build(case, wide=True))
    assert (mix > 0).all()
    for dim in (-1, -2):
        torch.testing.assert_close(mix.sum(dim), torch.ones(3, 4), rtol=1e-2, atol=1e-2)


def test_a_block_s_output_is_spread_over_the_mixed_streams(torch, case_of, build, launch):
    case = case_of("HcPost", "1,3,8;1,3,4,8;1,3,4;1,3,4,4", f"{F3};FLOAT", "1,3,4,8", "FLOAT")
    x, residual, write, mix = (call := build(case)).args
    expected = torch.einsum("btij,btid->btjd", mix, residual)
    expected += torch.einsum("btj,btd->btjd", write, x)
    torch.testing.assert_close(launch(case, call)[0], expected)


def test_the_norm_of_gemma_has_a_weight_of_one_more(torch, case_of, build, launch):
    cells = ("6,64;64", "FLOAT;FLOAT", "6,64;6,1", "FLOAT;FLOAT")
    call = build(case := case_of("GemmaRmsNorm", *cells))
    x, gamma = call.args
    rms = (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
    y, rstd = launch(case, call)
    torch.testing.assert_close(y.double(), x / rms * (1 + gamma.double()), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(rstd.double(), 1 / rms, rtol=1e-5, atol=1e-6)


def test_norm_for_a_router_is_returned_as_float_too(torch, case_of, build, launch):
    outputs, dtypes = "3,8;3,8", "DT_BF16;FLOAT"
    case = case_of("RmsNormCast", "3,8;8", "DT_BF16;DT_BF16", outputs, dtypes)
    call = build(case)
    x, gamma = call.args
    expected = torch.nn.functional.rms_norm(x.double(), (8,), gamma.double(), 1e-6)
    y, wide = launch(case, call)
    torch.testing.assert_close(y.double(), expected, rtol=0.01, atol=0.01)
    assert torch.equal(wide, y.float())
