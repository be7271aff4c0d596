"""Every operator runs its fixture rows and returns exactly the outputs of the row."""

import pytest

from collector.model.case import Case
from collector.ops.registry import family_of, find_operator
from tests.fixtures.op_rows import all_rows, cpu_rows
from tests.fixtures.row_checks import failing
from tests.unit.collector.ops.conftest import is_named

pytestmark = pytest.mark.torch

ROWS: dict[str, list[Case]] = {}
for record in cpu_rows():
    ROWS.setdefault(family_of(record.kernel_type), []).append(record.case)
FAMILIES = pytest.mark.parametrize("family", sorted(ROWS))
IN_PLACE_LAUNCHES, LAUNCHES = 200, 5


def is_as_named(torch, tensor, case, position, wide):
    """Return whether an output is that of a row; None for an omitted one."""
    op, slot = find_operator(case.kernel_type), case.outputs[position]
    if slot.shape is None and position in op.optional_outputs:
        return tensor is None
    narrow = slot.dtype in ("DT_BF16", "FLOAT16") and wide and not op.moves_data
    dtype = torch.float32 if narrow else getattr(torch, slot.known_dtype.torch_name or "uint8")
    return is_named(tensor, slot, dtype)


def all_finite(torch, outputs):
    return all(t is None or bool(torch.isfinite(t.double()).all()) for t in outputs)


@FAMILIES
def test_outputs_are_those_of_the_row(torch, build, launch, family):
    """In the row's own dtypes, and on a machine that computes 16-bit types in float32."""

    def check(case_and_width):
        case, wide = case_and_width
        outputs = launch(case, build(case, wide))
        assert all_finite(torch, outputs)
        if case.outputs is not None:
            assert len(outputs) == len(case.outputs)
            as_named = [is_as_named(torch, t, case, i, wide) for i, t in enumerate(outputs)]
            given = [None if t is None else (tuple(t.shape), t.dtype) for t in outputs]
            assert all(as_named), given

    def name(case_and_width):
        case, wide = case_and_width
        return f"{case.describe()} in {'float32' if wide else 'its own dtypes'}"

    both = [(case, wide) for case in ROWS[family] for wide in (False, True)]
    assert failing(both, check, name) == []


@FAMILIES
def test_every_launch_runs_the_same_operators(torch, build, launch, family):
    def check(case):
        call = build(case)
        first, second = operators_of_two(torch, lambda: launch(case, call))
        assert first == second != []

    assert failing(ROWS[family], check, Case.describe) == []


def operators_of_two(torch, run):
    """Return for each of two launches the names of the operators that it starts, in order, without
    nested ones."""
    marks = ("first launch", "second launch")
    with torch.autograd.profiler.profile() as profile:  # torch.profiler's imports a compiler too
        for mark in marks:
            with torch.profiler.record_function(mark):
                run()
    found = {mark: [] for mark in marks}
    for event in profile.function_events:
        if event.cpu_parent is not None and event.cpu_parent.name in found:
            found[event.cpu_parent.name].append(event.name)
    return found.values()


@FAMILIES
def test_results_stay_finite_over_many_launches(torch, build, launch, family):
    """A launch that overwrites its own inputs is repeated as often as in a long session."""

    def check(case):
        call = build(case)
        before = versions(torch, call)
        outputs = launch(case, call)
        is_in_place = versions(torch, call) != before
        for _ in range((IN_PLACE_LAUNCHES if is_in_place else LAUNCHES) - 1):
            outputs = launch(case, call)
        assert all_finite(torch, outputs)

    assert failing(ROWS[family], check, Case.describe) == []


def test_operators_that_overwrite_their_inputs_are_recognised(torch, build, launch):
    in_place = set()
    for case in (case for cases in ROWS.values() for case in cases):
        before = versions(torch, call := build(case))
        launch(case, call)
        in_place |= {case.kernel_type} if versions(torch, call) != before else set()
    assert in_place >= {"ApplyAdamWV2", "InplaceAddRmsNorm", "ForeachAddList", "ScatterNdUpdate"}
    assert not in_place & {"Add", "MatMulV3", "RmsNorm", "Sort"}


def versions(torch, call):
    """Return how often each tensor of a call was written, as torch counts it for autograd."""

    def tensors(value):
        if isinstance(value, torch.Tensor):
            return [value]
        if isinstance(value, dict):
            value = tuple(value.values())
        several = value if isinstance(value, (list, tuple)) else ()
        return [tensor for each in several for tensor in tensors(each)]

    return [tensor._version for tensor in tensors((call.args, dict(call.kwargs)))]


def test_costs_are_positive():
    def check(case):
        op = find_operator(case.kernel_type)
        assert op.flops(case) >= 0
        assert op.traffic(case) > 0
        assert op.group(case).startswith(case.kernel_type)

    assert failing([record.case for record in all_rows()], check, Case.describe) == []


def test_failing_row_is_reported_and_later_ones_are_checked():
    def check(number):
        assert number != 2, "two"
        return 1 // (number - 3)

    first, second = failing([1, 2, 3, 4], check)
    assert first.startswith("2: AssertionError in test_ops_fixture_rows.py:") and "two" in first
    assert second.startswith("3: ZeroDivisionError in test_ops_fixture_rows.py:")
