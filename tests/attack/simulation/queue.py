"""A Kueue that manages the Jobs of a simulated cluster: it suspends, admits, evicts and gives up,
using the class of the controller tests."""

from collections.abc import Callable
from typing import Any

from jobs.objects.kueue import GROUP
from tests.attack.simulation.api import ApiServer, Object
from tests.attack.simulation.stage import Stage
from tests.unit.jobs.simulated_kueue import SimulatedKueue

QUEUE = "team"
_EVERY_S = 5.0
_VERSION = f"{GROUP}/v1beta2"


class Queue:
    """Reconcile every Job every few seconds, on copies, and apply the changes."""

    def __init__(self, stage: Stage, server: ApiServer):
        self._stage, self._server = stage, server
        self.live: dict[str, Object] = {}
        self._kueue = SimulatedKueue(self, quota=stage.chance.randrange(2, 6), queues=(QUEUE,))
        if stage.chance.random() < 0.3:
            self._kueue.ready_steps, self._kueue.tries = 8, stage.chance.choice((None, 3))
        server.admission, server.others = self._kueue.webhook, self._answer
        self._reconcile()

    @property
    def running(self) -> list[Object]:
        return list(self._server.kinds["pods"].values())

    def suspend(self, name: str) -> None:
        self.live[name]["spec"]["suspend"] = True

    def misfortunes(self) -> dict[str, Callable[[], None]]:
        return {"queue_actions": self._something_happens}

    def be_quiet(self) -> None:
        self._kueue.holds, self._kueue.is_running = "None", True
        for workload in self._kueue.made.values():
            workload["spec"]["active"] = True

    def _something_happens(self) -> None:
        chance, kueue = self._stage.chance, self._kueue
        what = chance.choice(("preempt", "hold", "drain", "go on", "away", "back", "deactivate"))
        self._stage.world.say(f"KUEUE {what}")
        match what:
            case "hold" | "drain" | "go on":
                kinds = {"hold": "Hold", "drain": "HoldAndDrain", "go on": "None"}
                kueue.holds = kinds[what]
            case "away" | "back":
                kueue.is_running = what == "back"
            case "preempt" if self._admitted():
                self._changed(lambda: kueue.preempt(chance.choice(self._admitted())))
            case "deactivate" if kueue.made:
                uid = chance.choice(sorted(kueue.made))
                kueue.made[uid]["spec"]["active"] = False

    def _admitted(self) -> list[str]:
        made = self._kueue.made
        return [
            name
            for name, job in self.live.items()
            if made.get(job["metadata"]["uid"], {"status": {"pods": 0}})["status"]["pods"]
            and name in self._server.kinds["jobs"]
        ]

    def _reconcile(self) -> None:
        self._stage.world.after(_EVERY_S, self._reconcile)
        self._changed(self._kueue.step)

    def _changed(self, act: Callable[[], Any]) -> None:
        """Reconcile copies of the Jobs in its own order, and apply their changes."""
        there = self._server.kinds["jobs"]
        self.live = {name: _copy(there[name]) for name in [*self.live, *there] if name in there}
        act()
        for name, job in self.live.items():
            message = {key: job["spec"][key] for key in ("suspend", "parallelism")}
            if any(there[name]["spec"][key] != value for key, value in message.items()):
                self._server.change("jobs", name, spec=message)

    def _answer(self, path: str) -> Object | None:
        if path == f"/apis/{GROUP}":
            return {"preferredVersion": {"groupVersion": _VERSION}}
        if path.endswith("/workloads"):
            return {"metadata": {}, "items": self._kueue.workloads()}
        return None


def _copy(job: Object) -> Object:
    return {**job, "spec": dict(job["spec"])}
