"""`step_trace_time.csv` of a run: the parts of its steps."""

import pytest

from collector.codec.errors import BadInput
from collector.profiles.bundled import write_bundled_profile
from collector.profiles.discovery import find_profiles
from collector.profiles.step_trace import FILE, StepTrace, read_step_trace
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

_HEADER = "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Free,Stage\n"


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    return write_bundled_profile("quickstart", tmp_path_factory.mktemp("run"))


@pytest.fixture
def run(profile):
    """Return a profile, and the path of its step file, which does not exist yet."""
    (table,) = find_profiles([profile])
    file = table.parent / FILE
    file.unlink(missing_ok=True)
    return profile, file


def test_steps_are_summed_up(run):
    profile, file = run
    assert read_step_trace(profile) is None
    file.write_text(_HEADER + "0,3,35.5,1,0,2214.75,2251.25\n0,4,34.5,0,2,2208,2242.5\n")
    assert read_step_trace(profile) == StepTrace(2, 70.0, 1.0, 4422.75)
    assert read_step_trace(profile).whole_us == 4493.75


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("Step,Computing\n1,2\n", "Communication"),
        ("", "Computing"),
        ("x" * 200_000, "Computing"),
    ],
)
def test_missing_step_column_is_refused_by_name(run, text, column):
    profile, file = run
    file.write_text(text)
    with pytest.raises(BadInput, match=naming(f"{file}:", column)) as error:
        read_step_trace(profile)
    if "Computing" in text:  # which may be named too, as one of the required columns
        assert str(error.value).count(column) > str(error.value).count("Computing")


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ("0,3,x,1,0,2,3\n", 2),
        ("0,3,1,1,0,2,3\n0,4,nan,1,0,2,3\n", 3),
        ("0,3,-1,1,0,2,3\n", 2),
        ("0,3,1e300,1,0,2,3\n", 2),
        ("0,3\n", 2),
        ('0,3,"' + "1" * 200_000 + '",1,0,2,3\n', 2),
    ],
)
def test_malformed_step_table_is_refused_with_its_line(run, rows, line):
    profile, file = run
    file.write_text(_HEADER + rows)
    with pytest.raises(BadInput, match=rf"{FILE}: ?(line )?{line}\b"):
        read_step_trace(profile)


def test_parts_of_real_steps_sum_to_them(real_profiles):
    """Stage is the profiler's total, to its rounding."""
    expected = {
        "inference_cann9.1_ascend_pt": None,
        "train_cann8.3rc1_rank0_ascend_pt": 810_022.25,
        "resnet_2025_rank0_ascend_pt": 136_581.0,
    }
    for name, stage_us in expected.items():
        found = read_step_trace(real_profiles / name)
        assert found is not None
        if stage_us is not None:
            assert found.whole_us == pytest.approx(stage_us, rel=1e-5)
