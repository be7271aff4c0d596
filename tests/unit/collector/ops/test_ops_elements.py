"""Elementwise operators, copies, lookups and the optimiser against independent sources."""

import math

import pytest

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


def test_a_product_with_a_number_of_the_host(torch, case_of, build, launch):
    case = case_of("Muls", "5", "DT_BF16", "5", "DT_BF16")
    call = build(case)
    torch.testing.assert_close(launch(case, call)[0], call.args[0] / 2)


def test_the_square_that_a_norm_wants(torch, case_of, build, launch):
    case = case_of("Pows", "5;", "FLOAT;FLOAT", "5", "FLOAT")
    call = build(case)
    torch.testing.assert_close(launch(case, call)[0], call.args[0] * call.args[0])


def test_gelu_with_a_tangent_is_near_the_one_with_the_error_function(torch, case_of, build, launch):
    case = case_of("Gelu", "60", "FLOAT", "60", "FLOAT")
    call = build(case)
    expected = [x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in call.args[0].tolist()]
    assert launch(case, call)[0].tolist() == pytest.approx(expected, abs=1e-3)


def test_the_sum_of_a_float_and_a_16_bit_tensor_is_float(torch, case_of, build, launch):
    case = case_of("Add", "12,8;12,8", "FLOAT;DT_BF16", "12,8", "FLOAT")
    x, y = (call := build(case)).args
    torch.testing.assert_close(launch(case, call)[0], x + y.float())


def test_norm(torch, case_of, build, launch):
    case = case_of("LpNormV2", "60", "FLOAT", "", "FLOAT")
    call = build(case)
    expected = math.sqrt(math.fsum(x * x for x in call.args[0].tolist()))
    assert launch(case, call)[0].item() == pytest.approx(expected)


@pytest.mark.parametrize(("kernel", "value"), [("ZerosLike", 0), ("OnesLike", 1)])
def test_fills(torch, case_of, build, launch, kernel, value):
    case = case_of(kernel, "4,6", "FLOAT", "4,6", "FLOAT")
    call = build(case)
    call.args[0].fill_(9)
    assert launch(case, call)[0].unique().tolist() == [value]


def test_cast_and_move_copy_the_source(torch, case_of, build, launch):
    for kernel, target in (("Cast", "DT_BF16"), ("TensorMove", "FLOAT")):
        case = case_of(kernel, "4,6", "FLOAT", "4,6", target)
        place, source = (call := build(case)).args
        (out,) = launch(case, call)
        assert out is place
        torch.testing.assert_close(out, source.to(place.dtype), rtol=0, atol=0)


def test_slice_is_a_dense_copy_of_the_first_block(torch, case_of, build, launch):
    case = case_of("Slice", "12,4,8;3;3", "FLOAT;INT64;INT64", "12,4,2", "FLOAT")
    call = build(case)
    (out,) = launch(case, call)
    assert out.is_contiguous()
    whole = call.args[1]._base
    assert tuple(whole.shape) == (12, 4, 8)
    torch.testing.assert_close(out, whole[:, :, :2], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("parts", "whole", "dim"), [("5,3;5,4", "5,7", 1), ("2,3;4,3", "6,3", 0), ("2,3;2,3", "2,6", 1)]
)
def test_concatenation_along_the_dimension_that_grows(
    torch, case_of, build, launch, parts, whole, dim
):
    case = case_of("ConcatD", parts, "FLOAT;FLOAT", whole, "FLOAT")
    call = build(case)
    (out,) = launch(case, call)
    sizes = [part.shape[dim] for part in call.args[0]]
    for part, piece in zip(call.args[0], out.split(sizes, dim), strict=True):
        torch.testing.assert_close(piece, part, rtol=0, atol=0)


def test_range_counts_from_zero(torch, case_of, build, launch):
    case = case_of("Range", ";;", "DOUBLE;DOUBLE;DOUBLE", "16", "FLOAT")
    assert launch(case, build(case))[0].tolist() == list(range(16))


def test_sort_is_descending_and_tells_origins(torch, case_of, build, launch):
    case = case_of("Sort", "3,16", "FLOAT", "3,16;3,16", "FLOAT;INT32")
    call = build(case)
    values, origins = launch(case, call)
    assert values.tolist() == [sorted(row, reverse=True) for row in call.args[0].tolist()]
    torch.testing.assert_close(call.args[0].gather(1, origins.long()), values)


def test_non_zero_finds_as_many_as_the_row_says(torch, case_of, build, launch):
    case = case_of("NonZero", "4,5", "BOOL", "7,2", "INT64")
    call = build(case)
    rows = call.args[0].tolist()
    expected = [[i, j] for i in range(4) for j in range(5) if rows[i][j]]
    assert launch(case, call)[0].tolist() == expected
    assert len(expected) == 7


def test_lookup(torch, case_of, build, launch):
    case = case_of("GatherV2", "20,6;3,4;1", "FLOAT;INT64;INT64", "3,4,6", "FLOAT")
    table, indices = (call := build(case)).args
    torch.testing.assert_close(launch(case, call)[0], table[indices])
    assert int(indices.max()) > 8  # all over the table


def test_gradient_of_a_lookup(torch, case_of, build, launch):
    cells = ("2,12,6;24;24", "FLOAT;INT32;INT32", "20,6", "FLOAT")
    case = case_of("EmbeddingDenseGradV2", *cells)
    grad, rows, origins, _ = (call := build(case)).args
    launch(case, call)  # a second launch starts afresh
    table = torch.zeros(20, 6, requires_grad=True)
    looked_up = torch.empty(24, dtype=torch.int64)
    looked_up[origins] = rows
    torch.nn.functional.embedding(looked_up, table).backward(grad)
    torch.testing.assert_close(launch(case, call)[0], table.grad)


@pytest.mark.parametrize("launches", [1, 3])
def test_optimiser_step(torch, case_of, build, launch, launches):
    cells = ("24;24;24;24;1", "FLOAT;FLOAT;FLOAT;FLOAT;INT64", "N/A", "N/A")
    case = case_of("ApplyAdamWV2", *cells)
    var, m, v, grad, step = (call := build(case)).args
    weight = torch.nn.Parameter(var.clone())
    optimizer = torch.optim.AdamW([weight])
    optimizer.state[weight] = {"exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    weight.grad = grad.clone()
    for _ in range(launches):
        # torch counts a step before it uses it; the kernel is told.
        optimizer.state[weight]["step"] = torch.tensor(float(step.item() - 1))
        optimizer.step()
        outputs = launch(case, call)
    state = optimizer.state[weight]
    expected = (weight.data, state["exp_avg"], state["exp_avg_sq"])
    for came, wanted in zip(outputs, expected, strict=True):
        torch.testing.assert_close(came, wanted)
    assert outputs[0] is var
