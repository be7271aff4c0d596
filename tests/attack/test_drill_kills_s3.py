"""Runs that are killed, with a server that is killed and restarted too: minutes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.drills.kills import check_kills
from tests.contract.drills.runs import Runs, short_campaign
from tests.servers.versitygw import NoServer, Versitygw

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.server]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Versitygw]:
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")
    folder = tmp_path / "gateway"
    folder.mkdir()
    server = Versitygw(folder)
    try:
        server.start()
    except NoServer as error:
        pytest.skip(str(error))
    server.make_bucket("drill")
    yield server
    server.stop()


def test_run_survives_ten_random_kills_with_a_server(tmp_path: Path, gateway: Versitygw) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    root = f"s3://drill/{tmp_path.name}?endpoint={gateway.endpoint}"
    environment = gateway.environment() | {"TMPDIR": str(folder)}
    check_kills(Runs(folder, root, environment, short_campaign(folder)), 10, gateway)
