"""Lookups, and writes at indices, against torch's own indexing and loops."""

import pytest

from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import CpuMaker

pytestmark = pytest.mark.torch

F3 = "FLOAT;INT64;INT64"


def test_non_zero_finds_the_number_of_elements_of_its_row(torch, case_of, build, launch):
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
    assert int(indices.max()) > 8  # anywhere in the table


def test_gradient_of_a_lookup(torch, case_of, build, launch):
    cells = ("2,12,6;24;24", "FLOAT;INT32;INT32", "20,6", "FLOAT")
    case = case_of("EmbeddingDenseGradV2", *cells)
    grad, rows, origins, _ = (call := build(case)).args
    launch(case, call)  # a second launch starts again
    table = torch.zeros(20, 6, requires_grad=True)
    looked_up = torch.empty(24, dtype=torch.int64)
    looked_up[origins] = rows
    torch.nn.functional.embedding(looked_up, table).backward(grad)
    torch.testing.assert_close(launch(case, call)[0], table.grad)


def test_lookup_along_a_later_dimension(torch, case_of, build, launch):
    case = case_of("GatherV3", "3,40,6;9;1", F3, "3,9,6", "FLOAT")
    table, axis, indices = (call := build(case)).args
    assert axis == 1
    torch.testing.assert_close(launch(case, call)[0], table[:, indices], rtol=0, atol=0)
    assert int(indices.max()) > 8  # anywhere in the table


@pytest.mark.parametrize(
    ("x", "index", "axis"), [("6,20", "6,5", 1), ("20,40", "6,40", 0), ("6,20", "6,20", 1)]
)
def test_elements_are_looked_up_along_one_dimension(torch, case_of, build, launch, x, index, axis):
    case = case_of("GatherElementsV2", f"{x};{index}", "FLOAT;INT32", index, "FLOAT")
    data, actual, numbers = (call := build(case)).args
    assert actual == axis
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
def test_index_selects_along_the_indexed_dimensions(
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
        ("ScatterNdUpdateV2", "5,4,1,8;3,2;3,8", "5,4,1,8"),
    ],
)
def test_index_put_writes_at_the_indices(torch, case_of, build, launch, kernel, shapes, out):
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


def test_scattered_elements_are_found_along_the_last_dimension(torch, case_of, build, launch):
    for shapes in ("6,20;6,5;6,5", "20,6;5,6;5,6", "6,20;4,3;4,3", "20;6;6"):
        case = case_of(
            "ScatterElementsV2", shapes, "FLOAT;INT64;FLOAT", shapes.split(";")[0], "FLOAT"
        )
        x, axis, index, updates = (call := build(case)).args
        assert axis == x.dim() - 1
        launch(case, call)
        torch.testing.assert_close(x.gather(axis, index), updates, rtol=0, atol=0)


def test_filled_rows_are_zero_and_the_others_unchanged(torch, case_of, build, launch):
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
def test_indices_are_distinct_and_spread_over_the_whole_range(
    case_of, build, cells, position, size
):
    numbers = build(case_of(*cells, "FLOAT")).args[position]
    lines = (numbers[0] if isinstance(numbers, (list, tuple)) else numbers).view(-1, 50).tolist()
    for line in lines:
        assert len(set(line)) == 50
        assert min(line) < 0.1 * size
        assert 0.9 * size < max(line) < size
        assert line != sorted(line)


def test_indices_repeat_if_the_range_is_too_small(case_of, build):
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
def test_npu_arguments_give_the_result_of_the_reference(
    torch, case_of, build, launch, cells, launch_npu
):
    """For calls with other arguments than the reference."""
    case = case_of(*cells)
    given = find_operator(case.kernel_type).npu.build(case, CpuMaker(torch))
    expected = launch(case, build(case))[0]
    torch.testing.assert_close(launch_npu(*given.args), expected)
