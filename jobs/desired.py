"""What is wanted of a campaign's plan on a cluster."""

from dataclasses import dataclass

from collector.plan import Plan


@dataclass(frozen=True, slots=True)
class Desired:
    """What is wanted of a plan. `workers` is how many pods may run at once; with `kueue` both
    parallelism and suspend belong to Kueue. `made_of` is what workers' pods are made of now,
    `launched` a token of whoever launched the campaign last."""

    plan: Plan
    plan_hash: str  # of the plan, which takes a while to compute
    workers: int
    per_index: int  # shards that one pod gets
    paused: bool = False
    allow_missing: bool = False
    kueue: bool = False
    made_of: str = ""
    launched: str = ""
