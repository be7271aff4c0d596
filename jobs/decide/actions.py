"""What a controller can do to a campaign on a cluster. Each may be done again without harm."""

from dataclasses import dataclass

from collector.model.measurement import Outcome
from jobs.objects.waves import Strikes, Wave


@dataclass(frozen=True, slots=True)
class Launch:
    """Write the wave, then create its Job."""

    wave: Wave
    cap: int  # how many of its pods may run at once


@dataclass(frozen=True, slots=True)
class Scale:
    """Widen or narrow a Job."""

    job: str
    parallelism: int  # how many of its pods may run at once


@dataclass(frozen=True, slots=True)
class Suspend:
    """Suspend a Job, or let it go."""

    job: str
    on: bool  # False lets it go
    why: str
    hold: bool = False  # for a while, whatever the next look sees: its pods are gone then
    most: int | None = None  # how many pods one that is let go may start; None: as many as it had


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a Job, and its pods with it."""

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
    """Tell people, once: an Event on the campaign."""

    reason: str  # of the Event
    message: str
    about: str = ""  # the same reason for the same thing is no news, though its words differ


@dataclass(frozen=True, slots=True)
class Merge:
    """Create the Job that merges what these plans have committed."""

    key: str  # what it merges, see `merge_key`
    plans: tuple[int, ...]
    partial: bool = False  # shards are left


@dataclass(frozen=True, slots=True)
class Replan:
    """Ask again which plan is the campaign's: what these shards have committed is damaged, and
    their cases are measured anew; or none is, and the next round of surfaces is due, or one for
    what doubtful sessions measured may be."""

    shards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finish:
    """Everything is committed and merged, and no worker's Job is left; or `partial`: all that is
    committed is merged, shards may be missing, and nothing runs until somebody acts."""

    partial: bool = False


Action = Launch | Scale | Suspend | Delete | GiveUp | Remember | Announce | Merge | Replan | Finish
