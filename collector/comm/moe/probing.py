"""A probe from its plan to what became of each try: what a verb calls."""

from collections.abc import Iterable
from pathlib import Path

from collector.comm.gang import GangWork, Rendezvous, Tick, run_gang
from collector.comm.moe.buffsize import buffsize_settings
from collector.comm.moe.probe_plan import ProbePlan, Try
from collector.comm.moe.prober_process import STARTING_S
from collector.comm.moe.region import Region

_KEEPER = "collector.comm.moe.keeper"
_PARTS = 6  # of a try that have a deadline, and some time to end a process


def probe(plan: ProbePlan, meeting: Rendezvous, folder: Path, tick: Tick) -> None:
    """Have the ranks of this node probe, in an empty folder; `tick` is told how many points were
    tried. Raises GangFailed and BadInput as a bench does; what was tried until then is in the
    folder."""
    patience_s = STARTING_S + _PARTS * plan.patience_s
    environment = buffsize_settings(plan.backend, plan.largest_buffsize_mb())
    run_gang(GangWork(plan, _KEEPER, patience_s, tick, environment), meeting, folder)


def told(plan: ProbePlan, tries: Iterable[Try]) -> Region:
    """What the tries tell of the region."""
    region = plan.region()
    for one in tries:
        region.tell(one.point, one.is_accepted)
    return region
