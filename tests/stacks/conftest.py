"""The serving releases of these tests."""

import pytest

from collector.engine.environments import RELEASES
from tests.lacking import installed_release


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """A release whose environment is installed."""
    return installed_release(request.param)


@pytest.fixture
def usual() -> str:
    """The first of the releases."""
    return installed_release(next(iter(RELEASES)))
