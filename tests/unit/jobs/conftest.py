"""What tests of several rooms ask for."""

from dataclasses import replace

import pytest

from collector.surface import surrogate


@pytest.fixture
def few_trees(monkeypatch):
    """Surfaces are learnt by an eighth of the trees: for tests of what is done with what a model
    says, and not of how well it learns."""
    for name in ("_DURATIONS", "_ERRORS"):
        monkeypatch.setattr(surrogate, name, replace(getattr(surrogate, name), trees=25))
