"""The joint evaluation of many cases equals that of each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.model.case import Case
from collector.ops import together
from collector.ops.registry import all_ops, find_operator
from collector.ops.together import FEW, evaluate_alone, evaluate_together, lengths_of
from tests.fixtures.op_rows import all_rows, rows_of
from tests.fixtures.row_checks import failing

pytestmark = pytest.mark.fast


def work(case):
    op = find_operator(case.kernel_type)
    return (
        (np.nan, np.nan) if op.rejection_reason(case, "npu") else (op.flops(case), op.traffic(case))
    )


def alone(request, form, lengths):
    cases = (together._with_lengths(form, row) for row in lengths.tolist())
    return np.array([evaluate_alone(request, case) for case in cases], np.float64)


def variants(case, draw):
    """Return the case with one length after the other changed everywhere, or one of them alone."""
    own = np.array(lengths_of(case), np.int64)
    rows = [own]
    for length in np.unique(own).tolist():
        for other in (0, 1, length + 1, 2 * length, 16 * length):
            rows.append(np.where(own == length, other, own))
    for _ in range(FEW):
        rows.append(own * draw.integers(1, 4, len(own)) if draw.random() < 0.5 else own)
        rows.append(np.where(draw.random(len(own)) < 0.2, 3, own))
    return np.array(rows)


@pytest.mark.thorough
def test_evaluation_of_many_cases_equals_that_of_each():
    draw = np.random.default_rng(1)

    def check(case):
        lengths = variants(case, draw)
        found = evaluate_together(work, case, lengths)
        np.testing.assert_array_equal(found, alone(work, case, lengths), case.kernel_type)
        assert np.isfinite(found[0]).all()

    # A twin has the same functions as the operator with its rows.
    cases = [row.case for op in all_ops() for row in rows_of(op.kernel)]
    assert failing(cases, check, Case.describe) == []


@pytest.mark.thorough
def test_most_operators_are_evaluated_once_for_similar_cases():
    """Twice as many rows, three times, ...: no comparison distinguishes them."""
    once = set()
    for row in all_rows():
        own = np.array(lengths_of(row.case), np.int64)
        if len(own):
            evaluated = []

            def request(case, evaluated=evaluated):
                evaluated.append(case)
                return work(case)

            lengths = np.where(own == own.max(), own * np.arange(2, FEW + 2)[:, None], own)
            evaluate_together(request, row.case, lengths)
            once |= {row.kernel_type} if len(evaluated) == 1 else set()
    assert len(once) > 0.6 * len(all_ops())
    assert {"Add", "Exp", "MatMulV2", "RmsNorm", "SwiGlu", "Cast"} <= once


_EXPRESSIONS = {
    "plus": lambda m, n: (m + 7, 7 - n),
    "times": lambda m, n: (3 * m * n, sum((m, n))),
    "parts": lambda m, n: (m // (n + 1), 100 // (m + 1)),
    "left over": lambda m, n: (-m % 16, m % (n + 1)),
    "by zero": lambda m, n: (m // n, m % n),
    "compared": lambda m, n: (max(m, n), min(m, n, 5)),
    "alike": lambda m, n: (m == n, (m, 1) in ((n, 1), (3, 1))),
    "any": lambda m, n: (bool(m), m or n),
    "in order": lambda m, n: tuple(sorted((n, m))),
    "counted": lambda m, n: (len(range(m)), len({m, n})),
    "spelled": lambda m, n: (len(f"{m}"), len(str(n))),
    "divided": lambda m, n: (m / 3, n**2),
    "beyond floats": lambda m, n: (2**52 * m, 2**52 + n),
    "beyond all": lambda m, n: (2**200 * m, n),
    "refused": lambda m, n: (m, n) if m < 4 else (np.nan, 1),
    "failed": lambda m, n: (1 // (m - 3), [0, 0, 0, 0, 0][n]),
}


@pytest.mark.parametrize("name", _EXPRESSIONS)
@settings(max_examples=30)
@given(seed=st.integers(0, 2**32), most=st.sampled_from([2, 7, 10**4]))
def test_joint_evaluation_equals_that_of_each_case(name, seed, most, case_of):
    form = case_of("Add", "4,8;4,8", "FLOAT;FLOAT", "4,8", "FLOAT")
    lengths = np.random.default_rng(seed).integers(0, most, (4 * FEW, 6))

    def request(case):
        return _EXPRESSIONS[name](*case.inputs[0].shape)

    found = evaluate_together(request, form, lengths)
    np.testing.assert_array_equal(found, alone(request, form, lengths))
