"""The behaviour of a test on a machine that lacks its requirements."""

import os
from typing import NoReturn

import pytest


def lacking(reason: str) -> NoReturn:
    """Skip the test with the reason; under CI, or with OPMETER_NO_SKIP=1, fail it."""
    if os.environ.get("CI") or os.environ.get("OPMETER_NO_SKIP") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
