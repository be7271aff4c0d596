"""Merges that are killed, and two concurrent ones, in a folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.collector.database.merge_kills import Place, check_kills, check_two_at_once
from tests.unit.collector.database.merge_process import MergeProcesses


@pytest.fixture
def file_place(tmp_path: Path) -> Place:
    return Place(lambda name: (tmp_path / name).as_uri())


@pytest.fixture
def merges() -> Iterator[MergeProcesses]:
    with MergeProcesses() as processes:
        yield processes


@pytest.mark.slow
def test_killed_merge_in_a_folder_is_completed_by_the_next(
    file_place: Place, merges: MergeProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    check_kills(file_place, merges, capsys)


def test_two_concurrent_merges_in_a_folder_lose_nothing(
    file_place: Place, merges: MergeProcesses
) -> None:
    check_two_at_once(file_place, merges)
