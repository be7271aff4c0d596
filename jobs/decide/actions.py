"""The actions that a controller performs on a campaign in a cluster. Each is idempotent."""

from dataclasses import dataclass

from collector.model.measurement import Outcome
from jobs.objects.waves import NodeFailures, Wave


@dataclass(frozen=True, slots=True)
class LaunchWave:
    """Write the wave, then create its Job."""

    wave: Wave
    cap: int  # the maximum number of its pods that run at once


@dataclass(frozen=True, slots=True)
class Scale:
    job: str
    parallelism: int  # the maximum number of its pods that run at once


@dataclass(frozen=True, slots=True)
class Suspend:
    job: str
    on: bool  # False resumes it
    why: str
    # for a fixed time, whatever the next reconciliation observes: its pods are gone then
    hold: bool = False
    # the maximum number of pods that a resumed Job may start; None: unchanged
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    job: str
    why: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Commit a shard that no worker can finish; its missing cases get the outcome."""

    shard: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class RecordFailures:
    node_failures: NodeFailures


@dataclass(frozen=True, slots=True)
class Announce:
    """Inform users once, with an Event on the campaign."""

    reason: str  # of the Event
    message: str
    # an Event with the same reason and subject is not repeated, even with another message
    about: str = ""


@dataclass(frozen=True, slots=True)
class Merge:
    """Create the Job that merges the commits of these plans."""

    key: str  # what it merges, see `merge_key`
    plans: tuple[int, ...]
    partial: bool = False  # shards are missing


@dataclass(frozen=True, slots=True)
class Replan:
    """Determine the campaign's plan again.

    With shards: their commits are damaged, and their cases are measured again. Without shards: the
    next round of surfaces is due, or a round may be due for cases that suspect sessions measured.
    """

    shards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """End the campaign: everything is committed and merged, and no worker Job is left.

    `partial`: all commits are merged, shards may be missing, and nothing runs until a user
    intervenes."""

    partial: bool = False


Action = (
    LaunchWave
    | Scale
    | Suspend
    | Delete
    | GiveUp
    | RecordFailures
    | Announce
    | Merge
    | Replan
    | Finish
)
