"""Operators that move and index data, against torch's own indexing and sums done by hand."""

from itertools import permutations
from math import prod

import pytest

from collector.ops.registry import find
from tests.npu.fakecann.calls import RecordedTensor
from tests.npu.kernels.movement import copied
from tests.unit.collector.ops.conftest import CpuMaker

pytestmark = pytest.mark.torch

F2, F3 = "FLOAT;INT64", "FLOAT;INT64;INT64"


def recorded(tensor):
    """A tensor as the NPU's library is given it."""
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
def test_a_transpose_moves_any_dimensions(torch, case_of, build, launch, source, target, order):
    case = case_of("Transpose", f"{source};4", F2, target, "FLOAT")
    call = build(case)
    whole = call.args[1]._base
    (out,) = launch(case, call)
    assert out.is_contiguous()
    torch.testing.assert_close(out, whole.permute(order), rtol=0, atol=0)


def test_a_transpose_takes_the_first_permutation_that_changes_the_order(
    torch, case_of, build, launch
):
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
    assert copied((recorded(target), recorded(source))) == kernel
    torch.testing.assert_close(launch(case, call)[0], source.to(target.dtype), rtol=0, atol=0)


def test_a_view_that_is_a_block_is_copied_by_slice(torch):
    def kernel(view):
        return copied((recorded(torch.empty(view.shape)), recorded(view)))

    x = torch.empty(6, 8, 64)
    assert kernel(x[:, 2:4, 1:]) == "Slice"
    assert kernel(x[2:4]) == "TensorMove"
    assert kernel(x[::2, ::2]) == "Slice"
    assert kernel(x[:, :, ::2]) == "StridedSlice"
    assert kernel(x[:, :4].transpose(0, 1)) == "AsStrided"
    assert kernel(x[:, :4, :63].transpose(0, 1)) == "Transpose"
    assert kernel(x[:, :4].expand(2, 6, 4, 64)) == "BroadcastTo"
    assert kernel(torch.empty(9).unfold(0, 3, 1)) == "AsStrided"


def test_a_strided_view_leaves_no_element_twice(torch, case_of, build):
    for shape in ("2,3,64", "6,64", "5,7"):
        size = 2 * prod(map(int, shape.split(",")))
        case = case_of("AsStrided", f"{size};3;3;1", f"{F3};INT64", shape, "FLOAT")
        _, view = build(case).args
        places = torch.arange(size).as_strided(view.shape, view.stride())
        assert places.unique().numel() == view.numel()


def test_padding_is_behind_and_zero(torch, case_of, build, launch):
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
def test_packing_adds_the_dimension_that_counts(torch, case_of, build, launch, whole, dim):
    case = case_of("Pack", "4,6;4,6", "FLOAT;FLOAT", whole, "FLOAT")
    call = build(case)
    (out,) = launch(case, call)
    for i, part in enumerate(call.args[0]):
        torch.testing.assert_close(out.select(dim, i), part, rtol=0, atol=0)


def test_lookup_along_a_later_dimension(torch, case_of, build, launch):
    case = case_of("GatherV3", "3,40,6;9;1", F3, "3,9,6", "FLOAT")
    table, axis, indices = (call := build(case)).args
    assert axis == 1
    torch.testing.assert_close(launch(case, call)[0], table[:, indices], rtol=0, atol=0)
    assert int(indices.max()) > 8  # all over the table


@pytest.mark.parametrize(
    ("x", "index", "axis"), [("6,20", "6,5", 1), ("20,40", "6,40", 0), ("6,20", "6,20", 1)]
)
def test_elements_are_looked_up_along_one_dimension(torch, case_of, build, launch, x, index, axis):
    case = case_of("GatherElementsV2", f"{x};{index}", "FLOAT;INT32", index, "FLOAT")
    data, came, numbers = (call := build(case)).args
    assert came == axis
    torch.testing.assert_close(
        launch(case, call)[0], torch.take_along_dim(data, numbers.long(), axis), rtol=0, atol=0
    )


@pytest.mark.parametrize(
    ("shapes", "out", "key"),
    [
        ("64,8;1;2;16", "16,8", lambda i: (i,)),
        ("6,9,4;2;2;5;5", "5,4", lambda i, j: (i, j)),
        ("3,9,32;2;4;2,4", "3,2,4,32", lambda i: (slice(None), i)),
    ],
)
def test_index_looks_up_what_follows_the_dimensions_kept(
    torch, case_of, build, launch, shapes, out, key
):
    dtypes = ";".join(["FLOAT"] + ["INT64"] * (shapes.count(";")))
    case = case_of("Index", shapes, dtypes, out, "FLOAT")
    x, indices = (call := build(case)).args
    expected = x[key(*(i for i in indices if i is not None))]
    torch.testing.assert_close(launch(case, call)[0], expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kernel", "shapes", "out"),
    [
        ("IndexPutV2", "40,8;6,8;1;1;6", "40,8"),
        ("IndexPutV2", "6,9,4;5,4;2;2;5;5", "6,9,4"),
        ("ScatterNdUpdate", "40,8;6,1;6,8", "40,8"),
        ("ScatterNdUpdate", "5,4,8;3,2;3,8", "5,4,8"),
    ],
)
def test_what_is_placed_is_found_where_the_indices_tell(
    torch, case_of, build, launch, kernel, shapes, out
):
    dtypes = ["FLOAT"] + ["INT64"] * shapes.count(";")
    value = 1 if kernel == "IndexPutV2" else 2
    dtypes[value] = "FLOAT"
    case = case_of(kernel, shapes, ";".join(dtypes), out, "FLOAT")
    x, indices, values = (call := build(case)).args
    before, (after,) = x.clone(), launch(case, call)
    assert after is x
    torch.testing.assert_close(x[tuple(indices)], values, rtol=0, atol=0)
    x[tuple(indices)] = before[tuple(indices)]
    torch.testing.assert_close(x, before, rtol=0, atol=0)


