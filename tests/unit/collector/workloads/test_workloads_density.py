"""The density of sizes along an axis, and the missing sizes between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.ops.registry import all_ops, find_operator
from collector.workloads.density import cases_between, find_standard, solve
from collector.workloads.grid import case_at_point, template_of
from collector.workloads.patterns import bundled_patterns
from tests.fixtures.op_rows import rows_of
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

STANDARD = find_standard("density-v1")


@pytest.mark.thorough
@given(
    st.sampled_from(sorted(STANDARD.axes)),
    st.lists(st.integers(1, 200_000), max_size=6),
    st.lists(st.integers(1, 200_000), max_size=20),
)
def test_filled_sizes_leave_no_gap_and_are_between_the_given_ones(axis, sizes, known):
    density = STANDARD.axes[axis]
    found = density.missing(sizes, known)
    assert density.missing([*sizes, *found], known) == ()
    assert all(min(sizes) < size < max(sizes) for size in found)
    assert len({*sizes, *found}) == len({*sizes}) + len(found)


def test_gap_is_filled_with_sizes_of_the_grid_if_it_has_any():
    tokens = STANDARD.axes["m"]
    assert tokens.missing([4, 14, 40], [12, 30]) == (5, 6, 7, 8, 10, 12, 16, 20, 24, 28, 30, 34)
    assert STANDARD.axes["nk"].missing([5120, 7168], [5504, 6144]) == (6144,)
    assert STANDARD.axes["powers"].missing([1, 64], []) == (2, 4, 8, 16, 32)
    assert STANDARD.axes["odd_tokens"].missing([1, 8000], []) == ()


@pytest.mark.parametrize("pattern", bundled_patterns().patterns, ids=lambda one: one.name)
def test_grid_satisfies_the_density_standard(pattern):
    for axis, values in pattern.axes.items():
        density = STANDARD.of(pattern.name, axis, pattern.value_names.get(axis, ""))
        if density is not None:
            assert density.missing(values, ()) == () and {*density.required} <= {*values}
    assert STANDARD.axes["nk"].missing(bundled_patterns().sizes, ()) == ()


def test_rows_are_reproduced_from_points_of_their_pattern():
    """The point of any row reproduces its shapes."""
    solved = 0
    for name in (name for one in bundled_patterns().patterns for name in one.kernels):
        pattern = bundled_patterns().of(name)
        for case in (row.case for row in rows_of(name) if row.case.inputs is not None):
            names, template = solve(pattern, case), template_of(case)
            if names is None or template is None:
                continue
            solved += 1
            op = find_operator(name)
            made = case_at_point(
                *(pattern, template, names),
                lambda record, op=op: op.rejection_reason(record.case, "npu") or record,
            )
            assert [slot.shape for slot in made.case.inputs] == [
                slot.shape for slot in case.inputs
            ], case.describe()
    assert solved > len(list(all_ops())) // 4


def test_missing_points_are_between_rows_that_differ_in_one_size():
    pattern = bundled_patterns().of("MatMulV2")
    row = rows_of("MatMulV2")[0]

    def case_of(m, n, k, dtype="DT_BF16"):
        cells = row.cells | {
            "Input Shapes": f"{m},{k};{n},{k}",
            "Input Data Types": f"{dtype};{dtype}",
            "Input Formats": "ND;ND",
            "Output Shapes": f"{m},{n}",
            "Output Data Types": dtype,
            "Output Formats": "ND",
        }
        return type(row)("MatMulV2", cells, {}).case

    cases = [case_of(16, 512, 4096), case_of(24, 512, 4096), case_of(24, 512, 7168)]
    cases += [case_of(1, 512, 4096, "FLOAT16")]  # of another dtype: not on a line with the others
    found = cases_between(pattern, cases, STANDARD, bundled_patterns().sizes, lambda record: record)
    shapes = [one.cells["Input Shapes"] for one in found]
    widths = [f'"24,{depth};512,{depth}"' for depth in (5120, 6144)]
    assert shapes == ['"20,4096;512,4096"', *widths]


def test_unknown_density_standard_is_refused():
    with pytest.raises(BadInput, match=naming("'density-v2'", "density-v1")):
        find_standard("density-v2")
