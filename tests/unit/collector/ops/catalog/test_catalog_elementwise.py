"""Arithmetic, comparisons, logic, activations and the optimiser against independent sources."""

import math
from dataclasses import replace

import pytest

from collector.codec.errors import CaseRejected
from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import CpuMaker, assert_rejected, gradients

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("kernel", "function"),
    [
        ("Add", lambda x, y: x + y),
        ("Sub", lambda x, y: x - y),
        ("Mul", lambda x, y: x * y),
        ("Pow", lambda x, y: x**y),
        ("RealDiv", lambda x, y: x / y),
        ("FloorDiv", lambda x, y: x // y),
        ("FloorMod", lambda x, y: x % y),
        ("Maximum", max),
        ("Minimum", min),
    ],
)
def test_arithmetic_with_a_scalar(torch, case_of, build, launch, kernel, function):
    case = case_of(kernel, "5;", "DOUBLE;DOUBLE", "5", "DOUBLE")
    x, y = (call := build(case)).args
    expected = [function(a, y.item()) for a in x.tolist()]
    assert launch(case, call)[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kernel", "function"),
    [
        ("Equal", lambda x, y: x == y),
        ("NotEqual", lambda x, y: x != y),
        ("Greater", lambda x, y: x > y),
        ("GreaterEqual", lambda x, y: x >= y),
        ("Less", lambda x, y: x < y),
        ("LessEqual", lambda x, y: x <= y),
    ],
)
def test_comparisons(torch, case_of, build, launch, kernel, function):
    case = case_of(kernel, "40;40", "INT32;INT32", "40", "BOOL")
    x, y = (call := build(case)).args
    expected = [function(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert launch(case, call)[0].tolist() == expected
    assert {True, False} == set(expected)


@pytest.mark.parametrize(
    ("kernel", "function"),
    [
        ("Cos", math.cos),
        ("Sin", math.sin),
        ("Abs", abs),
        ("Neg", lambda x: -x),
        ("Exp", math.exp),
        ("Log", math.log),
        ("Log1p", math.log1p),
        ("Sqrt", math.sqrt),
        ("Rsqrt", lambda x: x**-0.5),
        ("Reciprocal", lambda x: 1 / x),
        ("Tanh", math.tanh),
        ("Sigmoid", lambda x: 1 / (1 + math.exp(-x))),
        ("Swish", lambda x: x / (1 + math.exp(-x))),
        ("Relu", lambda x: max(x, 0.0)),
        ("GeluV2", lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
    ],
)
def test_functions_of_one_tensor(torch, case_of, build, launch, kernel, function):
    case = case_of(kernel, "5", "DOUBLE", "5", "DOUBLE")
    call = build(case)
    expected = [function(x) for x in call.args[0].tolist()]
    assert launch(case, call)[0].tolist() == pytest.approx(expected)


def test_product_with_a_host_scalar(torch, case_of, build, launch):
    case = case_of("Muls", "5", "DT_BF16", "5", "DT_BF16")
    call = build(case)
    torch.testing.assert_close(launch(case, call)[0], call.args[0] / 2)


def test_pows_without_an_exponent_shape_is_a_square(torch, case_of, build, launch):
    case = case_of("Pows", "5;", "FLOAT;FLOAT", "5", "FLOAT")
    call = build(case)
    torch.testing.assert_close(launch(case, call)[0], call.args[0] * call.args[0])


def test_tanh_gelu_is_close_to_erf_gelu(torch, case_of, build, launch):
    case = case_of("Gelu", "60", "FLOAT", "60", "FLOAT")
    call = build(case)
    expected = [x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in call.args[0].tolist()]
    assert launch(case, call)[0].tolist() == pytest.approx(expected, abs=1e-3)


def test_the_sum_of_a_float_and_a_16_bit_tensor_is_float(torch, case_of, build, launch):
    case = case_of("Add", "12,8;12,8", "FLOAT;DT_BF16", "12,8", "FLOAT")
    x, y = (call := build(case)).args
    torch.testing.assert_close(launch(case, call)[0], x + y.float())


@pytest.mark.parametrize(
    ("kernel", "function"),
    [("LogicalAnd", lambda x, y: x and y), ("LogicalOr", lambda x, y: x or y)],
)
def test_logic(torch, case_of, build, launch, kernel, function):
    case = case_of(kernel, "40;40", "BOOL;BOOL", "40", "BOOL")
    x, y = (call := build(case)).args
    expected = [function(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert launch(case, call)[0].tolist() == expected
    assert {True, False} == set(expected)


def test_negation(torch, case_of, build, launch):
    case = case_of("LogicalNot", "40", "BOOL", "40", "BOOL")
    call = build(case)
    assert launch(case, call)[0].tolist() == [not x for x in call.args[0].tolist()]


def test_square_of_integers(torch, case_of, build, launch):
    case = case_of("Square", "40", "INT32", "40", "INT32")
    call = build(case)
    assert launch(case, call)[0].tolist() == [x * x for x in call.args[0].tolist()]


def test_selection(torch, case_of, build, launch):
    case = case_of("SelectV2", "40;40;", "BOOL;FLOAT;FLOAT", "40", "FLOAT")
    condition, then, otherwise = (call := build(case)).args
    pairs = zip(condition.tolist(), then.tolist(), strict=True)
    expected = [x if holds else otherwise.item() for holds, x in pairs]
    assert launch(case, call)[0].tolist() == expected


def test_masked_elements_become_zero_in_place(torch, case_of, build, launch):
    case = case_of("MaskedFill", "5,8;5,1;", "FLOAT;BOOL;FLOAT", "5,8", "FLOAT")
    x, mask, _ = (call := build(case)).args
    before = x.clone()
    (out,) = launch(case, call)
    assert out is x
    for row, kept, hidden in zip(out, before, mask.view(-1).tolist(), strict=True):
        assert row.tolist() == ([0.0] * 8 if hidden else kept.tolist())


@pytest.mark.parametrize(("reported", "share"), [("0", 0), ("10", 0.1), ("100", 1), (None, 0.5)])
def test_mask_has_the_density_of_its_row(case_of, build, reported, share):
    case = case_of("MaskedFill", "50,80;50,80;", "FLOAT;BOOL;FLOAT", "50,80", "FLOAT")
    message = (("Runtime mask_density", reported),) if reported else ()
    _, mask, _ = build(replace(case, attributes=message)).args
    assert mask.float().mean().item() == pytest.approx(share, abs=0.03)


def test_mask_density_above_100_percent_is_refused(case_of, build):
    case = case_of("MaskedFill", "5,8;5,8;", "FLOAT;BOOL;FLOAT", "5,8", "FLOAT")
    with pytest.raises(CaseRejected, match="Runtime mask_density"):
        build(replace(case, attributes=(("Runtime mask_density", "101"),)))


@pytest.mark.parametrize(("dtype", "low"), [("FLOAT", -1), ("INT32", -1), ("UINT8", 0)])
def test_clipped_values_are_within_the_interval(torch, case_of, build, launch, dtype, low):
    case = case_of("ClipByValueV2", "60;;", f"{dtype};{dtype};{dtype}", "60", dtype)
    call = build(case)
    expected = [min(max(x, low), 1) for x in call.args[0].tolist()]
    assert launch(case, call)[0].tolist() == expected


@pytest.mark.parametrize(("kernel", "function"), [("ReluGrad", "relu"), ("SiluGrad", "silu")])
def test_gradients_of_activations(torch, case_of, build, launch, kernel, function):
    case = case_of(kernel, "40;40", "DOUBLE;DOUBLE", "40", "DOUBLE")
    gradient, x = (call := build(case)).args
    leaf = x.clone().requires_grad_()
    getattr(torch.nn.functional, function)(leaf).backward(gradient)
    torch.testing.assert_close(launch(case, call)[0], leaf.grad)


def swiglu(torch, x):
    half = x.shape[-1] // 2
    return torch.sigmoid(x[..., :half]) * x[..., :half] * x[..., half:]


def test_swi_glu(torch, case_of, build, launch):
    case = case_of("SwiGlu", "6,8", "FLOAT", "6,4", "FLOAT")
    call = build(case)
    torch.testing.assert_close(launch(case, call)[0], swiglu(torch, call.args[0]))


def test_swi_glu_grad(torch, case_of, build, launch):
    case = case_of("SwiGluGrad", "6,4;6,8", "FLOAT;FLOAT", "6,8", "FLOAT")
    dy, x = (call := build(case)).args
    (expected,) = gradients(torch, lambda x: swiglu(torch, x), (x,), dy)
    torch.testing.assert_close(launch(case, call)[0], expected)


def test_muls_add(torch, case_of, build, launch):
    case = case_of("muls_add_kernel", "6,16;6,16", "FLOAT;FLOAT", "6,16", "FLOAT")
    x, y, factor = (call := build(case)).args
    torch.testing.assert_close(launch(case, call)[0], x * factor + y)


def test_scaled_tensor_is_added(torch, case_of, build, launch):
    case = case_of("Axpy", "6,16;16", "FLOAT;FLOAT", "6,16", "FLOAT")
    x, y = (call := build(case)).args
    torch.testing.assert_close(launch(case, call)[0], x + 2.5 * y)


def test_product_with_a_tensor_is_added(torch, case_of, build, launch):
    case = case_of("AxpyV2", "6,16;16;6,1", "FLOAT;FLOAT;FLOAT", "6,16", "FLOAT")
    x, y, factor = (call := build(case)).args
    torch.testing.assert_close(launch(case, call)[0], x + factor * y)


@pytest.mark.parametrize("launches", [1, 3])
@pytest.mark.parametrize(
    ("kernel", "inputs", "dtypes"),
    [
        ("ApplyAdamWV2", "24;24;24;24;1", "FLOAT;FLOAT;FLOAT;FLOAT;INT64"),
        ("ApplyAdamW", "24;24;24;;;;;;;;24", ";".join(["FLOAT"] * 11)),
    ],
)
def test_optimiser_step(torch, case_of, build, launch, launches, kernel, inputs, dtypes):
    case = case_of(kernel, inputs, dtypes, "N/A", "N/A")
    var, m, v, grad, *reported = (call := build(case)).args
    step = reported[0] if reported else torch.tensor(10)
    weight = torch.nn.Parameter(var.clone())
    optimizer = torch.optim.AdamW([weight])
    optimizer.state[weight] = {"exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    weight.grad = grad.clone()
    for _ in range(launches):
        # torch counts a step before using it; the kernel gets the number.
        optimizer.state[weight]["step"] = torch.tensor(float(step.item() - 1))
        optimizer.step()
        outputs = launch(case, call)
    state = optimizer.state[weight]
    expected = (weight.data, state["exp_avg"], state["exp_avg_sq"])
    for actual, correct in zip(outputs, expected, strict=True):
        torch.testing.assert_close(actual, correct)
    assert outputs[0] is var


def test_fast_gelu_and_its_gradient_equal_the_sigmoid_formula(torch, case_of, build, launch):
    case = case_of("FastGelu", "60", "DOUBLE", "60", "DOUBLE")
    call = build(case)
    (x,) = call.args
    torch.testing.assert_close(launch(case, call)[0], x / (1 + (-1.702 * x).exp()))
    case = case_of("FastGeluGrad", "60;60", "DOUBLE;DOUBLE", "60", "DOUBLE")
    call = build(case)
    dy, x = call.args
    at = x.clone().requires_grad_()
    (at * torch.sigmoid(1.702 * at)).backward(dy)
    torch.testing.assert_close(launch(case, call)[0], at.grad)


def test_random_bits_fill_the_output(torch, case_of, build, launch):
    cells = ("DSAStatelessGenBitMask", "1;;1;2", "INT64;UINT64;FLOAT16;INT64", "96", "UINT8")
    case = case_of(*cells)
    op = find_operator(case.kernel_type)
    (out,) = launch(case, build(case))
    assert (out.shape, out.dtype) == ((96,), torch.uint8)
    assert 0.3 < float((out.unsqueeze(-1) >> torch.arange(8) & 1).float().mean()) < 0.7
    share, bits, dropped, *_ = op.npu.build(case, CpuMaker(torch)).args
    assert (share.dtype, bits, dropped) == (torch.float16, [8 * 96], 0.5)
    assert_rejected(case_of(*cells[:3], "90", "UINT8"), "npu", "n % 16 == 0")
