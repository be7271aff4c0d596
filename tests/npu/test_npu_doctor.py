"""The output of `opmeter doctor` on a host with NPUs, and next to a CUDA build of torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collector.host.stack import installed_torch
from collector.replay.check_session import concurrency_test
from jobs.cli.app import app
from tests.npu.fakecann.build import environment
from tests.unit.collector.naming import names

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

_ROOT = Path(__file__).parents[2]


def doctor(env, folder, *arguments):
    env = env | {"PYTHONPATH": os.pathsep.join((str(_ROOT), env["PYTHONPATH"]))}
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "jobs.cli",
            "doctor",
            "--root",
            str(folder / "data"),
            *arguments,
        ],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def line_of(message, state, check):
    """Return the line of a check, which has this state."""
    (line,) = (line for line in message.splitlines() if line.split()[:2] == [state, check])
    return line


def test_doctor_of_an_npu_host_reports_devices_driver_cann_and_profiler(fake, tmp_path):
    (tmp_path / "version.info").write_text("version=8.5.0\n")
    env = environment(fake, devices=2) | {"ASCEND_TOOLKIT_HOME": str(tmp_path)}
    _, message = doctor(env, tmp_path)
    assert names(line_of(message, "ok", "npu"), 2, "910B3", "64 GB", 20)
    assert names(line_of(message, "ok", "driver"), "24.1.rc2", "7.3.0.1.231", "Ascend910B3")
    assert names(line_of(message, "ok", "cann"), "8.5.0")
    assert str(fake.tools / "msprof") in line_of(message, "ok", "msprof")
    assert names(line_of(message, "ok", "import"), "torch_npu sees 2 devices")
    assert "export ASCEND_CUSTOM_OPP_PATH=" in message
    assert "npu: ATLAS_800_A2_313T_64G/vllm_ascend/vllm0_torch2.13.0_cann8.5.0" in message


@pytest.fixture(scope="module")
def without_cann(fake, tmp_path_factory):
    """The exit code and the lines of doctor on a host without CANN."""
    env = {name: text for name, text in environment(fake).items() if name != "LD_PRELOAD"}
    return doctor(env, tmp_path_factory.mktemp("without_cann"))


def test_doctor_of_a_host_without_cann_reports_how_to_install_it(without_cann):
    _, message = without_cann
    assert line_of(message, "FAIL", "cann")
    assert "source /usr/local/Ascend/ascend-toolkit/set_env.sh" in message


def test_cuda_build_next_to_torch_npu_is_reported_with_its_fix(without_cann):
    code, message = without_cann
    if "+cu" not in (installed_torch() or ""):
        pytest.skip("this torch is not a CUDA build: pip install torch==2.13.0 (PyPI)")
    assert code == 1
    assert line_of(message, "FAIL", "torch_npu") and "CPU build" in message


def test_concurrent_devices_are_compared_with_one_alone(fake, tmp_path, monkeypatch):
    (tmp_path / "version.info").write_text("version=8.5.0\n")
    env = environment(fake, devices=2) | {
        "ASCEND_TOOLKIT_HOME": str(tmp_path),
        "OPMETER_LOCKS": str(tmp_path / "locks"),
        "TMPDIR": str(tmp_path),
    }
    env["PYTHONPATH"] = os.pathsep.join((str(_ROOT), env["PYTHONPATH"]))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    compared = []

    def noted(*requested):
        compared.extend(concurrency_test(*requested))
        return compared

    monkeypatch.setattr("jobs.doctor.npu.concurrency_test", noted)
    done = CliRunner().invoke(app, ["doctor", "--together", "npu"])
    assert done.exit_code == 0, done.output
    assert names(line_of(done.output, "ok", "together"), 2, "+0.0 %")
    assert len(compared) >= 8
    # On this device the duration of a launch follows from its call, whatever else runs.
    assert {case.slowdown for case in compared} == {0.0}
