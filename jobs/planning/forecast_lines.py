"""What a plan's forecast says to a person, before anything starts."""

from collector.counting import counted
from collector.plan import AGAIN_SHARE, MORE_REPEATS_SHARE, Forecast, Plan


def describe_forecast(plan: Plan) -> list[str]:
    """What to print before anything starts, a line a fact."""
    forecast, devices = plan.forecast, counted(plan.devices, "device")
    hours = forecast.device_s / 3600
    return [
        f"cases      {forecast.cases:,} in {counted(len(plan.shards), 'shard')}; "
        f"{forecast.unsupported:,} cannot be measured, {forecast.answered:,} are already measured"
        + (f"; {forecast.narrowed:,} of them are measured again" if forecast.narrowed else "")
        + (
            f"; {forecast.doubtful:,} of suspect sessions are measured again"
            if forecast.doubtful
            else ""
        )
        + (f"; {forecast.repeats:,} are measured twice" if forecast.repeats else ""),
        f"device     {forecast.device_s:,.0f} device-seconds ({hours:,.2f} device-hours)",
        *_density_lines(forecast),
        f"wall time  {_duration(forecast.wall_s)} on {devices}; "
        f"the lower bound is {_duration(forecast.floor_s)}",
        *([_again_line(plan)] if forecast.doubtful else []),
        _busy_line(plan.backend),
        # What a source could not give as cases stands behind its name.
        *(f"source     {source.name}" for source in plan.sources if "(" in source.name),
    ]


def _density_lines(forecast: Forecast) -> list[str]:
    """What is left to the models of surfaces."""
    if not forecast.left_out:
        return []
    more = "; another round follows" if forecast.learning else ""
    return [
        f"density    {forecast.left_out:,} cases are omitted, {forecast.unsure:,} of them not "
        f"known within the tolerance{more}"
    ]


def _again_line(plan: Plan) -> str:
    """Where cases of suspect sessions are measured again."""
    if plan.devices > 1:
        return "again      on another device or node if one is available"
    return "again      on the same device, or on another node if one is available"


def _busy_line(backend: str) -> str:
    """What it may add that something else has the device: of a cpu's repeats more follow, too."""
    if backend != "cpu":
        return f"disturbed  up to {AGAIN_SHARE * 100:.0f} % more for cases that are measured again"
    most = (1 + MORE_REPEATS_SHARE) * (1 + AGAIN_SHARE) - 1
    return f"disturbed  up to {most * 100:.0f} % more for repeats that waited for a CPU core"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    if seconds < 5400:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
