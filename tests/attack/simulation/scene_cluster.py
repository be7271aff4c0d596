"""A simulation of a cluster: controllers that take turns leading, nodes, Jobs, and users who apply
and edit campaigns."""

from collections.abc import Callable

from collector.store.probe import Probe
from collector.store.waiting import PatientStore
from jobs.controller.controller import Controller
from jobs.controller.loop import run_forever
from jobs.decide.live_objects import LAUNCHED
from jobs.kube.cluster import Cluster
from jobs.kube.leader_election import Election, identity
from jobs.kube.requests import RateLimit
from jobs.objects.applied_campaign import (
    AGAIN,
    ALLOW_MISSING,
    PAUSED,
    RETRY_FAILED,
    Applied,
    applied_from,
    config_map,
    config_map_name,
)
from jobs.objects.deployment import Deployment
from tests.attack.simulation.alone import Machine
from tests.attack.simulation.api import NAMESPACE, ApiServer, Client, Object
from tests.attack.simulation.campaigns import RANKS_A_POD
from tests.attack.simulation.containers import Containers
from tests.attack.simulation.device import STACK, Node
from tests.attack.simulation.guards import Guards
from tests.attack.simulation.jobcontroller import JobController, Scheduler
from tests.attack.simulation.kubelet import Kubelet
from tests.attack.simulation.process import Process
from tests.attack.simulation.queue import Queue
from tests.attack.simulation.stage import Stage
from tests.attack.simulation.storage import URL

DEPLOYMENT = Deployment(NAMESPACE, "here/collector:1", "here/controller:1", URL)
_DEEDS = ("edit", "again", "retry", "pause", "resume", "cancel", "apply", "launch", "merge", "part")
_LOOK_S = 20.0
_GRAIN_S = 3.0
_PATIENCE_S = 10.0
_SITE = {"site": "cpu", "site.devices_per_node": "3"}
_OF_GANGS = {"site.ranks_per_pod": str(RANKS_A_POD)}


