"""A complete cluster in one process, a thousand times: see tests/attack/README.md."""

import hashlib
import os
from contextlib import closing

import pytest

from tests.attack.simulation.fleet import simulated
from tests.attack.simulation.kept import KEPT
from tests.attack.simulation.mutants import EXPECTED, MUTANTS

pytestmark = pytest.mark.slow

_PLAYS = int(os.environ.get("OPMETER_SIMULATED_CAMPAIGNS", "1000"))
_A_HUNDRED = 100  # of a thousand: a test ends in minutes next to drills that use both cores too
_OF_GANGS = range(100)
_PROCESSES = 2
_MOST_FOR_A_MUTANT = 120


@pytest.mark.parametrize("first", range(0, _PLAYS, _A_HUNDRED))
def test_all_invariants_hold_under_random_faults(first):
    seeds = range(first, first + _A_HUNDRED)
    found = list(simulated(seeds, _PROCESSES))
    assert len(found) == len(seeds)
    broken = {one["seed"]: one["broken"] for one in found if one["broken"]}
    assert not broken, "replay with: python -m tests.attack.simulation --trace --seed N"
    assert sum(one["commits"] for one in found) > len(seeds)


def test_all_invariants_hold_for_gangs_over_several_pods():
    found = list(simulated(_OF_GANGS, _PROCESSES, "--fault", "gangs=4"))
    assert not {one["seed"]: one["broken"] for one in found if one["broken"]}
    assert len(found) == len(_OF_GANGS)


def test_fixed_defects_do_not_return():
    for faults in sorted({kept.faults for kept in KEPT}):
        seeds = [kept.seed for kept in KEPT if kept.faults == faults]
        changes = [word for fault in faults for word in ("--fault", fault)]
        found = {one["seed"]: one["broken"] for one in simulated(seeds, _PROCESSES, *changes)}
        assert found == dict.fromkeys(seeds, "")


def test_simulation_of_a_seed_is_deterministic():
    seeds = range(7, 12)
    first, second = (
        {one["seed"]: one["digest"] for one in simulated(seeds, _PROCESSES, "--digest")}
        for _ in range(2)
    )
    assert first == second
    assert len(set(first.values())) == len(seeds)
    assert hashlib.sha256().hexdigest() not in first.values()


@pytest.mark.parametrize("mutant", sorted(MUTANTS))
def test_planted_defect_is_detected(mutant):
    """Simulate seeds until one detects the defect, which ends its process."""
    changes = [word for fault in EXPECTED.get(mutant, ()) for word in ("--fault", fault)]
    seeds = range(_MOST_FOR_A_MUTANT)
    with closing(simulated(seeds, _PROCESSES, "--mutant", mutant, *changes)) as found:
        assert any(one["broken"] for one in found)
