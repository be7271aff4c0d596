"""The rules of identity on real output of msprof: one run, exported by two tools."""

from collector.model.case import case_from_cells
from collector.profiles.launches import read_op_summary
from collector.quality.identity import identity_of

RUN = "inference_cann9.1_ascend_pt"


def test_launch_of_kernel_details_is_proved_by_its_op_summary_row(real_profiles):
    (summary,) = (real_profiles / RUN).glob("PROF*/mindstudio_profiler_output/op_summary*.csv")
    recorded = {(row.start_ns, row.op_type): row for row in read_op_summary(summary)}
    details = real_profiles / RUN / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv"
    launches = list(read_op_summary(details))
    assert len(launches) > 30
    for launch in launches:
        case = case_from_cells(launch.op_type, launch.cells)
        row = recorded[launch.start_ns, launch.op_type]
        assert identity_of(case, row.cells).is_proved, case.describe()


def test_distinct_cases_of_a_real_step_are_never_confused(real_profiles):
    """Cases of one kernel type that differ in their rows differ in identity."""
    path = real_profiles / "train_cann8.3rc1_rank0_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    launches = read_op_summary(path / "kernel_details.csv")
    cells = {
        (launch.op_type, tuple(launch.cells.items()))
        for launch in launches
        if launch.cells["Input Shapes"].strip('"') not in ("", "N/A")
    }
    cases = {}
    for kernel, reported in cells:
        case = case_from_cells(kernel, dict(reported))
        cases.setdefault(kernel, {}).setdefault(case.case_id, (case, dict(reported)))
    pairs = 0
    for found in cases.values():
        reported = list(found.values())
        for number, (case, _) in enumerate(reported):
            for other, row in reported[number + 1 :]:
                same_work = _work(case) == _work(other)
                assert same_work or not identity_of(case, row).is_proved
                pairs += 1
    assert pairs > 100


def _work(case):
    """Return elements and dtype of every present tensor: unchanged by equivalent spellings."""
    return [
        [(slot.numel, slot.dtype) for slot in side or () if not slot.is_blank]
        for side in (case.inputs, case.outputs)
    ]
