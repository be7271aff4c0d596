"""Merges that are killed, and two concurrent ones, with a real server."""

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
def test_killed_merge_on_a_real_server_is_completed_by_the_next(
    s3_place: Place, merges: MergeProcesses, capsys: pytest.CaptureFixture[str]
) -> None:
    check_kills(s3_place, merges, capsys)


def test_two_concurrent_merges_on_a_real_server_lose_nothing(
    s3_place: Place, merges: MergeProcesses
) -> None:
    check_two_at_once(s3_place, merges)
