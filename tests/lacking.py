"""The behaviour of a test on a machine that lacks its requirements."""

import os
from typing import NoReturn

import pytest

from collector.engine.environments import is_serving_installed


def lacking(reason: str) -> NoReturn:
    """Skip the test with the reason; under CI, or with OPMETER_NO_SKIP=1, fail it."""
    if os.environ.get("CI") or os.environ.get("OPMETER_NO_SKIP") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def installed_release(name: str) -> str:
    """Return the name of a serving release whose environment is installed; without it the test
    lacks a requirement."""
    if not is_serving_installed(name):
        lacking(f"{name} is not installed: python -m tests.npu.stock_stacks install")
    return name