class InCluster:
    """Two to five nodes, one or two controllers."""

    def __init__(self, stage: Stage):
        self._stage, chance = stage, stage.chance
        self._server = ApiServer(stage.world, stage.faults)
        self._tokens = 0
        self._merged: dict[str, bool] = {}
        self._jobs = JobController(self._server)
        self._scheduler = Scheduler(self._server)
        self._guards = Guards(stage, self._server)
        stage.draw_nodes(chance.randrange(2, 6), "node")
        containers = Containers(stage, self._server)
        self._kubelets = [
            Kubelet(self._server, node, containers.start, chance.randrange(1, 4))
            for node in stage.nodes
        ]
        self._queue = Queue(stage, self._server) if stage.faults.queue else None
        self._controllers = chance.randrange(1, 3)
        self._desk = Machine(stage.depot, Node("desk", stage.truth, stage.faults), stage.folder)

    def begin(self) -> None:
        for name in self._stage.expected:
            self._apply(name)
        for number in range(self._controllers):
            self._controller(number)

    def is_done(self) -> bool:
        """Return whether every campaign is marked as merged with its final settings."""
        if not self._stage.is_quiet:
            return False
        maps = self._server.kinds["configmaps"]
        return all(self._is_merged(maps.get(config_map_name(n))) for n in self._stage.expected)

    def _is_merged(self, found: Object | None) -> bool:
        """Cached per version: this is called at every step."""
        if found is None:
            return False
        version = found["metadata"]["resourceVersion"]
        if version not in self._merged:
            self._merged[version] = applied_from(found).is_merged
        return self._merged[version]

    def misfortunes(self) -> dict[str, Callable[[], None]]:
        return {
            "api_outages": self._api_away,
            "node_losses": self._lose_node,
            "drains": self._drain,
            "wrong_image": self._wrong_image,
            "people": self._user_actions,
            **(self._queue.misfortunes() if self._queue else {}),
        }

    def be_quiet(self) -> None:
        """Users fix what they can: paused campaigns are resumed, deleted ones applied, and
        campaigns that stopped for their image launched again."""
        self._server.away_until = 0.0
        if self._queue:
            self._queue.be_quiet()
        for node in self._stage.nodes:
            node.image_torch = STACK.torch
        for kubelet in self._kubelets:
            kubelet.come_back()
            kubelet.uncordon()
        for name in self._stage.expected:
            self._apply(name)
            self._annotate(name, **{PAUSED: None, LAUNCHED: self._token()})

    def _controller(self, number: int) -> None:
        """One replica; when it dies another begins."""
        stage = self._stage
        skewed = stage.faults.skewed
        process = Process(stage.world, f"controller-{number}", grain_s=_GRAIN_S, skewed=skewed)
        process.at_end = lambda: stage.world.after(
            1.0 + stage.chance.random() * 20.0, lambda: self._controller(number)
        )
        stage.processes.append(process)
        process.begin(lambda: self._control(process))

    def _control(self, process: Process) -> None:
        cluster = Cluster(Client(self._server, process), NAMESPACE, RateLimit())
        election = Election(cluster, identity())

        def reach(applied: Applied) -> PatientStore:
            return PatientStore(self._stage.depot.reach(process, process.name), _PATIENCE_S)

        controller = Controller(
            cluster,
            reach,
            may_perform=election.hold,
            probe_store=lambda store: Probe(True, "played"),
        )
        with election.kept():
            run_forever(controller, election.hold, process.stop, interval_s=_LOOK_S)

    def _apply(self, name: str) -> None:
        """`opmeter launch`, or `kubectl apply`: annotations of controllers and others are kept."""
        expected = self._stage.expected[name]
        depot = self._stage.depot
        depot.objects.setdefault(expected.source_key, expected.table)
        made = config_map(
            name, expected.text, {**_SITE, **(_OF_GANGS if expected.gangs else {})}, DEPLOYMENT
        )
        held = self._server.kinds["configmaps"].get(made["metadata"]["name"])
        if held is not None:
            kept = {k: v for k, v in held["metadata"].items() if k not in made["metadata"]}
            made["metadata"] = {**kept, **made["metadata"]}
        self._server.put("configmaps", made)

    def _annotate(self, name: str, **notes: str | None) -> None:
        held = self._server.kinds["configmaps"].get(config_map_name(name))
        if held is not None:
            message = {**(held["metadata"].get("annotations") or {}), **notes}
            message = {key: value for key, value in message.items() if value is not None}
            self._server.change(
                "configmaps", held["metadata"]["name"], metadata={"annotations": message}
            )

    def _user_actions(self) -> None:
        stage, chance = self._stage, self._stage.chance
        name = chance.choice(sorted(stage.expected))
        what = chance.choice(_DEEDS)
        stage.world.say(f"PEOPLE {what} {name}")
        match what:
            case "edit":
                stage.expected[name] = stage.expected[name].edited()
                self._apply(name)
            case "again":
                self._annotate(name, **{AGAIN: self._token()})
            case "retry":
                self._annotate(name, **{RETRY_FAILED: self._token()})
            case "pause":
                self._annotate(name, **{PAUSED: "true"})
            case "resume":
                self._annotate(name, **{PAUSED: None})
            case "part":
                self._annotate(name, **{ALLOW_MISSING: "true"})
            case "cancel":
                self._server.remove("configmaps", config_map_name(name))
                stage.world.after(2.0, self._server.without_owner)
                stage.world.after(chance.uniform(5.0, 300.0), lambda: self._apply(name))
            case "apply":
                self._apply(name)
            case "launch":
                self._annotate(name, **{LAUNCHED: self._token()})
            case "merge" if self._desk.is_free:
                self._desk.merge(stage.expected[name], allow_missing=True)

    def _token(self) -> str:
        self._tokens += 1
        return f"token-{self._tokens}"

    def _api_away(self) -> None:
        self._server.away_until = self._stage.world.now + self._stage.chance.uniform(5.0, 600.0)
        self._stage.world.say(f"OUTAGE of the API server until {self._server.away_until:.0f}")

    def _lose_node(self) -> None:
        stage, kubelet = self._stage, self._stage.chance.choice(self._kubelets)
        power = stage.chance.random() < 0.5
        stage.world.say(f"LOST {kubelet.node.name}, {'without' if power else 'with'} power")
        kubelet.lose(power=power)
        stage.world.after(stage.chance.uniform(10.0, 2000.0), kubelet.come_back)

    def _drain(self) -> None:
        stage, kubelet = self._stage, self._stage.chance.choice(self._kubelets)
        stage.world.say(f"DRAIN {kubelet.node.name}")
        kubelet.drain()
        stage.world.after(stage.chance.uniform(10.0, 1000.0), kubelet.uncordon)

    def _wrong_image(self) -> None:
        """Another software than that of the plan, on some nodes or on all, until a user fixes
        it."""
        stage = self._stage
        some = stage.nodes if stage.chance.random() < 0.5 else stage.nodes[1:2]
        stage.world.say(f"IMAGE differs on {', '.join(node.name for node in some)}")
        for node in some:
            node.image_torch = "9.9.9"

        def repair() -> None:
            for node in some:
                node.image_torch = STACK.torch
            for name in stage.expected:
                self._annotate(name, **{LAUNCHED: self._token()})

        stage.world.after(stage.chance.uniform(60.0, 900.0), repair)
