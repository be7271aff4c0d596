"""The fake msprof: its command line, its export, and the faults that a test can request."""

import shlex
import signal
import sys
import time

import pytest

from collector.engine.calls import parse_call
from tests.npu import test_npu_fake_msprof as smoke
from tests.npu.fakecann.columns import GROUPS, counters
from tests.npu.fakecann.faults import Fault, struck
from tests.npu.fakecann.truth import truth_us
from tests.npu.test_npu_fake_msprof import ADD, APPLICATION, kernels

pytestmark = pytest.mark.npu

msprof = smoke.msprof


def test_a_collective_has_no_shapes_and_no_counters(msprof):
    msprof(calls=("HCCL HcclAllReduce(f32[32]:ND, 0)", ADD))
    collective, _ = msprof.launches()
    assert (collective.op_type, collective.task_type) == ("hcom_allReduce_", "COMMUNICATION")
    assert collective.cells["Input Shapes"] == "N/A"
    assert collective.counters == {}


@pytest.mark.parametrize("group", GROUPS)
def test_counters_are_those_of_the_group(msprof, group):
    msprof(f"--aic-metrics={group}", calls=(ADD,))
    (launch,) = msprof.launches()
    assert set(launch.counters) == set(counters(group))
    assert launch.counters["aiv_time(us)"] > 0 == launch.counters["aicore_time(us)"]


def test_raw_cells_are_spelled_as_msprof_spells_them(msprof):
    msprof(calls=(ADD,))
    header, row = msprof.files()[0].read_text().splitlines()
    assert header.count(",") == 45
    assert ',"""4,8;4,8""",FLOAT;FLOAT,ND;ND,"""4,8""",FLOAT,ND,' in row
    assert "\t," in row


@pytest.mark.parametrize(("cann", "name"), [("8.5.2", "Block Dim"), ("9.0.0", "Block Num")])
def test_header_depends_on_the_version_of_cann(msprof, cann, name):
    msprof(cann=cann)
    assert f",{name},Mix {name}," in msprof.files()[0].read_text()
    assert msprof.types() == kernels()


def test_level_0_has_no_names(msprof):
    msprof("--task-time=l0")
    assert set(msprof.types()) == {"N/A"}
    assert {launch.cells["Input Shapes"] for launch in msprof.launches()} == {"N/A"}


def test_exit_status_is_that_of_the_application(msprof):
    assert msprof(status=7) == 7
    assert msprof.types() == kernels()


def test_signal_ends_the_application_and_its_launches_are_exported(msprof):
    program = APPLICATION.replace(
        "sys.exit(", "log.close(); import time; time.sleep(60); sys.exit("
    )
    (msprof.folder / "application.py").write_text(program)
    process = msprof.start(ADD)
    deadline = time.monotonic() + 30
    logs = msprof.folder / "prof"
    while time.monotonic() < deadline and not any(
        log.stat().st_size for log in logs.glob("PROF_*/device_0/data/launches.txt")
    ):
        time.sleep(0.02)
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    assert msprof.types() == kernels([ADD])


def test_application_may_be_given_by_an_option(msprof):
    command = [sys.executable, str(msprof.folder / "application.py"), "0", ADD]
    assert (
        msprof.run(f"--output={msprof.folder / 'prof'}", f"--application={shlex.join(command)}")
        == 0
    )
    assert msprof.types() == kernels([ADD])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--no-such-option=1", "true"],
        ["--output", "folder", "true"],
        ["--output=folder", "--aic-metrics=Nothing", "true"],
        ["--output=folder", "--task-time=l9", "true"],
        ["--output=folder"],
        ["true"],
    ],
)
def test_invalid_command_line_is_refused(msprof, arguments):
    assert msprof.run(*arguments) == 1
    assert not (msprof.folder / "prof").exists()


def test_run_without_launches_writes_no_file(msprof):
    assert msprof(calls=()) == 0
    assert msprof.files() == []


def test_launches_of_a_killed_run_are_exported_later(msprof):
    msprof.order(Fault("no_export", times=1))
    assert msprof(status=9) == 9
    assert msprof.files() == []
    with (msprof.runs()[0] / "device_0/data/launches.txt").open("a") as log:
        log.write("1795000000000000000 0 1 ACLNN aclnnCut(f32[4")
    assert msprof.run("--export=on", f"--output={msprof.runs()[0]}") == 0
    assert msprof.types() == kernels()


def test_export_without_a_run_fails(msprof):
    assert msprof.run("--export=on", f"--output={msprof.folder}") == 1


def test_first_records_of_a_window_may_be_lost(msprof):
    msprof.order(Fault("lose_head", count=2))
    msprof()
    assert msprof.types() == kernels()[2:]


def test_seed_determines_the_share_of_lost_records(msprof):
    many = (ADD,) * 400
    msprof.order(Fault("lose", share=0.25), seed=3)
    assert msprof(calls=many) == 0
    first = [launch.start_ns for launch in msprof.launches()]
    assert 250 < len(first) < 350
    assert msprof(calls=many) == 0
    assert [launch.start_ns for launch in msprof.launches()] != first
    msprof.order(Fault("lose", share=0.25), seed=3)
    assert msprof(calls=many) == 0
    assert [launch.start_ns for launch in msprof.launches()] == first


def test_fault_affects_only_the_named_kernel_call_and_number(msprof):
    msprof.order(
        Fault("lose", kernel="Neg", nth=2),
        Fault("rename", call="aclnnAdd(", to="AddAiCore"),
    )
    msprof()
    assert msprof.types() == ["AddAiCore", "Neg", kernels()[2], "AddAiCore"]


def test_fault_may_occur_once_over_all_runs(msprof):
    msprof.order(Fault("hide_shapes", kernel="Neg", times=1))
    msprof()
    msprof()
    hidden = [[x.cells["Input Shapes"] == "N/A" for x in msprof.launches(run)] for run in (0, 1)]
    assert sorted(map(sum, hidden)) == [0, 2]
    assert struck(msprof.faults) == ["fault-0.0"]


def test_jitter_is_at_most_its_share(msprof):
    msprof.order(Fault("jitter", share=0.01))
    msprof(calls=(ADD,) * 50)
    truth = truth_us(parse_call(ADD), "Add")
    durations = {launch.duration_us for launch in msprof.launches()}
    assert len(durations) > 10
    assert all(abs(d - truth) <= 0.01 * truth + 0.001 for d in durations)


def test_op_summary_may_be_split_into_slices(msprof):
    msprof.order(Fault("slices", count=2), Fault("block", to="Num"))
    msprof()
    assert len(msprof.files()) == 2
    assert msprof.types() == kernels()
    assert all(",Block Num," in path.read_text() for path in msprof.files())


def test_msprof_may_fail_after_good_data_or_refuse_to_start(msprof):
    msprof.order(Fault("status", count=139, times=1), Fault("refuse", count=255, nth=0))
    assert msprof() == 255
    assert not (msprof.folder / "prof").exists()
    msprof.order(Fault("status", count=139))
    assert msprof() == 139
    assert msprof.types() == kernels()


def test_an_unknown_fault_is_refused():
    with pytest.raises(ValueError, match="no such fault: 'explode'"):
        Fault("explode")
