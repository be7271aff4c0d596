"""Measurements of sessions are written to the tree, to their rows only."""

from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.measuring.batches import SessionResults, Unmeasured
from collector.model.manifest import NO_USAGE
from collector.model.measurement import Measurement, Outcome, Timing
from collector.model.plan import MeasureSettings
from collector.model.record import as_ran
from collector.model.stack import EVENTS, Stack
from collector.ranks.distribution import DISPATCH, DistributeCall
from collector.ranks.experts import ExpertCall
from collector.singlehost.from_replay import TreeResults, provenance_of
from collector.singlehost.reports import Update
from collector.singlehost.version_files import check_tree_device
from tests.unit.collector.naming import names, naming
from tests.unit.collector.singlehost.conftest import matmul

pytestmark = pytest.mark.fast

STACK = Stack("CPU_x_2t", "2.13.0")
AVERAGE = "Average Duration(us)"
TWO = {"Input Shapes": '"2;2"', "Output Shapes": '"2"'}


def measured(record, us=3.0, outcome=Outcome.OK, **more):
    timing = Timing(us, us, us, us, us, us, us, 0.0) if outcome is Outcome.OK else None
    return Measurement(
        record.case_id,
        record.kernel_type,
        outcome,
        "" if outcome is Outcome.OK else "why",
        provenance_of(STACK, "cpu"),
        n_accepted=5,
        timing=timing,
        **more,
    )


class Replay(TreeResults):
    """A microbenchmark with simulated sessions."""

    def __init__(self, tree, update=Update.ALL, kernels=(), backend="cpu", **more):
        where = (tree.folder, kernels, update, backend)
        super().__init__(*where, MeasureSettings(), provenance_of(STACK, "cpu"), **more)

    @property
    def to_measure(self):
        return [case.record for case in self.without_result()]

    def take(self, *measurements):
        session = self.next_session(self.without_result()).session
        self.add(session, SessionResults(measurements, (), NO_USAGE, True, ""))


def test_good_measurement_is_written_to_the_tree_immediately(tree):
    tree.write("Add", {AVERAGE: "9.0", "MicroBench aic_mac_ratio": "0.7"}, {})
    work = Replay(tree)
    (record,) = work.to_measure
    work.take(measured(record, counters=(("aiv_vec_ratio", 0.5),)))
    assert tree.durations("Add") == ["3.000000"] * 2
    assert tree.rows("Add")[0]["MicroBench aic_mac_ratio"] == ""
    assert tree.rows("Add")[0]["MicroBench aiv_vec_ratio"] == "0.500000"
    result = work.result((), prune_empty=False)
    assert result.is_complete and [row.launches for row in result.written] == [5, 5]
    assert [count for _, count in result.duplicates] == [2]


def test_durations_of_events_are_marked_and_in_separate_trees(tree):
    source = "MicroBench Timed By"
    tree.write("Add", {}, TWO)
    work = Replay(tree, backend=EVENTS)
    first, _ = work.to_measure
    work.take(measured(first, timed_by=EVENTS, empty_launch_us=2.0))
    assert [row.get(source, "") for row in tree.rows("Add")] == [EVENTS, ""]
    assert Replay(tree, Update.MISSING_ONLY, backend=EVENTS).to_measure
    with pytest.raises(BadInput, match=r"Add\.csv"):
        Replay(tree)
    tree.write("Add", {AVERAGE: "9.0"})
    with pytest.raises(BadInput, match=r"Add\.csv"):
        Replay(tree, backend=EVENTS)
    Replay(tree).take(measured(first))
    assert tree.rows("Add")[0].get(source, "") == ""


def test_failed_measurement_replaces_nothing_and_is_reported(tree):
    tree.write("Add", {AVERAGE: "9.0"})
    work = Replay(tree)
    work.take(measured(work.to_measure[0], outcome=Outcome.GATED))
    result = work.result((), prune_empty=True)
    assert tree.durations("Add") == ["9.0"]
    assert [(u.outcome, u.reason) for u in result.failed] == [(Outcome.GATED, "why")]


def test_unlaunchable_rows_are_reported_apart_from_failed_ones(tree):
    tree.write("Nothing", {})
    tree.write("Add", {"Input Shapes": "N/A"}, {"Input Shapes": '"4;8"'})
    work = Replay(tree)
    assert work.to_measure == []
    result = work.result((), prune_empty=False)
    outcomes = [(u.case.kernel_type, u.outcome) for u in result.skipped]
    assert outcomes == [
        ("Add", Outcome.UNSUPPORTED),
        ("Add", Outcome.REJECTED),
        ("Nothing", Outcome.UNSUPPORTED),
    ]
    assert result.failed == () and result.is_complete


def test_row_of_several_ranks_is_skipped_with_a_reason(tree):
    for call in (ExpertCall(8, 64, 32, 8, 2, 2), DistributeCall(DISPATCH, 8, 64, 8, 2, 2, 8)):
        tree.write(call.kernel, call.cells)
    work = Replay(tree)
    assert work.to_measure == []
    (reason,) = {u.reason for u in work.result((), prune_empty=False).skipped}
    assert names(reason, "2 ranks", 1)


def test_missing_only_selects_rows_without_a_duration(tree):
    profiled = {"Input Shapes": '"1;1"', "Profiling Average Duration(us)": "6.0"}
    tree.write("Add", {AVERAGE: "5.0"}, profiled, {**TWO, AVERAGE: "0"})
    work = Replay(tree, Update.MISSING_ONLY)
    assert [r.case.inputs[0].shape for r in work.to_measure] == [(2,)]
    assert work.result((), prune_empty=False).kept == 2


