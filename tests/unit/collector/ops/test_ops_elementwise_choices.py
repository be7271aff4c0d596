"""Logic, selection, masks, intervals, histograms, repeats and fills against independent sources."""

from collections import Counter

import pytest

pytestmark = pytest.mark.torch


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


def test_the_opposite(torch, case_of, build, launch):
    case = case_of("LogicalNot", "40", "BOOL", "40", "BOOL")
    call = build(case)
    assert launch(case, call)[0].tolist() == [not x for x in call.args[0].tolist()]


def test_the_square_of_integers(torch, case_of, build, launch):
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


@pytest.mark.parametrize(("dtype", "low"), [("FLOAT", -1), ("INT32", -1), ("UINT8", 0)])
def test_nothing_leaves_the_interval(torch, case_of, build, launch, dtype, low):
    case = case_of("ClipByValueV2", "60;;", f"{dtype};{dtype};{dtype}", "60", dtype)
    call = build(case)
    expected = [min(max(x, low), 1) for x in call.args[0].tolist()]
    assert launch(case, call)[0].tolist() == expected


@pytest.mark.parametrize("dtype", ["INT32", "INT64", "FLOAT"])
def test_a_histogram_counts_each_number(torch, case_of, build, launch, dtype):
    case = case_of("HistogramV2", "300;;", f"{dtype};{dtype};{dtype}", "8", "INT32")
    call = build(case)
    counts = Counter(int(x) for x in call.args[0].tolist())
    assert launch(case, call)[0].tolist() == [counts[i] for i in range(8)]
    assert all(counts.values())


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
