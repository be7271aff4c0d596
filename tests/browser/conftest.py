"""One browser and two reports for all tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import chromium
from tests.browser.reports import write_made_comparison, write_made_report


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def made_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="session")
def report(made_folder: Path) -> Path:
    """The report of a made database of 600 cases."""
    return write_made_report(made_folder, 600)


@pytest.fixture(scope="session")
def comparison(made_folder: Path) -> Path:
    """The comparison of two made stacks of 600 cases."""
    return write_made_comparison(made_folder, 600)


@pytest.fixture(scope="session")
def chinese_report(made_folder: Path) -> Path:
    return write_made_report(made_folder, 600, "zh")
