"""Workers as started by their parents: the real worker's `run`, in a simulated process."""

import subprocess
from collections.abc import Callable, Sequence
from typing import IO

from collector.comm.meeting import MeetingAddress
from collector.model import keys
from collector.worker import __main__ as worker
from collector.worker.assignment import LOG
from jobs.executor.local_run import WorkerProcess
from tests.attack.simulation.device import Node
from tests.attack.simulation.gangs import GangMachine, Lead, Meetings, start_simulated
from tests.attack.simulation.process import Process
from tests.attack.simulation.storage import Depot

_KILLED = -9
_LOOK_S = 5.0  # interval at which a parent checks its worker, 0.5 s in reality


def starter(
    parent: Process, depot: Depot, node: Node, meetings: Meetings | None = None
) -> Callable[[Sequence[str], IO[bytes]], WorkerProcess]:
    """Start a worker on a node, for a parent there; gangs meet in `meetings`."""
    met = {} if meetings is None else meetings
    return lambda command, err: SimulatedWorker(parent, depot, node, command[4:], met)


class SimulatedWorker:
    """A child process; its exit code is the real worker's."""

    stdin: IO[bytes] | None = None

    def __init__(
        self,
        parent: Process,
        depot: Depot,
        node: Node,
        arguments: Sequence[str],
        meetings: Meetings,
    ):
        self._depot, self._node, self._parent = depot, node, parent
        self._meetings = meetings
        self._options = worker._parser().parse_args(list(arguments))
        self._code: int | None = None
        name = f"{parent.name}/{self._options.attempt}"
        self.process = parent.child(name)
        self.process.begin(self._work)

    def _work(self) -> None:
        options, process = self._options, self.process
        (options.scratch / LOG).write_text("it works\n")
        store = self._depot.reach(process, self._node.name)
        machine = GangMachine(self._node, process)
        if options.pods > 1:
            key = keys.meeting(options.campaign, options.wave)

            def publish(place: MeetingAddress) -> None:
                store.put(key, place.to_json())

            machine.lead = Lead(process, options.pods, self._meetings, publish)
        self._code = worker.run(
            store,
            worker.assignment_of(options),
            options.scratch,
            options.patience_s,
            process.stop,
            options.progress_s,
            machine,
            start_simulated,
            waits_for_refusals=options.wait_for_refusals,
        )
        process.world.say(f"{process.name}: exit {int(self._code)} on {self._node.name}")

    def poll(self) -> int | None:
        if not self.process.over.is_set():
            return None
        return _KILLED if self._code is None else int(self._code)

    def wait(self, timeout: float | None = None) -> int:
        if timeout is not None:
            timeout = max(timeout, _LOOK_S)
        self._parent.world.wait(self.process.over, timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return code

    def terminate(self) -> None:
        self.process.stop.set()

    def kill(self) -> None:
        self.process.kill()
