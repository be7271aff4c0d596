"""Kernels that the stock torchair has built for their shapes, on a CANN that cannot be written: its
op_compiler is a stand-in, and so is the reading of the packages."""

import platform
from dataclasses import replace
from pathlib import Path

import pytest

from collector.engine import wheel
from collector.host.operator_library import PRIVATE
from collector.model.measurement import Outcome
from collector.model.record import CaseRecord
from collector.replay.supervisor import Ending
from tests.npu.test_npu_sessions import Bench, add, bench_in, outcomes, session

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

TILING = Path("opp/built-in/op_impl/ai_core/tbe/op_tiling/lib/linux", platform.machine())


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A machine with CANN's folders, none of which may be written (a user other than root)."""
    home = tmp_path / "cann"
    for folder in (TILING, "opp/static_kernel", "runtime", "compiler"):
        (home / folder).mkdir(parents=True)
    (home / TILING / "libopmaster_rt2.0.so").write_bytes(b"tiling")
    for folder in (home, *home.rglob("*")):
        folder.chmod(0o555)
    made = bench_in(tmp_path, monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(wheel.protobuf()), prepend=":")
    monkeypatch.setenv("ASCEND_HOME_PATH", str(home))
    monkeypatch.setenv("ASCEND_OPP_PATH", str(home / "opp"))
    return made


def static(rows: int) -> CaseRecord:
    record = add(rows)
    return replace(record, cells={**record.cells, "OP State": "static"})


def test_static_kernels_are_built_in_the_library_of_the_session(bench: Bench, tmp_path: Path):
    before = sorted((tmp_path / "cann").rglob("*"))
    report, result = bench.run(session(static(8), static(16), limit_s=300.0))
    assert report.ending is Ending.COMPLETE, report.log_tail
    assert outcomes(result) == [Outcome.OK] * 2, [m.reason for m in result.measurements]
    assert {m.op_state for m in result.measurements} == {"static"}
    assert [m.n_observed for m in result.measurements] == [5, 5]
    assert sorted((tmp_path / "cann").rglob("*")) == before
    assert not (tmp_path / "session_1" / PRIVATE).exists()


def test_case_whose_package_is_not_installed_is_unsupported(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    tool = tmp_path / "tools" / "op_compiler"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    _, result = bench.run(session(static(8), limit_s=300.0))
    (found,) = result.measurements
    assert found.outcome is Outcome.UNSUPPORTED and "op_compiler" in found.reason
