"""Fixtures for the tests of several commands."""

import pytest

from tests.unit.jobs.cli.small_model import write_small_model


@pytest.fixture
def small_model_folder(tmp_path, monkeypatch):
    """A folder with a campaign, and a database that lacks the cases of one kernel."""
    monkeypatch.chdir(tmp_path)
    write_small_model(tmp_path)
    return tmp_path
