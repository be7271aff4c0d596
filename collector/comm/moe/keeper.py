"""One rank of a probe: `python -m collector.comm.moe.keeper FOLDER`, started by torchrun.

It keeps the process in which calls are tried, and starts it again if a try ended it: the processes
of the other ranks go on, and join it again. The keeper of rank 0 searches; the others get the
points to try over torchrun's store, and put their results there.
"""

import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.rendezvous import rendezvous

from collector.codec.errors import BadInput, HostFault
from collector.comm.moe.probe_plan import Point, ProbePlan, Try
from collector.comm.moe.prober_process import ProberProcess, TryAnswer, TryResult
from collector.comm.rank import begin_rank
from collector.comm.rank_files import PLAN, RESULTS, read_rank_plan

# For another rank's answer: longer than any deadline; the watching process ends sooner.
_WAIT_S = 3600.0
_TOGETHER = 3  # attempts at a try for which the ranks did not come together

TryPoint = Callable[[Point, int], TryAnswer]


def main(folder: Path) -> None:
    plan = read_rank_plan(ProbePlan, (folder / PLAN).read_text())
    store, rank, world = next(rendezvous("env://"))
    journal = begin_rank(folder, rank, "starting to probe")
    if store.compare_set("plan", "", plan.to_json()).decode() != plan.to_json():
        raise BadInput("the nodes were started with different options; use the same on every node")
    prober = ProberProcess(plan.prober, folder, plan.patience_s)

    def try_point(point: Point, generation: int) -> TryAnswer:
        journal.write(step=str(plan.call(point)))
        result = prober.run_try(json.dumps([point, generation]), generation)
        journal.write(step=f"result: {result.verdict} {result.reason}", prober=prober.pid)
        return result

    try:
        if rank == 0:
            _Searcher(store, world, try_point).search(plan, folder)
        else:
            _serve_tries(store, rank, try_point)
    finally:
        prober.end()


class _Searcher:
    """The searcher of rank 0: sends each point to all ranks, including itself."""

    def __init__(self, store: Any, world: int, try_point: TryPoint) -> None:
        self._store, self._world, self._try_point = store, world, try_point
        self._number, self._generation = 0, 0

    def search(self, plan: ProbePlan, folder: Path) -> None:
        """Try the points of the region's search until none is open."""
        region = plan.region()
        with (folder / RESULTS).open("a") as results:
            for point in region.tries():
                tried = self._tried(point)
                print(tried.to_json(), file=results, flush=True)
                region.record(point, tried.is_accepted)
        self._send(None)

    def _tried(self, point: Point) -> Try:
        restarted: tuple[int, ...] = ()
        for _ in range(_TOGETHER):
            results = self._results(point)
            restarted += tuple(rank for rank, of in enumerate(results) if of.is_lost)
            if any(of.has_left for of in results):
                self._generation += 1
            if not _first_with(results, TryResult.NOT_TRIED):
                refused = _first_with(results, TryResult.REFUSED)
                return Try(point, not refused, refused, restarted)
        raise HostFault(
            f"the ranks cannot form a group: {_first_with(results, TryResult.NOT_TRIED)}"
        )

    def _results(self, point: Point) -> list[TryAnswer]:
        self._send(point)
        own = self._try_point(point, self._generation)
        others = (_got(self._store, f"{self._number}/{rank}") for rank in range(1, self._world))
        return [own, *map(TryAnswer.from_json, others)]

    def _send(self, point: Point | None) -> None:
        self._number += 1
        self._store.set(f"{self._number}", json.dumps([point, self._generation]))


def _serve_tries(store: Any, rank: int, try_point: TryPoint) -> None:
    """Try the points that rank 0 sends, until there are no more; every other rank runs this."""
    number = 0
    while True:
        number += 1
        point, generation = json.loads(_got(store, f"{number}"))
        if point is None:
            return
        store.set(f"{number}/{rank}", try_point(point, generation).to_json())


def _got(store: Any, key: str) -> str:
    store.wait([key], datetime.timedelta(seconds=_WAIT_S))
    text: bytes = store.get(key)
    return text.decode()


def _first_with(results: list[TryAnswer], verdict: TryResult) -> str:
    """Return the first rank with a verdict and its reason. A lost rank comes first, since the other
    ranks failed because of it."""
    found = [(of, rank) for rank, of in enumerate(results) if of.verdict is verdict]
    found.sort(key=lambda one: not one[0].is_lost)
    return f"rank {found[0][1]}: {found[0][0].reason}" if found else ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
