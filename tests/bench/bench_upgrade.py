"""The cost of measuring an upgrade of the stack, relative to measuring every case again.

Simulated: 10 % of the kernels change by 8 %. Each session's mean deviates by Student's t, half of
the variance is common to all cases of a kernel in that session. The older stack has one session of
each case.

    python tests/bench/bench_upgrade.py [SEEDS]    # 1 takes ten seconds, 20 three minutes
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from collector.database.intervals import CaseInterval
from collector.model.plan import UpgradeFrom
from collector.model.record import CaseRecord
from collector.model.vocabulary import BASE_CELLS
from collector.quality.changes import KnownMeans
from collector.quality.upgrades import MARGIN, reused_means
from collector.quality.variance import SHARED_PART
from jobs.planning.candidates import Candidate, HeadResult, OldDurations, Weight
from jobs.planning.upgrades import upgrade_round

CHANGE, CHANGED_SHARE = 1.08, 0.1
FEWEST, MOST = 20, 400  # cases of a kernel
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """The standard error of a session's mean, as a share, and the degrees of freedom."""

    error: float
    degrees: float


@dataclass
class Found:
    """Numbers of kernels and of cases; `covered` of the `reused` cases have an interval that
    contains the true mean."""

    changed: int = 0
    found: int = 0
    unchanged: int = 0
    equal: int = 0
    cases: int = 0
    measured: int = 0
    reused: int = 0
    covered: int = 0

    @property
    def cost(self) -> float:
        return self.measured / self.cases


def simulated(seed: int, kernels: int, noise: Noise, margin: float = MARGIN) -> Found:
    """Return what the rounds after an upgrade of this many kernels find, and what they cost."""
    random = np.random.default_rng(seed)
    sizes = np.exp(random.uniform(np.log(FEWEST), np.log(MOST), kernels)).astype(int)
    is_changed = np.arange(kernels) < CHANGED_SHARE * kernels
    changes = np.where(is_changed, np.log(CHANGE) * random.choice([-1, 1], kernels), 0.0)
    found = Found()
    for number, (size, change) in enumerate(zip(sizes.tolist(), changes.tolist(), strict=True)):
        true = random.uniform(1, 7, size)
        candidates = list(_candidates(f"Kernel{number}", size))
        ids = [one.record.case_id for one in candidates]
        before = _session(random, true, noise)
        sessions = [_session(random, true + change, noise) for _ in range(2)]
        old = OldDurations(UpgradeFrom("old", margin), "s", _intervals(ids, before, noise, 1))
        first = upgrade_round(candidates, {}, old)
        after = _intervals(ids, (sessions[0] + sessions[1]) / 2, noise, 2)
        results = {case: HeadResult(True, 1.0, after[case]) for case in first.sample}
        last = upgrade_round(candidates, results, old)
        assert not last.sample and not last.waiting
        found.cases += size
        found.measured += 2 * len(first.sample) + size - len(first.sample) - len(last.reused)
        found.changed += change != 0
        found.found += change != 0 and not last.kernels
        found.unchanged += change == 0
        found.equal += change == 0 and bool(last.kernels)
        for kernel in last.kernels:
            at = [ids.index(case) for case in kernel.cases]
            known = [old.intervals[case] for case in kernel.cases]
            columns = [(one.mean_us, one.high_us, one.degrees) for one in known]
            means = reused_means(KnownMeans(*np.array(columns).T), kernel.ratio)
            off = np.abs(np.log(means.mean_us) - (true + change)[at])
            found.reused += len(at)
            found.covered += int(np.sum(off <= np.log(means.high_us / means.mean_us)))
    return found


def _candidates(kernel: str, count: int) -> Iterator[Candidate]:
    for rows in range(1, count + 1):
        cells = ("dynamic", "", f'"{rows},64"', "DT_BF16", "ND", f'"{rows},64"', "DT_BF16", "ND")
        record = CaseRecord(kernel, dict(zip(BASE_CELLS, cells, strict=True)), {})
        yield Candidate(record, None, Weight(1, 0.0, False))


def _session(random: np.random.Generator, true: Floats, noise: Noise) -> Floats:
    own = random.standard_t(noise.degrees, len(true)) * np.sqrt(1 - SHARED_PART)
    return true + noise.error * (random.standard_t(noise.degrees) * np.sqrt(SHARED_PART) + own)


def _intervals(
    ids: list[str], logs: Floats, noise: Noise, sessions: int
) -> dict[str, CaseInterval]:
    reach = float(stdtrit(noise.degrees, 0.975)) * noise.error / np.sqrt(sessions)
    ends = (np.exp(logs), np.exp(logs - reach), np.exp(logs + reach))
    return {
        case: CaseInterval(mean, sessions, low, high, noise.degrees, "band")
        for case, mean, low, high in zip(ids, *(end.tolist() for end in ends), strict=True)
    }


def main(seeds: int) -> None:
    print("error  degrees  margin  found   reused kernels  cost of the full plan  coverage")
    for error, degrees, margin in (
        (0.005, 3, 0.05),
        (0.007, 3, 0.05),
        (0.01, 3, 0.05),
        (0.01, 5, 0.05),
        (0.014, 5, 0.05),
        (0.01, 5, 0.03),
    ):
        parts = [simulated(seed, 100, Noise(error, degrees), margin) for seed in range(seeds)]
        total = Found(*(sum(getattr(p, n) for p in parts) for n in Found.__dataclass_fields__))
        print(
            f"{error:5.1%}  {degrees:7}  {margin:6.0%}  {total.found:3}/{total.changed:3} "
            f"{total.equal / total.unchanged:14.1%}  {total.cost:21.1%}  "
            f"{total.covered / max(1, total.reused):8.1%}"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
