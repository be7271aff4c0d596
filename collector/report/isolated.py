"""The durations that a version of the database shows, with their intervals."""

from collector.database.state import State
from collector.database.version_quality import shown_version
from collector.report.comparison import Isolated


def isolated_times(
    state: State, version_path: str, *, cache: str | None = None
) -> tuple[dict[str, Isolated], dict[str, str]]:
    """The duration of each case that is shown with one, and the outcome of each that is not, by
    case id; with `cache` of what was measured in that state of the caches."""
    shown = shown_version(state, version_path, cache=cache)
    names = ("case", "good", "outcome", "mean_us", "measurement")
    columns = (shown.best[name].to_pylist() for name in names)
    found: dict[str, Isolated] = {}
    why: dict[str, str] = {}
    for case, is_good, outcome, mean_us, measurement in zip(*columns, strict=True):
        if not is_good:
            why[case] = outcome
            continue
        known = shown.intervals.of.get(measurement)
        bounds = (known.low_us, known.high_us) if known else (None, None)
        found[case] = Isolated(shown.mean_us(measurement, mean_us), *bounds)
    return found, why
