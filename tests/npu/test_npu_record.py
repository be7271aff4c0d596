"""What `tests.npu.record` says where no call is the kernel's own, and where it cannot record."""

import pytest

from collector.recording.calls import parse_call
from collector.recording.wheel import NoRecordingRuntime
from tests.fixtures.op_rows import rows_of
from tests.npu import golden, record
from tests.npu.replayed import Replayed

pytestmark = pytest.mark.fast


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """(call) -> the exit code of a recording of Neg that gave it."""
    for module in (golden, record):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(record, "build_fake_cann", lambda: None)

    def record_one(text):
        rows = [Replayed(rows_of("Neg")[0].case, "", ((parse_call(text),),))]
        monkeypatch.setattr(record, "replay", lambda fake, wanted: {"Neg": rows})
        return record.main(["Neg"])

    return record_one


def test_a_call_of_its_own_name_is_taken_down(recorded, tmp_path):
    assert recorded("ACLNN aclnnNeg(f32[4]:ND, f32[4]:ND)") == 0
    assert "\n  ACLNN aclnnNeg(" in (tmp_path / "Neg.txt").read_text()


def test_a_call_of_another_name_is_told_with_what_to_put_where(recorded, capsys):
    assert recorded("ACLNN aclnnNegative(f32[4]:ND, f32[4]:ND)") == 1
    [line] = capsys.readouterr().err.splitlines()
    assert '"aclnnNegative": "Neg"' in line and "collector/recording/kernel_tables/" in line
    assert "python -m tests.npu.record Neg" in line


def test_a_kernel_without_rows_is_named_and_is_no_success(recorded, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(record, "replay", lambda fake, wanted: {})
    assert record.main(["NoSuchKernel"]) == 1
    said = capsys.readouterr()
    assert "tests/fixtures/ops/NoSuchKernel.csv" in said.err
    assert said.out.startswith("0 ")
    assert not list(tmp_path.iterdir())


def test_where_nothing_can_be_recorded_the_reason_is_a_line(recorded, monkeypatch, capsys):
    def build():
        raise NoRecordingRuntime("arm64: arguments are recorded on x86-64 only")

    monkeypatch.setattr(record, "build_fake_cann", build)
    assert record.main(["Neg"]) == 1
    assert capsys.readouterr().err == "arm64: arguments are recorded on x86-64 only\n"
