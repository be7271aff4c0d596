"""What goes wrong in one play, and how often. Each seed draws its own few: where everything goes
wrong at once, most of it hides the rest."""

from dataclasses import dataclass, fields
from random import Random


@dataclass
class Faults:
    """Shares are of calls, counts of the whole play, times in virtual seconds; 0 is never."""

    unavailable: float = 0.0  # a call of the store that is not answered, without effect
    refused: float = 0.0  # one that is refused, as while credentials are exchanged
    lost_reply: float = 0.0  # a call that had its effect, and whose answer is lost
    late_write: float = 0.0  # a write that fails, and takes effect a while later
    list_lag_s: float = 0.0  # how long a new object may be missing from listings
    slow: float = 0.0  # a call that takes a hundred times as long
    outages: int = 0  # of the store, for everyone or for one machine
    rot: int = 0  # objects that change at rest
    kills: int = 0  # of any process, at any call
    skewed: bool = False  # clocks that differ, in time and in speed
    full_disk: float = 0.0  # a session that finds no room
    session_dies: float = 0.0  # a session that ends outside of every case
    lost_records: float = 0.0  # a case whose records the profiler lost
    bad_cases: float = 0.0  # the share of cases that crash, hang, fail or kill their worker
    bad_nodes: float = 0.0  # the share of nodes that fail whatever they are given
    api_errors: float = 0.0  # a call of the API server that is answered 429, 500 or 503
    api_lost_reply: float = 0.0
    api_lag_s: float = 0.0  # how old a listing of the API server may be
    api_outages: int = 0
    node_losses: int = 0
    drains: int = 0
    wrong_image: int = 0  # times that the workers' image is another than the plan's
    people: int = 0  # edits, wishes, pauses, cancels, merges by hand
    queue: bool = False  # Kueue has the Jobs: suspends, admits and evicts
    queue_acts: int = 0  # what happens to its queues, where there is one
    gangs: int = 0  # cases of ranks in two pods; never drawn, so that seeds stay what they are

    @classmethod
    def drawn(cls, chance: Random) -> "Faults":
        """A few faults, each at a rate of its own."""
        found = cls()
        most = chance.choice((0, 2, 4, 8, 30))
        names = [*_RANGES]
        for name in chance.sample(names, min(most, len(names))):
            low, high = _RANGES[name]
            value = low * (high / low) ** chance.random() if high > low else high
            setattr(found, name, type(getattr(found, name))(round(value, 5)))
        return found

    def set(self, name: str, value: str) -> None:
        """Have one fault as somebody says it."""
        kind = type(getattr(self, name))
        setattr(self, name, kind(float(value)))

    def cease(self) -> None:
        """From now on nothing goes wrong any more; what is broken already stays so."""
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
    "queue_acts": (1, 8),
}
