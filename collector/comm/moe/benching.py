"""The start of the ranks of a bench or a probe of experts, for commands and workers."""

from pathlib import Path

from collector.comm.gang import PATIENCE_S, GangWork, Rendezvous, Tick, run_gang
from collector.comm.moe.moe_plan import MoePlan, buffsize_settings
from collector.comm.moe.probe_plan import ProbePlan
from collector.comm.moe.prober_process import STARTING_S

_MOE_RANK, _KEEPER = "collector.comm.moe.moe_rank", "collector.comm.moe.keeper"
_PARTS = 6  # of a try that have a deadline, plus time to end a process


def moe_work(plan: MoePlan, patience_s: float, tick: Tick) -> GangWork:
    """Return the work of the ranks of a bench."""
    environment = buffsize_settings(plan.backend, plan.largest_buffsize_mb())
    return GangWork(plan, _MOE_RANK, patience_s, tick, environment)


def bench(
    plan: MoePlan,
    meeting: Rendezvous,
    folder: Path,
    *,
    patience_s: float = PATIENCE_S,
    tick: Tick = lambda measured: None,
) -> None:
    """Measure with the ranks of this node, in an empty folder; `tick` gets the number of measured
    cases of all rounds. Raises GangFailed and BadInput as a bench of collectives does; the results
    so far are in the folder."""
    run_gang(moe_work(plan, patience_s, tick), meeting, folder)


def probe(plan: ProbePlan, meeting: Rendezvous, folder: Path, tick: Tick) -> None:
    """Probe with the ranks of this node, in an empty folder; `tick` gets the number of tried
    points. Raises GangFailed and BadInput as a bench does; the tries so far are in the folder."""
    patience_s = STARTING_S + _PARTS * plan.patience_s
    environment = buffsize_settings(plan.backend, plan.largest_buffsize_mb())
    run_gang(GangWork(plan, _KEEPER, patience_s, tick, environment), meeting, folder)
