"""`opmeter run` is SIGKILLed at random times, each followed by another run. Nothing is lost,
nothing is measured twice, no process is left."""

import random
import signal
import subprocess
import time
from dataclasses import dataclass

from tests.contract.drills.runs import CASES, Runs
from tests.servers.versitygw import Versitygw
from tests.waiting import wait_for

# A run writes some eighty objects: the kills cover planning to merging.
_KILLED_WITHIN_OBJECTS = 75
_AND_S = 0.3  # after the object: the time of a run between two
# If the server is killed too, the run waits for it, and writes nothing in the meantime.
_KILLED_WITHIN_S = (0.3, 6.5)


@dataclass(frozen=True)
class _Before:
    """Return what is uploaded between runs: shards and cases with a final result, and all attempts
    so far."""

    believed: set[tuple[str, str]]
    attempts: set[str]

    @classmethod
    def of(cls, runs: Runs) -> "_Before":
        return cls(runs.believed(), runs.attempts())


def check_kills(runs: Runs, kills_expected: int, server: Versitygw | None = None) -> None:
    """Kill a number of runs, finish the last, and check everything they left. A server is killed
    and restarted too, in every third."""
    moments = random.Random(20)
    kills, arguments, sizes = 0, (), []
    while kills < kills_expected:
        before = _Before.of(runs)
        sizes.append(len(before.believed))
        process = runs.start(*arguments)
        if server is None:
            _wait_for_a_moment(process, runs, moments)
        else:
            if kills % 3 == 1:
                _cut_off(server, moments)
            time.sleep(moments.uniform(*_KILLED_WITHIN_S))
        process.kill()
        output, _ = process.communicate()
        assert runs.wait_until_alone() == []
        _check_nothing_is_repeated(runs, before)
        if process.returncode == -signal.SIGKILL:
            kills, arguments = kills + 1, ()
        else:  # it finished first: the next round is killed
            assert process.returncode == 0, output.decode()
            arguments = ("--again",)
    before = _Before.of(runs)
    output = runs.finish()
    _check_nothing_is_repeated(runs, before)
    assert runs.wait_until_alone() == []
    finals = runs.finals()
    assert set(finals.values()) == {1}, output
    expected = runs.source_cases()
    assert len(expected) == CASES
    plans = {plan for plan, _ in finals}
    assert set(finals) == {(plan, case) for plan in plans for case in expected}
    runs.command("db", "verify")  # which fails if anything is damaged
    print(f"{runs.root}: killed {kills} times; {len(finals)} cases, one final outcome each;")
    print(f"accepted and uploaded before each start: {sizes}")


def _wait_for_a_moment(
    process: "subprocess.Popen[bytes]", runs: Runs, moments: random.Random
) -> None:
    enough = runs.objects() + moments.randrange(_KILLED_WITHIN_OBJECTS)
    wait_for(lambda: process.poll() is not None or runs.objects() >= enough)
    time.sleep(moments.uniform(0, _AND_S))


def _cut_off(server: Versitygw, moments: random.Random) -> None:
    """Stop the server during a run, and restart it."""
    time.sleep(moments.uniform(0.5, 4.0))
    server.kill()
    time.sleep(moments.uniform(0.2, 2.0))
    server.start()


def _check_nothing_is_repeated(runs: Runs, before: _Before) -> None:
    """Check that a case with an uploaded final result has no launch in any later attempt."""
    assert not (before.believed & runs.launched(but_not=before.attempts))
