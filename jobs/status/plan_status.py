"""The progress of a plan, shard by shard: committed, measured, and left. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum, inf

from collector.database.plans import Damage
from collector.model.manifest import NO_USAGE, Usage, total_usage
from collector.model.measurement import Outcome
from collector.model.plan import Plan
from jobs.objects.site import Site

_LEAST_SHARE = 0.2  # of a shard's cases, from which its own rate counts alone


def devices_measuring(workers: int, site: Site) -> int:
    """Return how many devices measure at a time in this number of pods.

    The devices of a pod take turns if the site allows fewer to measure at once than a pod has."""
    return workers * site.at_once


def remaining_s(left_s: Sequence[float], at_once: int, pace: float) -> float:
    """Return the wall time left.

    `left_s` is the forecast device time of each open shard; two devices never share a shard. `pace`
    is the time taken over the time forecast."""
    return pace * max(fsum(left_s) / max(1, at_once), max(left_s, default=0.0))


@dataclass(frozen=True, slots=True)
class OutcomeKind:
    """An outcome of cases of one kernel type, with its reason."""

    kernel_type: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """The status of a shard.

    `done` of `cases` have a result; `measuring` is the current case, if a worker reported it.
    `planned` counts cases by kernel type, `outcomes` the results in stored parts. `damage` is set
    if a committed shard cannot be read. The attempt that measures an open shard has `new` results
    of its own after `took_s`."""

    shard: str
    committed: bool
    done: int
    cases: int
    measuring: str
    predicted_s: float = 0.0
    usage: Usage = NO_USAGE
    planned: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[OutcomeKind] = field(default_factory=Counter)
    damage: Damage | None = None
    new: int = 0
    took_s: float = 0.0

    @property
    def timed(self) -> tuple[float, float]:
        """Return the wall time of the shard, and the forecast of what was done in that time.

        The rate of an attempt that has just begun is mostly that of its start: until it has
        measured a fifth of the shard, it counts in part, and the forecast for the rest."""
        if self.committed:
            return (self.usage.wall_s, self.predicted_s) if self.usage.wall_s > 0 else (0.0, 0.0)
        share = min(1.0, self.new / max(1, self.cases))
        if not share or not 0 < self.took_s < inf:
            return 0.0, 0.0
        forecast_s = share * self.predicted_s
        weight = min(1.0, share / _LEAST_SHARE)
        return weight * self.took_s + (1 - weight) * forecast_s, forecast_s


@dataclass(frozen=True, slots=True)
class PlanStatus:
    plan: Plan
    shards: tuple[ShardStatus, ...]

    @property
    def committed(self) -> int:
        return sum(shard.committed for shard in self.shards)

    @property
    def of_cases(self) -> list[ShardStatus]:
        """Return the shards of cases that are measured for the first time."""
        repeats = {shard.shard_id for shard in self.plan.repeats}
        return [shard for shard in self.shards if shard.shard not in repeats]

    @property
    def of_repeats(self) -> list[ShardStatus]:
        repeats = {shard.shard_id for shard in self.plan.repeats}
        return [shard for shard in self.shards if shard.shard in repeats]

    @property
    def left_s(self) -> list[float]:
        """Return the forecast device time left, for each open shard."""
        open_shards = (shard for shard in self.shards if not shard.committed)
        return [s.predicted_s * (1 - s.done / max(1, s.cases)) for s in open_shards]

    @property
    def usage(self) -> Usage:
        """Return the usage of the sessions whose parts are stored."""
        return total_usage(shard.usage for shard in self.shards)

    @property
    def pace(self) -> float:
        """Return the time of shards over its forecast: committed ones, and those that are measured
        now as far as they are. 1 while there are none."""
        timed = [shard.timed for shard in self.shards]
        took_s, predicted_s = (fsum(one) for one in zip(*timed, strict=True)) if timed else (0, 0)
        return took_s / predicted_s if predicted_s > 0 and took_s > 0 else 1.0

    def remaining_s(self, devices: int = 0) -> float:
        """Return the wall time left at the pace so far, on `devices` devices or the plan's."""
        return remaining_s(self.left_s, devices or self.plan.devices, self.pace)
