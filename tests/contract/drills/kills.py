"""`opmeter run` is SIGKILLed at random moments, each followed by a re-run. Nothing is lost, nothing
is measured twice, no process stays behind."""

import random
import signal
import subprocess
import time
from dataclasses import dataclass

from tests.contract.drills.runs import CASES, Runs
from tests.servers.versitygw import Versitygw
from tests.waiting import wait_for

# A run writes some eighty objects: from before anything is planned until it is being merged.
_KILLED_WITHIN_OBJECTS = 75
_AND_S = 0.3  # after the object: what a run does between two
# Where the server is killed, too, the run waits for it, and writes nothing meanwhile.
_KILLED_WITHIN_S = (0.3, 6.5)


@dataclass(frozen=True)
class _Before:
    """What is uploaded while nobody runs: shards and cases whose number is believed, and all
    attempts so far."""

    believed: set[tuple[str, str]]
    attempts: set[str]

    @classmethod
    def of(cls, runs: Runs) -> "_Before":
        return cls(runs.believed(), runs.attempts())


def check_kills(runs: Runs, kills_wanted: int, server: Versitygw | None = None) -> None:
    """Kill runs until so many were killed, finish the last, and look at all that they left. A
    server is killed and restarted as well, in every third."""
    moments = random.Random(20)
    kills, arguments, sizes = 0, (), []
    while kills < kills_wanted:
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
    wanted = runs.source_cases()
    assert len(wanted) == CASES
    plans = {plan for plan, _ in finals}
    assert set(finals) == {(plan, case) for plan in plans for case in wanted}
    runs.command("db", "verify")  # which fails where anything is broken
    print(f"{runs.root}: killed {kills} times; {len(finals)} cases, one final outcome each;")
    print(f"believed and uploaded before each start: {sizes}")


def _wait_for_a_moment(
    process: "subprocess.Popen[bytes]", runs: Runs, moments: random.Random
) -> None:
    enough = runs.objects() + moments.randrange(_KILLED_WITHIN_OBJECTS)
    wait_for(lambda: process.poll() is not None or runs.objects() >= enough)
    time.sleep(moments.uniform(0, _AND_S))


def _cut_off(server: Versitygw, moments: random.Random) -> None:
    """Take the server away in the middle of things, and bring it back."""
    time.sleep(moments.uniform(0.5, 4.0))
    server.kill()
    time.sleep(moments.uniform(0.2, 2.0))
    server.start()


def _nothing_measured_again(runs: Runs, before: _Before) -> None:
    """A case whose number was uploaded and is believed has no launch in any later attempt."""
    assert not (before.believed & runs.launched(but_not=before.attempts))
