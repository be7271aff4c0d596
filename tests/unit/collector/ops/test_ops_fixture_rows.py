"""Every operator runs its fixture rows and gives exactly the outputs that the row names."""

import pytest

from collector.ops.registry import find
from tests.fixtures.op_rows import cpu_rows
from tests.unit.collector.ops.conftest import is_named

pytestmark = pytest.mark.torch

ROWS = pytest.mark.parametrize(
    "case",
    [record.case for record in cpu_rows()],
    ids=lambda case: case.describe().replace("/", "-"),
)


def is_as_named(torch, tensor, case, position, wide):
    """Whether an output is the one that a row names; None for one that it leaves out."""
    op, slot = find(case.kernel_type), case.outputs[position]
    if slot.shape is None and position in op.optional_outputs:
        return tensor is None
    narrow = slot.dtype in ("DT_BF16", "FLOAT16") and wide and not op.moves_data
    dtype = torch.float32 if narrow else getattr(torch, slot.known_dtype.torch_name or "uint8")
    return is_named(tensor, slot, dtype)


@ROWS
@pytest.mark.parametrize("wide", [False, True], ids=["real", "float32"])
def test_outputs_are_those_of_the_row(torch, build, launch, case, wide):
    outputs = launch(case, build(case, wide))
    assert all(t is None or bool(torch.isfinite(t.double()).all()) for t in outputs)
    if case.outputs is not None:
        assert len(outputs) == len(case.outputs)
        as_named = [is_as_named(torch, t, case, i, wide) for i, t in enumerate(outputs)]
        came = [None if t is None else (tuple(t.shape), t.dtype) for t in outputs]
        assert all(as_named), came


@ROWS
def test_every_launch_runs_the_same_operators(torch, build, launch, case):
    call = build(case)
    runs = [top_level_operators(torch, lambda: launch(case, call)) for _ in range(2)]
    assert runs[0] == runs[1] != []


def top_level_operators(torch, run):
    """Names of the operators a launch starts, in order, those within others left out."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
    return [event.name for event in profile.events() if event.cpu_parent is None]


@ROWS
def test_results_stay_finite_over_many_launches(torch, build, launch, case):
    call = build(case)
    for _ in range(200):
        outputs = launch(case, call)
    assert all(t is None or bool(torch.isfinite(t.double()).all()) for t in outputs)


@ROWS
def test_costs_are_positive(case):
    op = find(case.kernel_type)
    assert op.flops(case) >= 0
    assert op.traffic(case) > 0
    assert op.group(case).startswith(case.kernel_type)
