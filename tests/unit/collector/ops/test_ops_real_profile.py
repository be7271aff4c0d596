"""The operators cover a real training step, by occurrence and by time."""

import csv

import pytest

from collector.codec.errors import CaseRejected
from collector.model.case import case_from_cells
from collector.ops.registry import find_operator

pytestmark = pytest.mark.fast

RANK = "train_cann8.3rc1_rank0_ascend_pt/ASCEND_PROFILER_OUTPUT/kernel_details.csv"


def compute_rows(path):
    with path.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    return [row for row in rows if row["Accelerator Core"] != "COMMUNICATION"]


def accepts(case):
    op = find_operator(case.kernel_type)
    try:
        return op is not None and op.check(case, "cpu") is None
    except CaseRejected:
        return False


def test_nearly_all_of_a_training_step_can_be_replayed(real_profiles):
    rows = compute_rows(real_profiles / RANK)
    covered = [row for row in rows if accepts(case_from_cells(row["Type"], row))]
    time, covered_time = (
        sum(float(row["Duration(us)"]) for row in some) for some in (rows, covered)
    )
    assert len(rows) == 2448
    assert len(covered) >= 0.95 * len(rows)
    assert covered_time >= 0.98 * time
    left_out = {row["Type"] for row in rows} - {row["Type"] for row in covered}
    assert left_out == {"MemSet"}
