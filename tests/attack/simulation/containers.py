"""The processes of the pods of a simulated cluster: the real worker pod, merges, and probes."""

import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from collector.codec.canonical import canonical_json
from collector.codec.errors import BadInput, OpmeterError
from collector.database.merge import CREATE, merge_plans
from collector.model.plan import Plan
from collector.store.base import Store
from collector.store.waiting import PatientStore
from collector.worker.assignment import check_stack
from jobs.executor.worker_pod import (
    PodTask,
    delayed_end,
    follow_gang,
    task_of,
    termination_message,
    work,
)
from jobs.objects.waves import Wave
from tests.attack.simulation.api import ApiServer, Object
from tests.attack.simulation.device import STACK, Node, SimulatedMachine
from tests.attack.simulation.gangs import follower
from tests.attack.simulation.jobcontroller import INDEX
from tests.attack.simulation.process import Process
from tests.attack.simulation.stage import Stage
from tests.attack.simulation.workers import starter

_PATIENCE_S = 600.0
_GRAIN_S = 5.0  # interval at which the first process of a pod checks its workers
_COMPONENT = "app.kubernetes.io/component"
_KILLED = (137, "")

Result = Callable[[], tuple[int, str]]


class Containers:
    """Start the process of a pod's Job."""

    def __init__(self, stage: Stage, server: ApiServer):
        self._stage, self._server = stage, server

    def start(self, pod: Object, node: Node) -> tuple[Process, Result]:
        """A process on a node, and how it ends."""
        component = pod["metadata"]["labels"][_COMPONENT]
        name = pod["metadata"]["name"]
        skewed = self._stage.faults.skewed
        process = Process(self._stage.world, name, grain_s=_GRAIN_S, skewed=skewed)
        self._stage.processes.append(process)
        call = {"worker": self._work, "merge": self._merge, "probe": self._probe}[component]
        ends: list[tuple[int, str]] = []
        process.begin(lambda: ends.append(call(process, pod, node)))
        return process, lambda: ends[0] if ends else _KILLED

    def _work(self, process: Process, pod: Object, node: Node) -> tuple[int, str]:
        """`opmeter work`: only the start of its workers is simulated."""
        start = starter(process, self._stage.depot, node, self._stage.meetings)
        with tempfile.TemporaryDirectory(dir=self._stage.folder) as scratch:
            task = task_of(_environment(pod, node) | {"TMPDIR": scratch})
            end = work(
                task,
                process.stop,
                lambda run, shards: replace(run, start=start).measure(shards),
                lambda url: self._stage.depot.reach(process, node.name),
                lambda *lent: self._lend(process, node, *lent),
            )
            end = delayed_end(end, task, process.stop)
        process.world.say(f"{process.name}: pod ends with {int(end.code)} {end.reason}")
        return int(end.code), termination_message(end)

    def _lend(
        self,
        process: Process,
        node: Node,
        store: Store,
        task: PodTask,
        wave: Wave,
        plan: Plan,
        stop: threading.Event,
        left: Callable[[], Sequence[str]],
    ) -> None:
        """Ranks for another pod: only the meeting is simulated."""
        check_stack(plan.stack, SimulatedMachine(node, process).stack(plan))
        follow = follower(process, node, self._stage.meetings)
        follow_gang(store, wave, task.index, task.scratch, stop, left, follow)

    def _merge(self, process: Process, pod: Object, node: Node) -> tuple[int, str]:
        command = pod["spec"]["containers"][0]["command"]
        campaign, partial = command[3], "--allow-missing" in command
        store = PatientStore(self._stage.depot.reach(process, node.name), _PATIENCE_S)
        try:
            plans = [(campaign, number) for number in _plans(command)]
            found = merge_plans(store, plans, guard=CREATE, author="merge", allow_missing=partial)
        except BadInput as error:
            process.world.broken(f"{process.name}: {error}")
        except (OpmeterError, OSError) as error:
            return 1, str(error)
        return (3, "shards are missing") if found.missing and not partial else (0, "")

    def _probe(self, process: Process, pod: Object, node: Node) -> tuple[int, str]:
        process.world.pause(2.0)
        text = canonical_json(STACK.as_json()).decode()
        self._server.logs[pod["metadata"]["name"]] = f"store ok\n{text}\n"
        return 0, ""


def _environment(pod: Object, node: Node) -> dict[str, str]:
    metadata = pod["metadata"]
    fields = {
        "metadata.name": metadata["name"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": node.name,
        "status.hostIP": "10.0.0.1",
        "status.podIP": "10.1.0.1",
    }
    message = {
        one["name"]: one["value"] if "value" in one else fields[_field(one)]
        for one in pod["spec"]["containers"][0]["env"]
    }
    return message | {"JOB_COMPLETION_INDEX": metadata["labels"][INDEX]}


def _plans(command: list[str]) -> list[int]:
    pairs = zip(command, command[1:], strict=False)
    return [int(number) for flag, number in pairs if flag == "--plan"]


def _field(variable: Object) -> str:
    return str(variable["valueFrom"]["fieldRef"]["fieldPath"])
