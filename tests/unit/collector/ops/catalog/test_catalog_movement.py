"""Copies, joins, repeats and fills, against views and sums done by hand."""

from itertools import permutations
from math import prod

import pytest

from collector.engine.calls import RecordedTensor
from collector.engine.views import copied
from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import CpuMaker

pytestmark = pytest.mark.torch

F2, F3 = "FLOAT;INT64", "FLOAT;INT64;INT64"


def recorded(tensor):
    """A tensor as it is passed to the NPU's library."""
    return RecordedTensor(
        dtype=str(tensor.dtype),
        shape=tuple(tensor.shape),
        format="ND",
        strides=tensor.stride(),
        offset=tensor.storage_offset(),
        storage=(tensor.untyped_storage().nbytes() // tensor.itemsize,),
    )


@pytest.mark.parametrize(
    ("source", "target", "order"),
    [
        ("32,5", "5,32", (1, 0)),
        ("6,6", "6,6", (1, 0)),
        ("8,1,6,4", "1,6,4,8", (1, 2, 3, 0)),
        ("3,4,5,2", "2,3,5,4", (3, 0, 2, 1)),
        ("32,8,8", "8,32,8", (1, 0, 2)),
        ("1,8,1,8", "1,8,1,8", (0, 3, 2, 1)),
    ],
)
def test_transpose_permutes_any_dimensions(torch, case_of, build, launch, source, target, order):
    rank = len(order)
    case = case_of("Transpose", f"{source};{rank}", F2, target, "FLOAT")
    call = build(case)
    whole = call.args[1]._base
    (out,) = launch(case, call)
    assert out.is_contiguous()
    torch.testing.assert_close(out, whole.permute(order), rtol=0, atol=0)


def test_transpose_uses_the_first_fitting_permutation(torch, case_of, build, launch):
    case = case_of("Transpose", "2,3,2,3;4", F2, "3,2,2,3", "FLOAT")
    call = build(case)
    whole, (out,) = call.args[1]._base, launch(case, call)
    fitting = (p for p in permutations(range(4)) if whole.permute(p).shape == out.shape)
    torch.testing.assert_close(out, whole.permute(next(fitting)), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("cells", "kernel"),
    [
        (("Transpose", "1,6,2,8;4", F2, "8,1,6,2", "FLOAT"), "Transpose"),
        (("BroadcastTo", "6,1,8;4", F2, "2,6,3,8", "FLOAT"), "BroadcastTo"),
        (("BroadcastTo", ";2", F2, "3,4", "FLOAT"), "BroadcastTo"),
        (("TensorMove", "4,5", "FLOAT", "4,5", "FLOAT"), "TensorMove"),
        (("Cast", "4,5", "FLOAT", "4,5", "DT_BF16"), "Cast"),
        (("AsStrided", "768;3;3;1", f"{F3};INT64", "2,3,64", "FLOAT"), "AsStrided"),
        (("AsStrided", "2304;4;4;1", f"{F3};INT64", "2,3,2,64", "FLOAT"), "AsStrided"),
        (("AsStrided", "8192;3;3;1", f"{F3};INT64", "1,32,128", "FLOAT"), "AsStrided"),
        (("AsStrided", "8192;3;3;1", f"{F3};INT64", "32,1,128", "FLOAT"), "AsStrided"),
        (("AsStrided", "48;2;2;1", f"{F3};INT64", "3,8", "FLOAT"), "AsStrided"),
    ],
)
def test_a_copy_launches_the_kernel_of_the_case(torch, case_of, build, launch, cells, kernel):
    case = case_of(*cells)
    target, source = (call := build(case)).args
    assert copied(recorded(target), recorded(source)) == kernel
    torch.testing.assert_close(launch(case, call)[0], source.to(target.dtype), rtol=0, atol=0)


def test_contiguous_view_is_copied_by_slice(torch):
    def kernel(view):
        return copied(recorded(torch.empty(view.shape)), recorded(view))

    x = torch.empty(6, 8, 64)
    assert kernel(x[:, 2:4, 1:]) == "Slice"
    assert kernel(x[2:4]) == "TensorMove"
    assert kernel(x[::2, ::2]) == "Slice"
    assert kernel(x[:, :, ::2]) == "StridedSlice"
    assert kernel(x[:, :4].transpose(0, 1)) == "AsStrided"
    assert kernel(x[:, :4, :63].transpose(0, 1)) == "Transpose"
    assert kernel(x[:, :4].expand(2, 6, 4, 64)) == "BroadcastTo"
    assert kernel(torch.empty(9).unfold(0, 3, 1)) == "AsStrided"


def test_strided_view_covers_each_element_once(torch, case_of, build):
    for shape in ("2,3,64", "6,64", "5,7"):
        size = 2 * prod(map(int, shape.split(",")))
        rank = shape.count(",") + 1
        case = case_of("AsStrided", f"{size};{rank};{rank};1", f"{F3};INT64", shape, "FLOAT")
        _, view = build(case).args
        places = torch.arange(size).as_strided(view.shape, view.stride())
        assert places.unique().numel() == view.numel()


def test_a_copy_into_a_part_of_rows_leaves_the_rest(torch, case_of, build, launch):
    for memory, view in ((768, "3,2,64"), (50, "3,8"), (96, "1,4,6")):
        rank = view.count(",") + 1
        cells = f"{memory};{rank};{rank};1;{view};{rank};{rank};1"
        dtypes = ";".join(["FLOAT", *["INT64"] * 3, "FLOAT", *["INT64"] * 3])
        case = case_of("ViewCopy", cells, dtypes, str(memory), "FLOAT")
        whole, target, source = (call := build(case)).args
        assert copied(recorded(target), recorded(source)) == "ViewCopy"
        before, places = whole.clone(), torch.arange(memory)
        places = places.as_strided(target.shape, target.stride()).flatten()
        (after,) = launch(case, call)
        assert torch.equal(after[places], source.flatten())
        rest = torch.ones(memory, dtype=torch.bool).index_fill_(0, places, False)
        assert int(rest.sum()) == memory - source.numel()
        assert torch.equal(after[rest], before[rest])
    full = case_of("ViewCopy", "24;2;2;1;3,8;2;2;1", dtypes, "24", "FLOAT")  # as TensorMove copies
    assert "apart" in find_operator("ViewCopy").rejection_reason(full, "cpu")


def test_padding_is_zero_and_at_the_end(torch, case_of, build, launch):
    case = case_of("PadV3", "2,5,3;6;", "FLOAT;INT32;FLOAT", "2,8,4", "FLOAT")
    call = build(case)
    (out,) = launch(case, call)
    torch.testing.assert_close(out[:, :5, :3], call.args[0], rtol=0, atol=0)
    assert out[:, 5:].count_nonzero() == out[:, :, 3:].count_nonzero() == 0


def test_tiles_and_broadcasts_repeat_the_input(torch, case_of, build, launch):
    case = case_of("Tile", "3,2;3", F2, "2,3,6", "FLOAT")
    (x, _), (out,) = (call := build(case)).args, launch(case, call)
    tiles = [out[i, :, j : j + 2] for i in range(2) for j in range(0, 6, 2)]
    assert all(torch.equal(tile, x) for tile in tiles)
    case = case_of("BroadcastTo", "3,1;3", F2, "2,3,4", "FLOAT")
    (_, view), (out,) = (call := build(case)).args, launch(case, call)
    assert all(bool((out[i, :, j] == view[0, :, 0]).all()) for i in range(2) for j in range(4))


@pytest.mark.parametrize(("whole", "dim"), [("2,4,6", 0), ("4,2,6", 1), ("4,6,2", 2)])
def test_packing_adds_the_dimension_of_the_number_of_inputs(
    torch, case_of, build, launch, whole, dim
):
    case = case_of("Pack", "4,6;4,6", "FLOAT;FLOAT", whole, "FLOAT")
    call = build(case)
    (out,) = launch(case, call)
    for i, part in enumerate(call.args[0]):
        torch.testing.assert_close(out.select(dim, i), part, rtol=0, atol=0)


@pytest.mark.parametrize(("kernel", "value"), [("ZerosLike", 0), ("OnesLike", 1)])
def test_fills(torch, case_of, build, launch, kernel, value):
    case = case_of(kernel, "4,6", "FLOAT", "4,6", "FLOAT")
    call = build(case)
    call.args[0].fill_(9)
    assert launch(case, call)[0].unique().tolist() == [value]


def test_random_numbers_fill_a_tensor_between_0_and_1(torch, case_of, build, launch):
    case = case_of("RandomUniform", "64,96", "FLOAT", "64,96", "FLOAT")
    call = build(case)
    call.args[0].fill_(9)
    (out,) = launch(case, call)
    assert 0 <= float(out.min()) < 0.1 and 0.9 < float(out.max()) <= 1


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


def test_slice_sizes_of_the_npu_call_select_the_copied_block(torch, case_of, build, launch):
    case = case_of("Slice", "12,4,8;3;3", F3, "3,4,2", "FLOAT")
    x, _, sizes = find_operator("Slice").npu.build(case, CpuMaker(torch)).args
    expected = launch(case, build(case))[0]
    torch.testing.assert_close(x[tuple(slice(size) for size in sizes)], expected)


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


@pytest.mark.parametrize(
    ("inputs", "out", "repeats"),
    [
        ("5;5", "12", [3, 3, 2, 2, 2]),
        ("5;5", "2", [1, 1, 0, 0, 0]),
        ("5;1", "15", [3]),
        ("4,6;4", "7,6", [2, 2, 2, 1]),
        ("4,6;1", "4,12", [2]),
    ],
)
def test_rows_are_repeated_as_often_as_the_total_allows(
    torch, case_of, build, launch, inputs, out, repeats
):
    case = case_of("RepeatInterleave", inputs, "FLOAT;INT64", out, "FLOAT")
    x, numbers, dim, _ = (call := build(case)).args
    assert numbers.tolist() == repeats
    each = repeats * (x.shape[dim] // len(repeats))
    rows = [row for row, times in zip(x.unbind(dim), each, strict=True) for _ in range(times)]
    torch.testing.assert_close(launch(case, call)[0], torch.stack(rows, dim))


def test_a_fill_sets_every_element(torch, case_of, build, launch):
    case = case_of("Fill", "2;", "INT64;FLOAT", "4,6", "FLOAT")
    call = build(case)
    call.args[0].fill_(9)
    assert launch(case, call)[0].unique().tolist() == [1]


def test_triangles_and_casts_to_unsigned_numbers(torch, case_of, build, launch):
    for kernel, expected in (("Tril", torch.ones(5, 6).tril()), ("Triu", torch.ones(5, 6).triu())):
        call = build(case := case_of(kernel, "5,6", "FLOAT", "5,6", "FLOAT"))
        assert torch.equal(launch(case, call)[0], call.args[0] * expected)
    case = case_of("Cast", "4", "INT32", "4", "UINT64")
    find_operator("Cast").check(case, "npu")
    call = build(case)
    (out,) = launch(case, call)
    assert (out.dtype, out.tolist()) == (torch.uint64, call.args[1].tolist())


def test_the_last_dimensions_are_reversed(torch, case_of, build, launch):
    for axes, dims in (("1", [1]), ("2", [0, 1])):
        case = case_of("ReverseV2", f"4,6;{axes}", "FLOAT;INT64", "4,6", "FLOAT")
        call = build(case)
        assert torch.equal(launch(case, call)[0], call.args[0].flip(dims))
