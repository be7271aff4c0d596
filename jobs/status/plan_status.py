"""How far a plan is, shard by shard: what is committed and answered, and what is left. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum

from collector.database.plans import Damage
from collector.model.manifest import NO_USAGE, Usage
from collector.model.measurement import Outcome
from collector.model.plan import Plan
from jobs.objects.site import Site

# How long a campaign still takes: forecasts, the pace so far, and the devices at work. Pure.


def devices_measuring(workers: int, site: Site) -> int:
    """How many devices measure at a time in so many pods: those of one take turns where the site
    lets fewer measure at once than a pod has."""
    return workers * site.at_once


def remaining_s(left_s: Sequence[float], at_once: int, pace: float) -> float:
    """Wall time to come: `left_s` is device time by forecast, a number for each open shard, none
    of which two devices share; `pace` is time taken over time forecast."""
    return pace * max(fsum(left_s) / max(1, at_once), max(left_s, default=0.0))


@dataclass(frozen=True, slots=True)
class AnswerKind:
    """How cases of one kernel type were answered; `reason` is why."""

    kernel_type: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """`done` of `cases` are answered; `measuring` is the case in hand, where a worker said so.
    `planned` counts cases by kernel type, `answers` those that parts hold already. `damage` is what
    cannot be read of a committed one."""

    shard: str
    committed: bool
    done: int
    cases: int
    measuring: str
    predicted_s: float = 0.0
    usage: Usage = NO_USAGE
    planned: Counter[str] = field(default_factory=Counter)
    answers: Counter[AnswerKind] = field(default_factory=Counter)
    damage: Damage | None = None


@dataclass(frozen=True, slots=True)
class PlanStatus:
    plan: Plan
    shards: tuple[ShardStatus, ...]

    @property
    def committed(self) -> int:
        return sum(shard.committed for shard in self.shards)

    @property
    def of_cases(self) -> list[ShardStatus]:
        """The shards of cases that are measured for the first time."""
        repeats = {shard.shard_id for shard in self.plan.repeats}
        return [shard for shard in self.shards if shard.shard not in repeats]

    @property
    def of_repeats(self) -> list[ShardStatus]:
        """The shards of the same cases once more."""
        repeats = {shard.shard_id for shard in self.plan.repeats}
        return [shard for shard in self.shards if shard.shard in repeats]

    @property
    def left_s(self) -> list[float]:
        """Device time still to come, a number for each open shard, by forecast."""
        open_shards = (shard for shard in self.shards if not shard.committed)
        return [s.predicted_s * (1 - s.done / max(1, s.cases)) for s in open_shards]

    @property
    def usage(self) -> Usage:
        """What sessions took whose parts are stored."""
        total = NO_USAGE
        for shard in self.shards:
            total = total.plus(shard.usage)
        return total

    @property
    def pace(self) -> float:
        """What committed shards took over what was forecast of them; 1 while there are none."""
        done = [shard for shard in self.shards if shard.committed]
        predicted_s = sum(shard.predicted_s for shard in done)
        took_s = sum(shard.usage.wall_s for shard in done)
        return took_s / predicted_s if predicted_s > 0 and took_s > 0 else 1.0

    def remaining_s(self, devices: int = 0) -> float:
        """Wall time still to come at the pace so far, on so many devices  [the plan's]."""
        return remaining_s(self.left_s, devices or self.plan.devices, self.pace)
