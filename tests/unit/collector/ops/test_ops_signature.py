"""The grammar of signatures: what each form accepts, and which sizes it names."""

import pytest

from collector.codec.errors import BadInput
from collector.model.case import Case, Slot
from collector.ops.signature import parse_signature


def _case(inputs, outputs=()):
    slots = [tuple(Slot(shape, "FLOAT", "ND") for shape in side) for side in (inputs, outputs)]
    return Case("Any", *slots)


@pytest.mark.parametrize(
    ("text", "inputs", "outputs", "expected"),
    [
        ("x[*s], permutation[s_rank] -> y", [(4, 3, 2), (3,)], [], {"s": 24, "s_rank": 3}),
        ("x[*s], paddings[2 * s_rank] -> y", [(4, 3), (4,)], [], {"s": 12}),
        ("x[m, n], bias[n]|[1, n]? -> y", [(4, 3), (3,)], [], {"n": 3}),
        ("x[m, n], bias[n]|[1, n]? -> y", [(4, 3), (1, 3)], [], {"n": 3}),
        ("x[m, n], scale[n]|[1] -> y", [(4, 3), (1,)], [], {"m": 4}),
        ("x[n] -> y!", [(4,)], [(2, 2)], {"n": 4}),
        ("x[n], bias INT8[n]? -> y", [(4,), None], [], {"n": 4, "has_bias": 0}),
        ("x[m, k], w[<n, k>] -> y[m, n]", [(4, 3), (5, 3)], [(4, 5)], {"n": 5, "transposed": 0}),
        ("x[m, k], w[<n, k>] -> y[m, n]", [(4, 3), (3, 5)], [(4, 5)], {"n": 5, "transposed": 1}),
        ("x[*t, *d], g[*d] -> r[*t, 1*d]", [(4, 3, 2), (3, 2)], [(4, 1, 1)], {"t": 4, "d": 6}),
        ("x[n, k],\n    y[k]\n-> z[n]\nwhere k % 2 == 0", [(4, 2), (2,)], [], {"n": 4}),
    ],
)
def test_a_signature_reads_the_sizes_of_a_case(text, inputs, outputs, expected):
    assert expected.items() <= parse_signature(text).read(_case(inputs, outputs)).items()


@pytest.mark.parametrize(
    ("text", "inputs", "outputs", "name"),
    [
        ("x[*s], permutation[s_rank] -> y", [(4, 3, 2), (2,)], [], "permutation"),
        ("x[m, n], bias[n]|[1, n]? -> y", [(4, 3), (2, 3)], [], "bias"),
        ("x[m, n], bias[n]|[1, n]? -> y", [(4, 3), (1, 1, 3)], [], "bias"),
        ("x[m, n], scale[n]|[1] -> y", [(4, 3), (2,)], [], "scale"),
        ("x[n] -> y!", [(4,)], [], "y"),
        ("x INT8|FLOAT[n], bias INT8[#]? -> y", [(4,), None], [], "bias"),
        ("x[m, k], w[<n, k>], scale[<n, k>] -> y", [(4, 3), (5, 3), (3, 5)], [], "scale"),
        ("x[n], y[] -> z[n]; x[n], y[n] -> z[n]", [(4,), (4,)], [(3,)], "z"),
        ("x[n], -y -> z; x[n, n], y -> z", [(4, 4)], [], "y"),
        ("x[*t, *d], g[*d] -> r[*t, 1*d]", [(4, 3, 2), (3, 3)], [], "x"),
        ("x[*t, *d], g[*d] -> r[*t, 1*d]", [(4, 3, 2), (3, 2)], [(4, 1)], "r"),
    ],
)
def test_a_signature_names_the_tensor_that_does_not_fit(text, inputs, outputs, name):
    assert f"'{name}'" in parse_signature(text).read(_case(inputs, outputs))


def test_a_signature_counts_the_optional_tensors_of_a_case():
    signature = parse_signature("x[t], a?, b? -> y where has_b <= has_a")
    assert signature.read(_case([(4,), (4,)])) == {"t": 4, "has_a": 1, "has_b": 0}
    assert "has_b <= has_a" in signature.read(_case([(4,), None, (4,)]))
    of_output = parse_signature("x[t] -> y? where has_y")
    assert of_output.read(Case("Any", _case([(4,)]).inputs, None)) == {"t": 4, "has_y": 0}
    assert "has_y" in of_output.read(_case([(4,)]))
    either = parse_signature("x[t], -a -> y; x[t], a[t] -> y")
    assert [either.read(_case([(4,), a]))["has_a"] for a in (None, (4,))] == [0, 1]


@pytest.mark.parametrize(
    ("x", "gamma", "fits"),
    [
        *[("FLOAT16", "FLOAT16", True), ("FLOAT16", "FLOAT", True)],
        *[("FLOAT", "FLOAT16", False), ("DT_BF16", "FLOAT16", False)],
    ],
)
def test_a_dtype_may_be_that_of_another_tensor_or_a_third_one(x, gamma, fits):
    slots = tuple(Slot((4,), dtype, "ND") for dtype in (x, gamma))
    found = parse_signature("x T, gamma T|FLOAT -> y").read(Case("Any", slots, ()))
    assert (not isinstance(found, str)) == fits


def test_a_dtype_is_written_as_torch_or_people_do():
    for name in ("float32", "fp32", "FLOAT"):
        slots = (Slot((4,), "FLOAT", "ND"),)
        assert parse_signature(f"x {name}[n] -> y").read(Case("Any", slots, ())) == {"n": 4}
    with pytest.raises(BadInput, match="'flaot32'"):
        parse_signature("x flaot32[n] -> y")


def test_a_signature_refuses_groups_that_no_tensor_tells_apart():
    with pytest.raises(BadInput, match="x"):
        parse_signature("x[*t, *d] -> y[*t]")


@pytest.mark.parametrize(("blocks", "fits"), [((4, 2, 16, 16), True), ((4, 2, 17, 16), False)])
def test_a_matrix_in_blocks_has_whole_blocks_of_its_dtype(blocks, fits):
    case = Case("Any", (Slot((30, 60), "FLOAT16", "ND"), Slot(blocks, "FLOAT16", "FRACTAL_NZ")), ())
    found = parse_signature("x[n, k], weight[n, k] -> y").read(case)
    assert isinstance(found, str) is not fits


@pytest.mark.parametrize(("text", "fits"), [("x, bias FLOAT[n]?", True), ("x, y FLOAT[#]?", False)])
def test_the_dtype_of_an_absent_tensor_does_not_count_unless_it_may_be_a_scalar(text, fits):
    case = Case("Any", (Slot((4,), "FLOAT", "ND"), Slot(None, "INT8", "ND")), ())
    assert isinstance(parse_signature(f"{text} -> z").read(case), str) is not fits