def test_scattered_elements_are_found_along_the_axis(torch, case_of, build, launch):
    for shapes, wanted in (("6,20;6,5;6,5", 1), ("20,6;5,6;5,6", 0), ("6,20;4,3;4,3", 1)):
        case = case_of(
            "ScatterElementsV2", shapes, "FLOAT;INT64;FLOAT", shapes.split(";")[0], "FLOAT"
        )
        x, axis, index, updates = (call := build(case)).args
        assert axis == wanted
        launch(case, call)
        torch.testing.assert_close(x.gather(axis, index), updates, rtol=0, atol=0)


def test_filled_rows_are_zero_and_the_others_are_left(torch, case_of, build, launch):
    case = case_of("IndexFill", "40,8;6;", "FLOAT;INT32;FLOAT", "40,8", "FLOAT")
    x, _, rows, _ = (call := build(case)).args
    before, (after,) = x.clone(), launch(case, call)
    left = [row for row in range(40) if row not in rows.tolist()]
    assert after[rows].count_nonzero() == 0
    assert len(left) == 34
    torch.testing.assert_close(after[left], before[left], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("cells", "position", "size"),
    [
        (("IndexPutV2", "4000;50;1;1;50", "FLOAT;FLOAT;INT64;INT64;INT64", "4000"), 1, 4000),
        (("ScatterNdUpdate", "4000,2;50,1;50,2", "FLOAT;INT32;FLOAT", "4000,2"), 1, 4000),
        (("IndexFill", "4000,2;50;", "FLOAT;INT64;FLOAT", "4000,2"), 2, 4000),
        (("ScatterElementsV2", "3,4000;3,50;3,50", "FLOAT;INT64;FLOAT", "3,4000"), 2, 4000),
    ],
)
def test_places_differ_and_spread_over_the_whole(case_of, build, cells, position, size):
    numbers = build(case_of(*cells, "FLOAT")).args[position]
    lines = (numbers[0] if isinstance(numbers, (list, tuple)) else numbers).view(-1, 50).tolist()
    for line in lines:
        assert len(set(line)) == 50
        assert min(line) < 0.1 * size
        assert 0.9 * size < max(line) < size
        assert line != sorted(line)


def test_places_repeat_where_there_are_too_few(case_of, build):
    case = case_of("ScatterNdUpdate", "4,2;50,1;50,2", "FLOAT;INT32;FLOAT", "4,2", "FLOAT")
    (column,) = build(case).args[1]
    assert set(column.tolist()) == set(range(4))


def embedding_gradient(grad, rows, size):
    """Row by row, in float64."""
    table = grad.new_zeros((size, grad.shape[-1])).double()
    for row, part in zip(rows.view(-1).tolist(), grad.view(-1, grad.shape[-1]), strict=True):
        table[row] += part
    return table.float()


@pytest.mark.parametrize(
    ("cells", "launch_npu"),
    [
        (
            ("Slice", "12,4,8;3;3", F3, "3,4,2", "FLOAT"),
            lambda x, offsets, sizes: x[: sizes[0], : sizes[1], : sizes[2]],
        ),
        (
            ("ScatterNdUpdate", "5,4,8;3,2;3,8", "FLOAT;INT64;FLOAT", "5,4,8", "FLOAT"),
            lambda x, indices, updates: x.index_put_(indices.unbind(-1), updates),
        ),
        (
            ("IndexFill", "40,8;6;", "FLOAT;INT32;FLOAT", "40,8", "FLOAT"),
            lambda x, dim, rows, value: x.index_fill_(dim, rows.long(), value),
        ),
        (
            ("EmbeddingDenseGradV2", "2,12,6;24;24", "FLOAT;INT32;INT32", "20,6", "FLOAT"),
            lambda grad, rows, size, *_: embedding_gradient(grad, rows, size),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_an_npu_is_given_gives_the_same(torch, case_of, build, launch, cells, launch_npu):
    """Where its call takes other arguments than the reference."""
    case = case_of(*cells)
    given = find(case.kernel_type).npu.build(case, CpuMaker(torch))
    expected = launch(case, build(case))[0]
    torch.testing.assert_close(launch_npu(*given.args), expected)
