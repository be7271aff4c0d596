"""A row of `hcom_allReduce_.csv` and its like: the columns, and the cells of what was measured.

The first six columns are the consumer's, in its order; it reads by name and ignores the others.
`Duration(us)` is what was measured, the median over calls: nothing is added to it.
"""

from dataclasses import dataclass

from collector.collective import DTYPES, Collective

KEY = ("message_bytes", "num_devices", "dtype", "topology_tier")
DURATION = "Duration(us)"
_ALONE = (
    *(DURATION, "bandwidth_gbps", "bus_bandwidth_gbps", "mode", "backend", "rounds", "iterations"),
    *("round_spread", "min_us", "p90_us", "max_us", "rank_min_us", "rank_max_us", "skew_us"),
    *("environment", "jump"),
)
_TOGETHER = ("concurrent_groups", "concurrent_us", "concurrent_slowest_us")
COLUMNS = (*KEY, *_ALONE, *_TOGETHER)
# What a database says besides, of all sessions that measured the row: of one group, and of all.
OF_SESSIONS = ("stack_low_us", "stack_high_us", "stack_variance", "sessions")
OF_SESSIONS_TOGETHER = ("concurrent_low_us", "concurrent_high_us")

Cells = dict[str, str]


@dataclass(frozen=True, slots=True)
class CollectiveFacts:
    """What a bench found of a case: durations in microseconds over all its calls, the smallest and
    the largest of the ranks' own medians, how far apart they arrived. `jump` tells of one between
    this size and the next. `groups` worked at once, the slowest of them took `slowest_us`."""

    duration_us: float
    mode: str
    backend: str
    rounds: int
    iterations: int
    round_spread: float
    min_us: float
    p90_us: float
    max_us: float
    rank_min_us: float
    rank_max_us: float
    skew_us: float
    environment: str
    jump: str = ""
    groups: int = 1
    slowest_us: float = 0.0


def key_cells(collective: Collective) -> Cells:
    """What tells a row from others, as it stands in a file."""
    dtype, _ = DTYPES[collective.dtype]
    values = (collective.message_bytes, collective.group_size, dtype, collective.tier)
    return dict(zip(KEY, map(str, values), strict=True))


def fact_cells(collective: Collective, facts: CollectiveFacts) -> Cells:
    """The cells that were measured: of one group alone, or of all groups at once."""
    if collective.together:
        return {
            "concurrent_groups": str(facts.groups),
            "concurrent_us": f"{facts.duration_us:.2f}",
            "concurrent_slowest_us": f"{facts.slowest_us:.2f}",
        }
    return {
        DURATION: f"{facts.duration_us:.2f}",
        "bandwidth_gbps": f"{collective.message_bytes / facts.duration_us / 1e3:.2f}",
        "bus_bandwidth_gbps": f"{collective.bus_bytes / facts.duration_us / 1e3:.2f}",
        "mode": facts.mode,
        "backend": facts.backend,
        "rounds": str(facts.rounds),
        "iterations": str(facts.iterations),
        "round_spread": f"{facts.round_spread:.4f}",
        "min_us": f"{facts.min_us:.2f}",
        "p90_us": f"{facts.p90_us:.2f}",
        "max_us": f"{facts.max_us:.2f}",
        "rank_min_us": f"{facts.rank_min_us:.2f}",
        "rank_max_us": f"{facts.rank_max_us:.2f}",
        "skew_us": f"{facts.skew_us:.2f}",
        "environment": facts.environment,
        "jump": facts.jump,
    }
