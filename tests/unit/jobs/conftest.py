"""Fixtures that tests of several components use."""

from dataclasses import replace

import pytest

from collector.surface import surrogate


@pytest.fixture
def few_trees(monkeypatch):
    """Surfaces are learnt with an eighth of the trees: for tests of how predictions are used, not
    of how good they are."""
    for name in ("_DURATIONS", "_ERRORS"):
        monkeypatch.setattr(surrogate, name, replace(getattr(surrogate, name), trees=25))
