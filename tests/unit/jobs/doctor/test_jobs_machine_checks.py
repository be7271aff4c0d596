"""Checks of this machine, on a machine that runs this project."""

import pytest

from jobs.doctor.machine import check_machine

pytestmark = pytest.mark.fast


def test_the_packages_of_this_checkout_are_found() -> None:
    checks = {check.name: check for check in check_machine()}
    assert checks["package"].ok, checks["package"].found
