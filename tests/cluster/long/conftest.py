"""What takes long here takes long on purpose."""

import faulthandler

import pytest


@pytest.fixture(autouse=True)
def _no_limit() -> None:
    """Elsewhere a test that has not ended after a quarter of an hour hangs, and ends the run."""
    faulthandler.cancel_dump_traceback_later()
