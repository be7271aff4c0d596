"""Reductions, running sums, searches, softmaxes and histograms against independent sources."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from collector.codec.errors import CaseRejected
from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import assert_rejected

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("kernel", "fold"),
    [
        ("ReduceSum", math.fsum),
        ("ReduceMean", lambda row: math.fsum(row) / len(row)),
        ("ReduceMax", max),
        ("ReduceMin", min),
    ],
)
def test_rows_are_reduced_to_one_number_each(torch, case_of, build, launch, kernel, fold):
    case = case_of(kernel, "3,16;1", "DOUBLE;INT64", "3", "DOUBLE")
    call = build(case)
    expected = [fold(row) for row in call.args[0].tolist()]
    assert launch(case, call)[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("kernel", "fold"), [("ReduceAll", all), ("ReduceAny", any)])
@pytest.mark.parametrize(("axes", "out"), [("1", "5"), ("2", "")])
def test_any_and_all_of_rows(torch, case_of, build, launch, kernel, fold, axes, out):
    case = case_of(kernel, f"5,2;{axes}", "BOOL;INT64", out, "BOOL")
    call = build(case)
    rows = call.args[0].tolist()
    expected = [fold(row) for row in rows] if out else fold(sum(rows, []))
    assert launch(case, call)[0].tolist() == expected


@pytest.mark.parametrize(
    ("axes", "out", "dims", "stays"),
    [
        ("1", "1,6,9", (0,), True),
        ("2", "6", (0, 2), False),
        ("3", "", (0, 1, 2), False),
        ("1", "4,6,1", (2,), True),
    ],
)
def test_reduced_dimensions_are_those_that_the_output_lacks(
    torch, case_of, build, launch, axes, out, dims, stays
):
    case = case_of("ReduceSum", f"4,6,9;{axes}", "FLOAT;INT64", out, "FLOAT")
    call = build(case)
    expected = call.args[0].double().sum(dims, keepdim=stays).float()
    torch.testing.assert_close(launch(case, call)[0], expected)


def test_last_one_of_equal_dimensions_is_reduced(torch, case_of, build, launch):
    case = case_of("ReduceMax", "7,7;1", "INT32;INT64", "7", "INT32")
    call = build(case)
    call.args[0].copy_(torch.arange(49).view(7, 7))
    assert launch(case, call)[0].tolist() == list(range(6, 49, 7))


@pytest.mark.parametrize(("axis", "dim"), [("INT64", 0), ("INT32", 1)])
def test_cumulative_sum_uses_the_given_axis(torch, case_of, build, launch, axis, dim):
    case = case_of("Cumsum", "3,4;1", f"INT32;{axis}", "3,4", "INT32")
    call = build(case)
    (out,) = launch(case, call)
    slices, sums = call.args[0].unbind(dim), out.unbind(dim)
    for n, total in enumerate(sums, 1):
        assert total.tolist() == sum(slices[:n]).tolist()


@pytest.mark.parametrize(("out", "dtype"), [("5", "INT32"), ("5,1", "INT64")])
def test_argmax_returns_the_position_of_the_maximum(torch, case_of, build, launch, out, dtype):
    case = case_of("ArgMaxV2", "5,30;", "FLOAT;INT64", out, dtype)
    call = build(case)
    expected = [row.index(max(row)) for row in call.args[0].tolist()]
    assert launch(case, call)[0].view(-1).tolist() == expected


def test_softmax_and_its_logarithm(torch, case_of, build, launch):
    for kernel, function in (("SoftmaxV2", lambda p: p), ("LogSoftmaxV2", math.log)):
        case = case_of(kernel, "3,8", "DOUBLE", "3,8", "DOUBLE")
        call = build(case)
        powers = [[math.exp(x) for x in row] for row in call.args[0].tolist()]
        expected = [function(p / math.fsum(row)) for row in powers for p in row]
        assert launch(case, call)[0].view(-1).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kernel", "name", "flip"),
    [("SoftmaxGrad", "softmax", True), ("LogSoftmaxGrad", "log_softmax", False)],
)
def test_gradients_of_a_softmax(torch, case_of, build, launch, kernel, name, flip):
    case = case_of(kernel, "3,8;3,8", "DOUBLE;DOUBLE", "3,8", "DOUBLE")
    call = build(case)
    gradient, result = reversed(call.args) if flip else call.args
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    y = getattr(torch, name)(x, -1)
    result.copy_(y.detach())
    y.backward(gradient)
    torch.testing.assert_close(launch(case, call)[0], x.grad)


@pytest.mark.parametrize("shape", [(), (6,), (2, 3, 4)])
def test_narrowed_indices_are_unchanged(torch, shape):
    from collector.ops.catalog.rowwise.ordering import narrowed

    indices = torch.randint(0, 2**31, shape)
    for dtype in (torch.int32, torch.int64):
        seen = narrowed(indices, dtype)
        assert (seen.dtype, seen.tolist()) == (dtype, indices.tolist())
        assert seen.data_ptr() == indices.data_ptr()  # no copy


@pytest.mark.parametrize("out", ["", "1"])
@pytest.mark.parametrize("kernel", ["LpNormV2", "LpNormReduceV2"])
def test_norm(torch, case_of, build, launch, kernel, out):
    case = case_of(kernel, "6,10", "FLOAT", out, "FLOAT")
    find_operator(kernel).check(case, "npu")
    call = build(case)
    expected = math.sqrt(math.fsum(x * x for x in call.args[0].flatten().tolist()))
    assert launch(case, call)[0].item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("x", "out", "dims"),
    [
        ("6,4,8", "6,8", {1}),
        ("6,4,8", "1,4,1", {0, 2}),
        ("6,6", "6", {1}),  # the last of equal dimensions
        ("6,4", "", {0, 1}),
    ],
)
def test_compiled_in_dimensions_are_derived_from_the_output(torch, case_of, build, x, out, dims):
    case = replace(case_of("ReduceSumD", x, "FLOAT", out, "FLOAT"), op_state="static")
    find_operator("ReduceSumD").check(case, "npu")
    tensor, folded, stays = build(case).args
    assert set(folded) == dims
    letters = "abc"[: tensor.dim()]
    left = "".join(letter for at, letter in enumerate(letters) if at not in dims)
    expected = torch.einsum(f"{letters}->{left}", tensor.double())
    summed = find_operator("ReduceSumD").run_reference(torch, tensor, folded, stays)
    assert summed.shape == torch.Size(map(int, out.split(",")) if out else ())
    torch.testing.assert_close(summed.reshape(expected.shape), expected.float())


@pytest.mark.parametrize(
    ("x", "out", "state", "rule"),
    [
        ("6,4", "5", "static", "output & dimensions"),
        ("6,4", "6,4", "static", "output & dimensions"),
        ("6,4", "6,2", "static", "output & dimensions"),
        ("0,4", "4", "static", "s > 0"),
        ("6,4", "6", "dynamic", "OP State & static"),
    ],
)
def test_unsupported_reductions_of_a_graph_are_refused(case_of, x, out, state, rule):
    case = replace(case_of("ReduceSumD", x, "FLOAT", out, "FLOAT"), op_state=state)
    assert_rejected(case, "npu", rule)


def test_sort_is_descending_and_returns_the_original_positions(torch, case_of, build, launch):
    case = case_of("Sort", "3,16", "FLOAT", "3,16;3,16", "FLOAT;INT32")
    call = build(case)
    values, origins = launch(case, call)
    assert values.tolist() == [sorted(row, reverse=True) for row in call.args[0].tolist()]
    torch.testing.assert_close(call.args[0].gather(1, origins.long()), values)


@pytest.mark.parametrize("dtype", ["INT32", "INT64", "FLOAT"])
def test_a_histogram_counts_each_number(torch, case_of, build, launch, dtype):
    case = case_of("HistogramV2", "300;;", f"{dtype};{dtype};{dtype}", "8", "INT32")
    call = build(case)
    counts = Counter(int(x) for x in call.args[0].tolist())
    assert launch(case, call)[0].tolist() == [counts[i] for i in range(8)]
    assert all(counts.values())


@pytest.mark.parametrize(("out", "dim"), [("3,5", 2), ("3,1,8", 1), ("5,8", 0)])
def test_maximum_and_its_position(torch, case_of, build, launch, out, dim):
    case = case_of("ArgMaxWithValue", "3,5,8", "FLOAT", f"{out};{out}", "INT32;FLOAT")
    call = build(case)
    indices, values = launch(case, call)
    x = call.args[0].movedim(dim, -1).reshape(-1, (3, 5, 8)[dim]).tolist()
    assert values.flatten().tolist() == [max(row) for row in x]
    assert indices.flatten().tolist() == [row.index(max(row)) for row in x]


def test_a_softmax_scales_and_masks_as_its_gradient_does(torch, case_of, build, launch):
    shapes, mask = "2,3,32,64", "2,1,32,64"
    case = case_of("ScaledMaskedSoftmax", f"{shapes};{mask}", "FLOAT;BOOL", shapes, "FLOAT")
    call = build(case)
    x, hidden = call.args
    expected = torch.where(hidden, float("-inf"), x.double()).softmax(-1)
    torch.testing.assert_close(launch(case, call)[0].double(), expected, rtol=1e-5, atol=1e-6)
    cells = (f"{shapes};{shapes};{mask}", "FLOAT;FLOAT;BOOL", shapes, "FLOAT")
    case = case_of("ScaledMaskedSoftmaxGrad", *cells)
    call = build(case)
    dy, y, hidden = (tensor.double() for tensor in call.args)
    expected = y * (dy - (dy * y).sum(-1, keepdim=True)) * (1 - hidden)
    torch.testing.assert_close(launch(case, call)[0].double(), expected, rtol=1e-4, atol=1e-4)
    wrong = case_of("ScaledMaskedSoftmax", f"{shapes};2,3,64,64", "FLOAT;BOOL", shapes, "FLOAT")
    assert_rejected(wrong, "npu", "mask & broadcasts")


def test_a_sum_of_a_graph_without_op_state_is_compiled_for_its_sizes(case_of):
    case = case_of("ReduceSumD", "6,4,8", "FLOAT", "6,4", "FLOAT")
    op = find_operator("ReduceSumD")
    op.check(case, "npu")
    assert op.graph_of(case).is_static
    with pytest.raises(CaseRejected):
        op.check(replace(case, op_state="dynamic"), "npu")
