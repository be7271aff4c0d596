"""The slow tests run only if they are named: `pytest tests/attack/long`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.versitygw import NoServer, Versitygw
from tests.unit.collector.database.merge_kills import Place


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_named = any("long" in Path(argument).parts for argument in config.args)
    return True if collection_path.name == "long" and not is_named else None


@pytest.fixture
def s3_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A bucket of a real server."""
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
