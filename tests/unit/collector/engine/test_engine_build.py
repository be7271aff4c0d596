"""The recording runtime as the product builds it, where no compiler is needed."""

import os
from pathlib import Path

import pytest

from collector.codec.errors import OpmeterError
from collector.engine import build
from collector.engine.build import LOG, RecordingRuntime, build_runtime, environment

pytestmark = pytest.mark.fast

RUNTIME = RecordingRuntime(Path("/built/lib"), Path("/built/shim.so"), Path("/site"))


def test_machine_without_compilers_is_refused(monkeypatch):
    monkeypatch.setattr(build.shutil, "which", lambda tool: None if tool == "gcc" else tool)
    with pytest.raises(OpmeterError, match="gcc"):
        build_runtime()


def test_machine_of_another_architecture_is_refused(monkeypatch):
    monkeypatch.setattr(build.platform, "machine", lambda: "riscv64")
    with pytest.raises(OpmeterError, match="riscv64"):
        build_runtime()


def test_runtime_precedes_other_libraries_in_the_environment(monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/other")
    monkeypatch.setenv(LOG, "/old/log")
    env = environment(RUNTIME, devices=2)
    assert env["LD_LIBRARY_PATH"].split(os.pathsep) == ["/built/lib", "/other"]
    assert env["PYTHONPATH"].split(os.pathsep)[0] == "/site"
    assert env["FAKE_NPU_COUNT"] == "2"
    assert LOG not in env
    assert environment(RUNTIME, log=Path("/new"))[LOG] == "/new"
