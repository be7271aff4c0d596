"""`opmeter run` is SIGKILLed at ten random moments, each followed by a re-run; on S3 the server
is killed and restarted as well. Nothing is lost, nothing is measured twice, nobody stays behind.
"""

import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.contract.drills.runs import Runs, short_campaign
from tests.servers.versitygw import NoServer, Versitygw

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.server]

_KILLS = 10


@dataclass(frozen=True)
class _Before:
    """What is uploaded while nobody runs: shards and measured cases, and all attempts so far."""

    measured: set[tuple[str, str]]
    attempts: set[str]

    @classmethod
    def of(cls, runs: Runs) -> "_Before":
        return cls(set(runs.uploaded()), runs.attempts())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")
    folder = tmp_path_factory.mktemp("undisturbed")
    place = f"file://{folder}/data"
    runs = Runs(folder, place, {"TMPDIR": str(folder)}, short_campaign(folder))
    runs.finish()
    return runs


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versitygw]:
    server = Versitygw(tmp_path_factory.mktemp("gateway"))
    try:
        server.start()
    except NoServer as error:
        pytest.skip(str(error))
    server.make_bucket("drill")
    yield server
    server.stop()


def test_an_undisturbed_run_answers_every_case_once(undisturbed: Runs):
    finals = undisturbed.finals()
    assert len(finals) == 109 and set(finals.values()) == {1}
    launched = {case for _, case in undisturbed.launched(but_not=set())}
    assert len({case for _, case in finals} - launched) == 1  # of MemSet the inputs are unknown
    assert "no problems" in undisturbed.command("db", "verify")
    assert "merged already" in undisturbed.finish()


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_killed_at_ten_random_moments(kind, tmp_path, undisturbed: Runs, request):
    moments = random.Random(20)
    runs, server = _runs(kind, tmp_path, request)
    kills, arguments = 0, ()
    while kills < _KILLS:
        before = _Before.of(runs)
        process = runs.start(*arguments)
        if server is not None and kills % 3 == 1:
            _cut_off(server, moments)
        time.sleep(moments.uniform(0.3, 9.0))
        process.kill()
        output, _ = process.communicate()
        assert runs.wait_until_alone() == []
        _nothing_measured_again(runs, before)
        if process.returncode == -signal.SIGKILL:
            kills, arguments = kills + 1, ()
        else:  # it came to its end first: the next round is there to be killed
            assert process.returncode == 0, output.decode()
            arguments = ("--again",)
    before = _Before.of(runs)
    output = runs.finish()
    _nothing_measured_again(runs, before)
    assert runs.wait_until_alone() == []
    finals = runs.finals()
    assert set(finals.values()) == {1}, output
    wanted = {case for _, case in undisturbed.finals()}
    plans = {plan for plan, _ in finals}
    assert set(finals) == {(plan, case) for plan in plans for case in wanted}
    assert "no problems" in runs.command("db", "verify")
    print(f"{kind}: killed {kills} times; {len(finals)} cases, one final outcome each")


def _cut_off(server: Versitygw, moments: random.Random) -> None:
    """Take the server away in the middle of things, and bring it back."""
    time.sleep(moments.uniform(0.5, 4.0))
    server.kill()
    time.sleep(moments.uniform(0.2, 2.0))
    server.start()


def _runs(kind, tmp_path, request) -> tuple[Runs, Versitygw | None]:
    campaign, environment = short_campaign(tmp_path), {"TMPDIR": str(tmp_path)}
    if kind == "file":
        return Runs(tmp_path, f"file://{tmp_path}/data", environment, campaign), None
    server = request.getfixturevalue("gateway")
    root = f"s3://drill/{tmp_path.name}?endpoint={server.endpoint}"
    return Runs(tmp_path, root, server.environment() | environment, campaign), server


def _nothing_measured_again(runs: Runs, before: _Before) -> None:
    """A case whose part was uploaded has no launch in any attempt that came later."""
    assert not (before.measured & runs.launched(but_not=before.attempts))
