"""Operators on lists of tensors, and dropout: their results, and the refused rows."""

import pytest

from collector.ops.registry import find_operator
from tests.unit.collector.ops.conftest import CpuMaker, assert_rejected

F5 = ";".join(["FLOAT"] * 5)
# The effect of each on x with y and z, and the number n.
MEANT = {
    "ForeachAddList": lambda n, x, y: x + n * y,
    "ForeachAddScalar": lambda n, x: x + n,
    "ForeachSubList": lambda n, x, y: x - n * y,
    "ForeachMulScalar": lambda n, x: x * n,
    "ForeachMulList": lambda n, x, y: x * y,
    "ForeachDivScalar": lambda n, x: x / n,
    "ForeachDivList": lambda n, x, y: x / y,
    "ForeachSqrt": lambda n, x: x.sqrt(),
    "ForeachNeg": lambda n, x: -x,
    "ForeachLerpScalar": lambda n, x, y: x + n * (y - x),
    "ForeachAddcmulScalar": lambda n, x, y, z: x + n * y * z,
    "ForeachAddcdivScalar": lambda n, x, y, z: x + n * y / z,
}


@pytest.mark.parametrize("kernel", MEANT)
def test_each_tensor_of_a_list_is_computed_separately(torch, case_of, kernel):
    meant = MEANT[kernel]
    lists = meant.__code__.co_argcount - 1
    numbers = 1 if kernel.endswith(("Scalar", "AddList", "SubList")) else 0
    shapes = ";".join(["4,3;5"] * lists + [""] * numbers)
    dtypes = ";".join(["FLOAT"] * (2 * lists + numbers))
    case, op = case_of(kernel, shapes, dtypes, "12;5", "FLOAT;FLOAT"), find_operator(kernel)
    op.check(case, "cpu")
    call = op.build(case, CpuMaker(torch))
    parts = call.args[:lists]
    rest = [*call.args[lists:], *(v for k, v in call.kwargs.items() if k != "is_flat")]
    expected = [meant(*(rest or [None]), *tensors) for tensors in zip(*parts, strict=True)]
    given = op.run_reference(torch, *call.args, **call.kwargs)
    assert [tuple(tensor.shape) for tensor in given] == [(12,), (5,)]
    for tensor, other in zip(given, expected, strict=True):
        torch.testing.assert_close(tensor, other.view(-1))


def test_a_thousand_repeats_stay_finite(torch, case_of):
    """Each works on the result of the last one."""
    for kernel in MEANT:
        numbers = 1 if kernel.endswith(("Scalar", "AddList", "SubList")) else 0
        lists = MEANT[kernel].__code__.co_argcount - 1
        shapes = ";".join(["8"] * lists + [""] * numbers)
        dtypes = ";".join(["FLOAT16"] * lists + ["FLOAT"] * numbers)
        op = find_operator(kernel)
        call = op.build(case_of(kernel, shapes, dtypes, "8", "FLOAT16"), CpuMaker(torch))
        for _ in range(1000):
            (out,) = op.run_reference(torch, *call.args, **call.kwargs)
        assert out.isfinite().all() and (kernel == "ForeachSubList" or out.abs().min() > 0), kernel


@pytest.mark.fast
@pytest.mark.parametrize(
    ("cells", "rule"),
    [
        (("ForeachAddList", "4;5;4;6;", F5, "4;5", "FLOAT;FLOAT"), "tensors"),
        (("ForeachAddList", "4;5;4;", "FLOAT;FLOAT;FLOAT;FLOAT", "4", "FLOAT"), "tensors"),
        (("ForeachAddList", "4;4;1", "FLOAT;FLOAT;FLOAT", "4", "FLOAT"), "tensors"),
        (("ForeachMulScalar", "4,2;", "FLOAT;FLOAT", "2,4", "FLOAT"), "output & dimension"),
        (("ForeachMulScalar", "4;", "INT32;FLOAT", "4", "INT32"), "dtype & FLOAT"),
        (
            ("ForeachSqrt", ";".join(["2"] * 49), ";".join(["FLOAT"] * 49))
            + (";".join(["2"] * 49), ";".join(["FLOAT"] * 49)),
            "48 tensors",
        ),
        (("DropOutDoMask", "8,96;95;1", "FLOAT;UINT8;FLOAT", "8,96", "FLOAT"), "'mask'"),
        (("DropOutDoMask", "8,96;96;2", "FLOAT;UINT8;FLOAT", "8,96", "FLOAT"), "number"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_unsupported_rows_are_refused(case_of, cells, rule):
    assert_rejected(case_of(*cells), "npu", rule)


def test_mask_keeps_the_numbers_whose_bit_is_set(torch, case_of):
    case = case_of("DropOutDoMask", "3,5;16;1", "FLOAT;UINT8;FLOAT", "3,5", "FLOAT")
    op = find_operator("DropOutDoMask")
    x, mask, dropped = op.build(case, CpuMaker(torch)).args
    out = op.run_reference(torch, x, mask, dropped).view(-1)
    for i, number in enumerate(x.view(-1).tolist()):
        is_kept = mask[i // 8].item() >> (i % 8) & 1
        assert out[i].item() == pytest.approx(number / 0.5 if is_kept else 0)
