"""The launches of the stock torch_npu for each fixture row: the call, its tensors, its attributes.

The files in calls/ are exact; `python -m tools calls` writes them. Properties of every call
are asserted too: the row's slots are in it, and one call is the kernel's own.
"""

import pytest

from collector.engine.calls import Recorded
from collector.engine.cells import cells_of
from collector.engine.converted import kernels_of
from collector.ops.registry import all_ops, find_operator
from collector.ops.spec import OpSpec
from collector.quality.identity import identity_of
from collector.ranks.distribution import DISTRIBUTE_KERNELS
from tests.fixtures.row_checks import failing
from tests.npu.fakecann.build import FakeCann
from tests.npu.golden import golden_path, golden_text, is_own, no_own_call, own_launches
from tests.npu.passed_otherwise import COMPANIONS, PASSED_OTHERWISE
from tests.npu.replayed import Replayed, kernels_with_rows, replay
from tests.npu.shown_otherwise import DIFFERENT, INCOMPLETE
from tests.npu.slots_of_calls import missing

pytestmark = [pytest.mark.npu, pytest.mark.torch, pytest.mark.slow]

KERNELS = kernels_with_rows()


@pytest.fixture(scope="module")
def replayed(fake: FakeCann) -> dict[str, list[Replayed]]:
    """Every row, launched by one process."""
    return replay(fake, KERNELS)


@pytest.fixture
def rows(replayed: dict[str, list[Replayed]]) -> list[Replayed]:
    assert set(replayed) == set(KERNELS)
    return [row for of_kernel in replayed.values() for row in of_kernel]


def described(row: Replayed) -> str:
    return row.case.describe()


def own_launch(row: Replayed) -> Recorded:
    """Return the one launch of the row's own kernel."""
    assert not no_own_call(row.case.kernel_type, [row])
    own = own_launches(row.case.kernel_type, row)
    assert len(own) == 1, [call.text for call in row.calls]
    return own[0]


def is_of_wheel(op: OpSpec) -> bool:
    """Return whether torch_npu itself has the kernel; vLLM-Ascend's are registered by the tests."""
    return op.library != "vllm-ascend" and not op.call.startswith("vllm_ascend.")


def test_every_row_is_accepted_and_has_its_outputs(rows):
    assert [f"{described(row)}: {row.error}" for row in rows if row.error] == []


def test_calls_are_those_of_the_golden_file(replayed):
    def check(kernel):
        path = golden_path(kernel)
        again = f"record again, and read the difference: python -m tools calls {kernel}"
        assert path.exists(), again
        assert golden_text(kernel, replayed[kernel]) == path.read_text(), again

    assert failing(KERNELS, check) == []


def test_every_launch_is_the_same(rows):
    def check(row):
        first, second = ([call.text for call in launch] for launch in row.launches)
        assert first == second

    assert failing(rows, check, described) == []


def test_exactly_one_call_is_that_of_the_kernel(rows):
    def check(row):
        own = own_launch(row)
        launched = [one for call in row.calls for one in kernels_of(call)]
        others = {one.name for one in launched if one.text != own.text}
        assert others <= COMPANIONS.get(row.case.kernel_type, frozenset())

    assert failing(rows, check, described) == []


def test_slots_of_the_row_are_in_the_call(rows):
    needed: dict[str, set[str]] = {kernel: set() for kernel in KERNELS}

    def check(row):
        kernel, own = row.case.kernel_type, own_launch(row)
        absent, used = missing(row.case, own, PASSED_OTHERWISE.get(kernel, {}))
        needed[kernel] |= used
        assert absent == [], f"{own.text}: the call, or tests/npu/passed_otherwise.py, lacks them"

    assert failing(rows, check, described) == []
    ways = {kernel: set(PASSED_OTHERWISE.get(kernel, {})) for kernel in KERNELS}
    assert needed == ways, "no row needs a declared way of passing"


def test_row_equals_the_one_that_a_profile_of_the_call_would_have(replayed):
    def check(kernel):
        found = {}
        for number, row in enumerate(replayed[kernel]):
            found[number] = identity_of(row.case, cells_of(own_launch(row)))
        different = {number for number, identity in found.items() if identity.differences}
        assert different == set(DIFFERENT.get(kernel, {})), found
        unreported = any(
            identity.unverified and not identity.differences for identity in found.values()
        )
        assert unreported == (kernel in INCOMPLETE), found

    assert failing(KERNELS, check) == []


def test_kernels_of_the_wheel_are_not_custom_ones(rows):
    def check(row):
        kernel = row.case.kernel_type
        kinds = {call.kind for call in row.calls if is_own(kernel, call)}
        wheel = is_of_wheel(find_operator(kernel))
        assert kinds <= ({"ACLNN", "ACLOP", "ATB"} if wheel else {"CUSTOM"})

    assert failing(rows, check, described) == []


def test_every_kernel_of_the_wheel_is_replayed(replayed):
    good = {k for k, rows in replayed.items() if rows and not any(row.error for row in rows)}
    expected = {op.kernel: op.family for op in all_ops() if is_of_wheel(op)}
    missed = {kernel for kernel, family in expected.items() if not family & good}
    # Those are in test_npu_experts, these in test_npu_graphs.
    assert missed == {*DISTRIBUTE_KERNELS, "ReduceSumD", "Scatter", "SplitVD"}
    assert len(expected) >= 80


def test_golden_files_belong_to_kernels():
    folder = golden_path("Add").parent
    assert {path.stem for path in folder.iterdir()} == set(KERNELS)
