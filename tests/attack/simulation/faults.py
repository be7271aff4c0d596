"""The faults of one simulation, and their rates. Each seed draws only a few: with all faults at
once most of them hide the others."""

from dataclasses import dataclass, fields
from random import Random


@dataclass
class Faults:
    """Shares are of calls, counts of the whole simulation, times in virtual seconds; 0 is never."""

    unavailable: float = 0.0  # share of store calls that get no reply and have no effect
    refused: float = 0.0  # share that is refused, as while credentials are rotated
    lost_reply: float = 0.0  # share that has its effect, with a lost reply
    late_write: float = 0.0  # share of failing writes that take effect later
    list_lag_s: float = 0.0  # how long a new object may be missing from listings
    slow: float = 0.0  # share of calls that take a hundred times as long
    outages: int = 0  # of the store, for everyone or for one machine
    rot: int = 0  # objects that change in the store
    kills: int = 0  # of any process, at any call
    skewed: bool = False  # clocks that differ, in time and in speed
    full_disk: float = 0.0  # share of sessions without enough disk space
    session_dies: float = 0.0  # share of sessions that end outside of every case
    lost_records: float = 0.0  # share of cases whose records the profiler lost
    bad_cases: float = 0.0  # the share of cases that crash, hang, fail or kill their worker
    bad_nodes: float = 0.0  # the share of nodes on which everything fails
    api_errors: float = 0.0  # share of calls that the API server answers with 429, 500 or 503
    api_lost_reply: float = 0.0
    api_lag_s: float = 0.0  # how old a listing of the API server may be
    api_outages: int = 0
    node_losses: int = 0
    drains: int = 0
    wrong_image: int = 0  # how often the image of the workers differs from that of the plan
    people: int = 0  # edits, reruns, pauses, cancels, merges by a user
    queue: bool = False  # Kueue manages the Jobs: suspends, admits and evicts
    queue_actions: int = 0  # changes of its queues, if there is one
    gangs: int = 0  # cases of ranks in two pods; never drawn, so that existing seeds do not change

    @classmethod
    def drawn(cls, chance: Random) -> "Faults":
        """Draw a few faults, each with its own rate."""
        found = cls()
        most = chance.choice((0, 2, 4, 8, 30))
        names = [*_RANGES]
        for name in chance.sample(names, min(most, len(names))):
            low, high = _RANGES[name]
            value = low * (high / low) ** chance.random() if high > low else high
            setattr(found, name, type(getattr(found, name))(round(value, 5)))
        return found

    def set(self, name: str, value: str) -> None:
        """Return the faults with one set to a given value."""
        kind = type(getattr(self, name))
        setattr(self, name, kind(float(value)))

    def cease(self) -> None:
        """Stop all faults; existing damage remains."""
        for field in fields(self):
            if field.name not in ("bad_cases", "skewed", "queue", "gangs"):
                setattr(self, field.name, type(getattr(self, field.name))(0))


_RANGES: dict[str, tuple[float, float]] = {
    "unavailable": (0.002, 0.3),
    "refused": (0.002, 0.05),
    "lost_reply": (0.005, 0.3),
    "late_write": (0.002, 0.05),
    "list_lag_s": (0.5, 10.0),
    "slow": (0.002, 0.05),
    "outages": (1, 4),
    "rot": (1, 5),
    "kills": (1, 60),
    "skewed": (1, 1),
    "full_disk": (0.01, 0.2),
    "session_dies": (0.01, 0.3),
    "lost_records": (0.01, 0.3),
    "bad_cases": (0.05, 0.6),
    "bad_nodes": (0.3, 0.9),
    "api_errors": (0.005, 0.2),
    "api_lost_reply": (0.005, 0.1),
    "api_lag_s": (1.0, 10.0),
    "api_outages": (1, 3),
    "node_losses": (1, 3),
    "drains": (1, 3),
    "wrong_image": (1, 2),
    "people": (1, 8),
    "queue": (1, 1),
    "queue_actions": (1, 8),
}
