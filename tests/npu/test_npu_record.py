"""What `python -m tools calls` prints if no call is the kernel's own, and if it cannot record."""

import pytest

from collector.engine.calls import parse_call
from collector.engine.wheel import NoRecordingRuntime
from tests.fixtures.op_rows import rows_of
from tests.npu import golden
from tests.npu.replayed import Replayed
from tools.operators import record

pytestmark = pytest.mark.fast


@pytest.fixture
def recorded(monkeypatch, tmp_path):
    """(call) -> the exit code of a recording of Neg with that call."""
    for module in (golden, record):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
    monkeypatch.setattr(record, "build_fake_cann", lambda: None)

    def record_one(text):
        rows = [Replayed(rows_of("Neg")[0].case, "", ((parse_call(text),),))]
        monkeypatch.setattr(record, "replay", lambda fake, expected: {"Neg": rows})
        return record.main(["Neg"])

    return record_one


def test_call_with_the_name_of_its_kernel_is_recorded(recorded, tmp_path):
    assert recorded("ACLNN aclnnNeg(f32[4]:ND, f32[4]:ND)") == 0
    assert "\n  ACLNN aclnnNeg(" in (tmp_path / "Neg.txt").read_text()


def test_call_with_another_name_is_reported_with_the_missing_declaration(recorded, capsys):
    assert recorded("ACLNN aclnnNegative(f32[4]:ND, f32[4]:ND)") == 1
    [line] = capsys.readouterr().err.splitlines()
    assert 'launched_by=calls("aclnnNegative")' in line
    assert "python -m tools calls Neg" in line


def test_kernel_without_rows_is_named_and_fails(recorded, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(record, "replay", lambda fake, expected: {})
    assert record.main(["NoSuchKernel"]) == 1
    message = capsys.readouterr()
    assert "tests/fixtures/ops/NoSuchKernel.csv" in message.err
    assert message.out.startswith("0 ")
    assert not list(tmp_path.iterdir())


def test_unsupported_machine_is_reported_in_one_line(recorded, monkeypatch, capsys):
    def build():
        raise NoRecordingRuntime("arm64: arguments are recorded on x86-64 only")

    monkeypatch.setattr(record, "build_fake_cann", build)
    assert record.main(["Neg"]) == 1
    assert capsys.readouterr().err == "arm64: arguments are recorded on x86-64 only\n"
