"""Whether canaries detect a device that is 6 % off and slow throttling, without false alarms.

    python -m tests.truth.canaries [--stacks N] [--seed N]

Sessions are drawn as they are on accelerators: launches that scatter by 1 to 2 % with a long tail,
sessions that differ by 0.5 to 1 %, most of it common to both canaries. A stack has 8 to 48 of them,
each on a separate device.

- `shift`: one device takes 6 % longer; the share of stacks that detect it by the 24 launches that a
  session has of one canary (its other canary is not drawn).
- `others`: the share of the other sessions of a stack with such a device that are flagged.
- `shuffled`: the same, shift included, after the labels of all launches are permuted.
- `steady`: the share of unchanged sessions that are reported to drift.
- `throttle`: a device whose clock falls by 1 % a minute, over its sessions of four minutes, next to
  8 intact ones: the share detected within ten minutes, by a session's own drift or by the history.

Prints one JSON line; exits with 1 if a limit is missed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np

from collector.model.measurement import CanaryReading
from collector.model.plan import CANARY_PLACES, CANARY_REPEATS
from collector.quality.canaries import SessionReadings, drift, session_factors
from collector.quality.evidence import Floats
from collector.quality.statistics import accept
from collector.quality.variance_prior import prior_of

PRIOR = prior_of("ATLAS_800_A3")
USUAL_US = {"Add": 90.0, "MatMulV2": 450.0}
_SESSION_S = 240.0
_SHIFT = 0.06
_THROTTLE_A_MINUTE = 0.01
_COMMON = 0.7  # of the variance of sessions, the part common to both canaries
_WITHIN_S = 600.0
_AT_S = (0.0, _SESSION_S / 2, _SESSION_S)  # of the positions of a session
BARS = {"shift": 0.95, "others": 0.01, "shuffled": 0.01, "steady": 0.01, "throttle": 0.95}

Draw = np.random.Generator
Launches = dict[tuple[str, str], Floats]  # by canary and position, in microseconds


class Stack:
    """The scatter of launches and the differences of sessions on one stack."""

    def __init__(self, draw: Draw):
        self.draw = draw
        self.scatter = draw.uniform(0.01, 0.02)
        self.sessions = draw.uniform(0.005, 0.01)

    def session(
        self,
        *,
        cases: Sequence[str] = tuple(USUAL_US),
        slower: float = 0.0,
        a_minute: float = 0.0,
        after_s: float = 0.0,
    ) -> Launches:
        """Return a session that begins after its device has worked for `after_s`."""
        common = self.draw.normal(0, self.sessions * _COMMON**0.5)
        launches = {}
        for case in cases:
            own = self.draw.normal(0, self.sessions * (1 - _COMMON) ** 0.5)
            for place, at_s in zip(CANARY_PLACES, _AT_S, strict=True):
                level = slower + common + own + a_minute * (after_s + at_s) / 60
                scatter = self.draw.normal(0, self.scatter, CANARY_REPEATS)
                launches[case, place] = USUAL_US[case] * np.exp(level + scatter)
        return launches


def readings_of(number: int, launches: Launches) -> SessionReadings:
    """Return the readings of a session of these launches, in the form of results."""
    readings = []
    for (case, place), times_us in launches.items():
        kept = accept(times_us.tolist())
        mean_us = fmean(kept)
        at_s = _AT_S[CANARY_PLACES.index(place)]
        reported = CanaryReading(case, place, at_s, mean_us, stdev(kept) / mean_us, len(kept))
        readings.append(reported)
    named = (f"session {number:03}", f"device {number}")
    return SessionReadings(*named, "warm", "", tuple(readings))


def reported(sessions: Sequence[Launches]) -> list[SessionReadings]:
    return [readings_of(number, launches) for number, launches in enumerate(sessions)]


def judge(stacks: int, seed: int) -> dict[str, object]:
    """Return the shares over this many stacks, and whether all limits are met."""
    draw = np.random.default_rng(seed)
    shares: dict[str, list[float]] = {name: [] for name in BARS}
    for _ in range(stacks):
        stack, count = Stack(draw), int(draw.integers(8, 49))
        shifts = [_SHIFT] + [0.0] * (count - 1)
        one = [stack.session(cases=("MatMulV2",), slower=shift) for shift in shifts]
        shares["shift"].append(_flagged(reported(one))[0])
        both = [stack.session(slower=shift) for shift in shifts]
        shares["others"].append(fmean(_flagged(reported(both))[1:]))
        shares["shuffled"].append(fmean(_flagged(reported(_shuffled(both, draw)))))
        drifted = [bool(drift(one.readings, PRIOR)) for one in reported(both)]
        shares["steady"].append(fmean(drifted))
        shares["throttle"].append(_finds_throttle(stack))
    found = {name: round(fmean(share), 4) for name, share in shares.items()}
    is_met = all(
        found[name] >= bar if bar > 0.5 else found[name] < bar for name, bar in BARS.items()
    )
    launches = CANARY_REPEATS * len(CANARY_PLACES)
    return {"stacks": stacks, "launches": launches, **found, "bars": BARS, "is_met": is_met}


def _flagged(sessions: Sequence[SessionReadings]) -> list[bool]:
    return [bool(found.fault) for found in session_factors(sessions, PRIOR)]


def _shuffled(sessions: Sequence[Launches], draw: Draw) -> list[Launches]:
    """Return the same launches of each canary, permuted over sessions and positions."""
    dealt: list[Launches] = [{} for _ in sessions]
    for case in USUAL_US:
        all_us = np.concatenate([one[case, place] for one in sessions for place in CANARY_PLACES])
        parts = iter(draw.permutation(all_us).reshape(-1, CANARY_REPEATS))
        for one in dealt:
            one.update({(case, place): next(parts) for place in CANARY_PLACES})
    return dealt


def _finds_throttle(stack: Stack) -> bool:
    """Return whether any session that ends within ten minutes reports that its device slows."""
    sound = [stack.session() for _ in range(8)]
    begins_s = np.arange(0, _WITHIN_S - _SESSION_S + 1, _SESSION_S)
    slow = [stack.session(a_minute=_THROTTLE_A_MINUTE, after_s=float(s)) for s in begins_s]
    known = reported([*sound, *slow])
    drifted = any(drift(one.readings, PRIOR) for one in known[len(sound) :])
    return drifted or any(_flagged(known)[len(sound) :])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stacks", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    requested = parser.parse_args(arguments)
    found = judge(requested.stacks, requested.seed)
    print(json.dumps(found))
    return 0 if found["is_met"] else 1


if __name__ == "__main__":
    sys.exit(main())
