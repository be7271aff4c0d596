"""What a controller can do to a campaign on a cluster. Each may be done again without harm."""

from dataclasses import dataclass

from collector.measurement import Outcome
from jobs.nodes import Strikes
from jobs.waves import Wave


@dataclass(frozen=True, slots=True)
class Launch:
    """Write the wave, then create its Job, so many pods at once."""

    wave: Wave
    cap: int


@dataclass(frozen=True, slots=True)
class Scale:
    job: str
    parallelism: int


@dataclass(frozen=True, slots=True)
class Suspend:
    """`hold`: for a while, whatever is seen next: pods that could not start are gone then."""

    job: str
    on: bool
    why: str
    hold: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    job: str
    why: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Commit a shard that nobody can finish; its missing cases get the outcome."""

    shard: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class Remember:
    """Write the strikes against nodes."""

    strikes: Strikes


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell people, once: an Event of this reason on the campaign. `about` is what it is about: the
    same reason for the same thing is no news, though its words may differ."""

    reason: str
    message: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class Merge:
    """Create the Job that merges what is committed, `partial` where shards are left. `key` says
    what it merges."""

    key: str
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """Everything is committed and merged, and no worker's Job is left; or `partial`: all that is
    committed is merged, shards may be missing, and nothing runs until somebody acts."""

    partial: bool = False


Action = Launch | Scale | Suspend | Delete | GiveUp | Remember | Announce | Merge | Finish