def test_only_selected_kernels_are_measured(tree):
    tree.write("Add", {})
    tree.write("Mul", {})
    assert [r.kernel_type for r in Replay(tree, kernels=("Mul",)).to_measure] == ["Mul"]
    with pytest.raises(BadInput, match=naming("'Sub'", "Add, Mul")):
        Replay(tree, kernels=("Sub",))


def test_kernel_that_ran_in_place_of_another_is_recorded_under_its_name(tree):
    tree.write("MatMulV2", matmul("8,8;8,8", "8,8"))
    tree.write("MatMulV3", matmul("4,4;4,4", "4,4"))
    work = Replay(tree)
    requested = next(r for r in work.to_measure if r.kernel_type == "MatMulV2")
    ran = as_ran(requested, "MatMulV3", "dynamic", "AI_CORE")
    work.take(
        measured(requested, outcome=Outcome.SUBSTITUTED), measured(ran, asked=requested.case_id)
    )
    assert tree.durations("MatMulV2") == [""]
    assert tree.durations("MatMulV3") == ["", "3.000000"]
    assert tree.rows("MatMulV3")[1]["Input Shapes"] == '"8,8;8,8"'
    result = work.result((), prune_empty=False)
    assert [u.outcome for u in result.failed] == [Outcome.SUBSTITUTED]
    assert names(result.written[0].ran, "MatMulV2")


def test_missing_only_adds_no_row_for_a_kernel_that_ran_instead(tree):
    tree.write("MatMulV2", matmul("8,8;8,8", "8,8"))
    tree.write("MatMulV3", matmul("4,4;4,4", "4,4"))
    work = Replay(tree, Update.MISSING_ONLY)
    requested = next(r for r in work.to_measure if r.kernel_type == "MatMulV2")
    ran = as_ran(requested, "MatMulV3", "dynamic", "AI_CORE")
    work.take(measured(ran, asked=requested.case_id))
    assert tree.durations("MatMulV3") == [""]
    (left,) = work.result((), prune_empty=False).leftover
    assert names(left.fate, "MatMulV2")


def test_rows_are_removed_only_if_every_case_was_tried(tree):
    tree.write("Add", {}, {"Input Shapes": '"1;1"', "Output Shapes": '"1"'})
    work = Replay(tree)
    first, second = work.to_measure
    work.take(measured(first))
    early = work.result((), prune_empty=True)
    assert (early.is_complete, early.deleted, len(tree.rows("Add"))) == (False, (), 2)
    work.take(replace(measured(second), outcome=Outcome.FAILED, timing=None))
    result = work.result((), prune_empty=True)
    assert result.is_complete and tree.durations("Add") == ["3.000000"]
    assert [cells["Input Shapes"] for _, cells in result.deleted] == ['"1;1"']


def test_empty_tree_is_refused(tree):
    with pytest.raises(BadInput, match=naming("{KernelType}.csv", "opmeter tree parse")):
        Replay(tree)


def test_tree_of_another_device_is_refused(tmp_path):
    place = tmp_path / "ATLAS_800_A3_752T_128G_DIE" / "vllm_ascend"
    named = ("ATLAS_800_A3_752T_128G_DIE", "CPU_x_2t", "--backend")
    with pytest.raises(BadInput, match=naming(*named)):
        check_tree_device(place / "vllm0.18.0_torch2.9.0_cann8.5", STACK)
    own = tmp_path / "CPU_x_2t" / "vllm_ascend"
    assert check_tree_device(own / "vllm0_torch2.13.0_cann0", STACK) == ""
    warning = check_tree_device(own / "vllm0_torch2.9_cann0", STACK)
    assert names(warning, "vllm0_torch2.9_cann0", "vllm0_torch2.13.0_cann0")
    assert check_tree_device(tmp_path / "anything", STACK) == ""


@pytest.mark.parametrize("doubtful", [Outcome.PROFILER_LOST, Outcome.OOM])
def test_outcome_that_may_have_another_cause_is_retried_once_and_reported(tree, doubtful):
    tree.write("Add", {}, TWO)
    work = Replay(tree)
    first, second = work.to_measure
    work.take(measured(first, outcome=doubtful), measured(second, outcome=doubtful))
    assert work.to_measure == [first, second] and work.measured == 0
    work.take(measured(first), measured(second, outcome=doubtful))
    result = work.result((), prune_empty=False)
    assert result.is_complete and tree.durations("Add") == ["3.000000", ""]
    assert [u.outcome for u in result.failed] == [doubtful]
    assert len(result.measurements) == 4  # every try has its certificate


def test_case_without_a_session_has_its_own_certificate(tree):
    tree.write("Add", {})
    work = Replay(tree)
    (record,) = work.to_measure
    assert work.next_session(work.without_result()).session == 1
    work.add_unmeasured([Unmeasured(record, Outcome.CRASHED, "killed by SIGSEGV")])
    result = work.result((), prune_empty=False)
    assert [(u.outcome, u.reason) for u in result.failed] == [
        (Outcome.CRASHED, "killed by SIGSEGV")
    ]
    (certificate,) = result.measurements
    assert (certificate.provenance.session, certificate.outcome) == (2, Outcome.CRASHED)
    assert result.is_complete


def test_first_failure_closes_the_replay_on_request(tree):
    tree.write("Add", {}, TWO)
    tree.write("Nothing", {})  # it was not launched: that is not a failure
    work, patient = Replay(tree, ends_at_failure=True), Replay(tree)
    assert not work.is_closed()
    for each in (work, patient):
        each.take(measured(each.to_measure[0], outcome=Outcome.FAILED))
    assert work.is_closed() and not patient.is_closed()
