"""Long tests are expected here."""

import faulthandler

import pytest


@pytest.fixture(autouse=True)
def _no_limit() -> None:
    """In other folders a test of more than a quarter of an hour counts as a hang, and ends the
    run."""
    faulthandler.cancel_dump_traceback_later()
