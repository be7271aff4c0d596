"""What is wanted of a campaign's plan on a cluster."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from collector.plan import Plan


@dataclass(frozen=True, slots=True)
class Desired:
    """What is wanted of a plan."""

    plan: Plan
    workers: int  # how many pods may run at once
    per_index: int  # how many shards one pod gets
    paused: bool = False
    allow_missing: bool = False  # what is committed may be merged without the rest
    queue: str = ""  # the queue of Kueue that the site names
    kueue: bool = False  # somebody starts each Job when it is its turn, whether named here or not
    at_once: int = 1  # how many shards of an index are measured at a time
    made_of: str = ""  # the hash of what workers' pods are made of now: image, store and site
    launched: str = ""  # a token of whoever launched the campaign last
    wide: Mapping[str, int] = field(default_factory=dict)  # gang -> how many pods it takes at once
    is_last: bool = False  # it is known that no plan follows behind it

    @property
    def plan_hash(self) -> str:
        return self.plan.plan_hash
