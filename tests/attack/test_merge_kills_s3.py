"""Merges that are killed, and two at once, beside a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.versitygw import NoServer, Versitygw
from tests.unit.collector.database.merge_kills import Place, check_kills, check_two_at_once
from tests.unit.collector.database.merge_process import MergeProcesses

pytestmark = pytest.mark.server


@pytest.fixture
def s3_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    server = Versitygw(tmp_path)
    try:
        server.start()
    except NoServer as error:
        pytest.skip(str(error))
    try:
        server.make_bucket("merges")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield Place(lambda name: f"s3://merges/{name}?endpoint={server.endpoint}")
    finally:
        server.stop()


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
