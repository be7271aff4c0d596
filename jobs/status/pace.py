"""How long a campaign still takes: forecasts, the pace so far, and the devices at work. Pure."""

from collections.abc import Sequence
from math import fsum

from jobs.objects.site import Site


def devices_measuring(workers: int, site: Site) -> int:
    """How many devices measure at a time in so many pods: those of one take turns where the site
    lets fewer measure at once than a pod has."""
    return workers * site.at_once


def remaining_s(left_s: Sequence[float], at_once: int, pace: float) -> float:
    """Wall time to come: `left_s` is device time by forecast, a number for each open shard, none
    of which two devices share; `pace` is time taken over time forecast."""
    return pace * max(fsum(left_s) / max(1, at_once), max(left_s, default=0.0))
