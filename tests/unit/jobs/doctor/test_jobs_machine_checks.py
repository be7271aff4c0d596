"""Checks of this machine, on a machine that runs this project."""

import pytest

from jobs.doctor import npu
from jobs.doctor.machine import check_machine

pytestmark = pytest.mark.fast


def test_the_packages_of_this_checkout_are_found() -> None:
    checks = {check.name: check for check in check_machine()}
    assert checks["package"].ok, checks["package"].found


def test_machine_with_nothing_but_device_nodes_is_an_npu_host(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(npu, "cann_version", lambda: None)
    monkeypatch.setattr(npu, "find_spec", lambda name: None)
    assert not npu.is_npu_host(tmp_path)
    (tmp_path / "davinci0").touch()
    assert npu.is_npu_host(tmp_path)
