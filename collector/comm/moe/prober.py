"""The process of a rank in which calls are tried: `python -m collector.comm.moe.prober FOLDER`,
started by its keeper.

It reads one point per line and reports its position: `joined` with the other ranks, `ready` with
its tensors, and an answer. A call that does not fit or that raises is a refusal; the process goes
on.
"""

import datetime
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from collector.codec.errors import OpmeterError
from collector.codec.text import in_a_line
from collector.comm.moe.moe_plan import MoeCase
from collector.comm.moe.probe_plan import ProbePlan
from collector.comm.moe.prober_process import STARTING_S, TryAnswer, TryResult
from collector.comm.moe.trials import Prepare, open_runner
from collector.comm.rank_device import RankDevice, open_rank_device
from collector.comm.rank_files import PLAN, read_rank_plan
from collector.host.processes import die_with_parent
from collector.model.stack import COLLECTIVE_LIBRARIES
from collector.ranks.experts import ExpertCall

_MOST_OF_MEMORY = 0.5
_MADE = 2  # factor on a call's bytes while weights are created


def main(folder: Path, prepare: Prepare | None = None) -> None:
    """Run the prober. `prepare` creates a call's tensors in this rank and returns a function that
    runs the call."""
    die_with_parent(os.getppid())
    reported = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not look like an answer
    prober = _Prober(read_rank_plan(ProbePlan, (folder / PLAN).read_text()), prepare)
    for line in sys.stdin:
        for word in prober.lines_of_try(line):
            print(word, file=reported, flush=True)


class _Prober:
    def __init__(self, plan: ProbePlan, prepare: Prepare | None) -> None:
        self._plan, self._prepare = plan, prepare
        self._device: RankDevice | None = None
        self._ranks = _Ranks(plan)

    def lines_of_try(self, question: str) -> Iterator[str]:
        """Yield the lines for one try."""
        (tokens, experts, choices), generation = json.loads(question)
        try:
            device, prepare = self._opened()
            self._ranks.join(generation)
        except (OpmeterError, RuntimeError, OSError) as error:
            self._ranks.leave()
            yield TryAnswer(TryResult.NOT_TRIED, _line(error), has_left=True).to_json()
            return
        yield "joined"
        run, reason = self._made(self._plan.call((tokens, experts, choices)), device, prepare)
        yield "ready"
        yield self._tried(device, run, reason).to_json()

    def _opened(self) -> tuple[RankDevice, Prepare]:
        """Return the device, and the function that prepares calls: of the fused kernel if there is
        one."""
        if self._device is None:
            self._device = open_rank_device(self._plan.backend, int(os.environ["LOCAL_RANK"]))
        if self._prepare is None:
            self._prepare = open_runner(self._plan.backend, self._plan.operator)
        return self._device, self._prepare

    def _made(
        self, call: ExpertCall, device: RankDevice, prepare: Prepare
    ) -> tuple[Callable[[], object] | None, str]:
        free_bytes = int(device.free_bytes() * _MOST_OF_MEMORY / _MADE)
        limit_bytes = self._plan.memory_bytes or free_bytes
        if call.working_bytes > limit_bytes:
            needed, most = call.working_bytes / 2**20, limit_bytes / 2**20
            return None, f"the call requires {needed:.3g} MiB, a rank has {most:.3g} MiB"
        try:
            case = MoeCase(call, self._plan.seed)
            return prepare(case, self._ranks.rank, device.name), ""
        except (RuntimeError, MemoryError) as error:
            return None, _line(error)

    def _tried(
        self, device: RankDevice, run: Callable[[], object] | None, reason: str
    ) -> TryAnswer:
        """Run the call only if all ranks can: a rank that cannot join would block the others."""
        try:
            if not self._ranks.all_can(run is not None):
                return TryAnswer(TryResult.REFUSED if reason else TryResult.ACCEPTED, reason)
            assert run is not None
            device.timed(run)
        except (RuntimeError, MemoryError) as error:
            self._ranks.leave()  # otherwise the others would wait for this rank
            return TryAnswer(TryResult.REFUSED, _line(error), has_left=True)
        return TryAnswer(TryResult.ACCEPTED)


class _Ranks:
    """The joined ranks, by generation: a group cannot replace a lost rank, so all ranks create the
    next group together."""

    def __init__(self, plan: ProbePlan) -> None:
        self._plan = plan
        self.rank, self._world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._joined = -1
        self._control: dist.ProcessGroup | None = None

    def join(self, generation: int) -> None:
        """Create the group of a generation, unless this rank is already in it."""
        if generation == self._joined:
            return
        self.leave()
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        patience = datetime.timedelta(seconds=STARTING_S)
        agreed = dist.TCPStore(address, port, is_master=False, timeout=patience)
        dist.init_process_group(
            COLLECTIVE_LIBRARIES[self._plan.backend],
            store=dist.PrefixStore(f"generation {generation}", agreed),
            rank=self.rank,
            world_size=self._world,
            timeout=patience,
        )
        self._control = dist.new_group(backend="gloo", timeout=patience)
        dist.barrier(group=self._control)
        self._joined = generation

    def leave(self) -> None:
        """Close the connections to the other ranks."""
        self._control, self._joined = None, -1
        if dist.is_initialized():
            dist.destroy_process_group()

    def all_can(self, can: bool) -> bool:
        """Return whether all ranks can."""
        number = torch.tensor([float(can)])
        dist.all_reduce(number, dist.ReduceOp.MIN, group=self._control)
        return bool(number[0])


def _line(error: BaseException) -> str:
    return in_a_line(str(error) or type(error).__name__)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
