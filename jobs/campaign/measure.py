"""How each case of a campaign is measured: the repeats, the cache, the counters."""

from collections.abc import Mapping

from collector.measurement import CACHES
from collector.plan import MeasureSettings
from jobs.campaign.document import Entry

# The groups of counters that msprof knows by name.
AIC_METRICS = (
    "PipeUtilization",
    "ArithmeticUtilization",
    "Memory",
    "MemoryL0",
    "MemoryUB",
    "ResourceConflictRatio",
    "L2Cache",
    "MemoryAccess",
)
# Where a precision ends the repeats, and the campaign does not say how many there may be.
_MOST_FOR_PRECISION = 1000


def read_measure(entry: Entry) -> MeasureSettings:
    """Raises BadInput, with the line, where it is not understood."""
    found = entry.fields(("budget_s", "repeats", "precision", "cache", "aic_metrics"))
    default = MeasureSettings()
    precision = _precision(found)
    most = default.max_repeats if precision is None else _MOST_FOR_PRECISION
    bounds = (default.min_repeats, most, default.repeat_count)
    least, most, fixed = _repeats(found["repeats"], bounds) if "repeats" in found else bounds
    return MeasureSettings(
        budget_s=found["budget_s"].positive() if "budget_s" in found else default.budget_s,
        min_repeats=least,
        max_repeats=most,
        repeat_count=fixed,
        cache=found["cache"].choice(CACHES) if "cache" in found else default.cache,
        aic_metrics=_metrics(found["aic_metrics"])
        if "aic_metrics" in found
        else default.aic_metrics,
        precision=precision,
    )


def _precision(found: Mapping[str, Entry]) -> float | None:
    """Return the requested precision. Raise BadInput where other settings conflict with it."""
    if "precision" not in found:
        return None
    entry = found["precision"]
    if "repeats" in found and not found["repeats"].is_list:
        raise entry.refusal(
            "`precision` chooses the number of repeats, but `repeats` fixes it: remove one of them"
        )
    cache = found["cache"].choice(CACHES) if "cache" in found else "warm"
    if cache != "warm":
        between = "flushes the cache" if cache == "cold" else "runs other launches"
        problem = f"requires consecutive launches (`cache: warm`); `{cache}` {between} in between"
        raise entry.refusal(problem)
    return entry.percentage()


def _repeats(entry: Entry, default: tuple[int, int, int | None]) -> tuple[int, int, int | None]:
    if not entry.is_list:
        return default[0], default[1], entry.integer(1)
    bounds = [item.integer(1) for item in entry.items()]
    if len(bounds) != 2 or bounds[0] > bounds[1]:
        raise entry.refusal(f"expected [fewest, most] or one integer, got {bounds}")
    return bounds[0], bounds[1], None


def _metrics(entry: Entry) -> tuple[str, ...]:
    entry.distinct_texts()
    metrics = tuple(item.choice(AIC_METRICS) for item in entry.items())
    if len(metrics) > 1 and "PipeUtilization" not in metrics:
        raise entry.refusal("several groups must include PipeUtilization, which gives the duration")
    return metrics
