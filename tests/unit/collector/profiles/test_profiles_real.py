"""Properties of real profiles: the profiler's own summaries agree with the read rows."""

import csv
from collections import defaultdict

import pytest

from collector.profiles.kernel_details import read_profile
from collector.profiles.launches import read_op_summary
from collector.profiles.row_values import is_communication

pytestmark = pytest.mark.fast

TRAIN = "train_cann8.3rc1_rank0_ascend_pt"
RESNET = "resnet_2025_rank0_ascend_pt"
INFERENCE = "inference_cann9.1_ascend_pt"
RUNS = (TRAIN, RESNET, INFERENCE)
ROUNDING_US = 0.0005  # a row's duration has three decimals, and the profiler sums before rounding


def output(real_profiles, run, name):
    return real_profiles / run / "ASCEND_PROFILER_OUTPUT" / name


def table(path):
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def compute_launches(path):
    return [
        launch
        for launch in read_op_summary(path)
        if not is_communication(launch.op_type, launch.task_type)
    ]


def test_training_run_has_its_known_rows_and_cases(real_profiles):
    profile = read_profile([real_profiles / TRAIN])
    report = profile.report
    assert (report.rows, report.compute_rows, report.communication_rows) == (2463, 2448, 15)
    assert len({record.case_id for record in profile.records}) == len(profile.records) == 109
    assert report.unknown_input_rows == (("MemSet", 26),)
    assert (report.duplicates_dropped, report.skipped) == (0, ())
    assert [(s.torch_npu, s.cann) for s in report.software] == [("2.7.1", "8.3.RC1")]


def test_optimizer_rows_with_unknown_outputs_are_kept(real_profiles):
    records = [
        record
        for record in read_profile([real_profiles / TRAIN]).records
        if record.kernel_type == "ApplyAdamWV2"
    ]
    assert sum(record.profile.count for record in records) == 57
    assert all(record.case.outputs is None for record in records)
    assert all(record.case.inputs is not None for record in records)


@pytest.mark.parametrize("run", RUNS)
def test_durations_by_type_and_core_equal_op_statistic(real_profiles, run):
    found = defaultdict(list)
    for launch in compute_launches(output(real_profiles, run, "kernel_details.csv")):
        found[launch.op_type, launch.task_type].append(launch.duration_us)
    expected = {
        (row["OP Type"], row["Core Type"]): row
        for row in table(output(real_profiles, run, "op_statistic.csv"))
    }
    assert found.keys() == expected.keys()
    for key, durations in found.items():
        assert len(durations) == int(expected[key]["Count"])
        total_us = float(expected[key]["Total Time(us)"])
        assert sum(durations) == pytest.approx(total_us, abs=ROUNDING_US * (len(durations) + 1))


@pytest.mark.parametrize("run", RUNS)
def test_total_of_all_cases_is_the_computing_time_of_the_step(real_profiles, run):
    profile = read_profile([real_profiles / run])
    total_us = sum(record.profile.total_us for record in profile.records)
    steps = table(output(real_profiles, run, "step_trace_time.csv"))
    computing_us = sum(float(step["Computing"]) for step in steps)
    assert total_us == pytest.approx(computing_us, abs=ROUNDING_US * profile.report.rows)


@pytest.mark.parametrize("run", RUNS)
def test_total_of_the_cases_is_that_of_the_launches(real_profiles, run):
    by_type = defaultdict(float)
    for launch in compute_launches(output(real_profiles, run, "kernel_details.csv")):
        by_type[launch.op_type] += launch.duration_us
    for record in read_profile([real_profiles / run]).records:
        by_type[record.kernel_type] -= record.profile.total_us
    assert max(abs(rest) for rest in by_type.values()) < 1e-6


def test_kernel_details_is_the_op_summary_of_its_run(real_profiles):
    details = output(real_profiles, INFERENCE, "kernel_details.csv")
    (summary,) = (real_profiles / INFERENCE).rglob("op_summary_*.csv")
    assert list(read_op_summary(details)) == list(read_op_summary(summary))
    assert read_profile([details]).records == read_profile([summary]).records
    assert read_profile([real_profiles / INFERENCE]).report.files == (details,)


def test_every_real_file_is_read(real_profiles):
    report = read_profile([real_profiles]).report
    assert len(report.files) >= 5
    assert report.rows == sum(len(list(read_op_summary(path))) for path in report.files)
    assert report.skipped == ()
