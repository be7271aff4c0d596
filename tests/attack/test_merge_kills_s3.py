"""Merges that are killed, and two at once, beside a real server."""

from collections.abc import Iterator

import pytest

from tests.unit.collector.database.merge_kills import Place, check_kills, check_two_at_once
from tests.unit.collector.database.merge_process import MergeProcesses

pytestmark = pytest.mark.server


@pytest.fixture
def merges() -> Iterator[MergeProcesses]:
    with MergeProcesses() as processes:
        yield processes


@pytest.mark.slow
def test_a_killed_merge_is_made_good_on_a_real_server(
    s3_place: Place, merges: MergeProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    check_kills(s3_place, merges, capsys)


def test_two_processes_at_once_lose_nothing_on_a_real_server(
    s3_place: Place, merges: MergeProcesses
) -> None:
    check_two_at_once(s3_place, merges)
