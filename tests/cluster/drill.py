"""A small campaign on a cluster, from its ConfigMap to the check of its database."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from collector.database.commits import find_head
from collector.database.snapshot import load_state
from collector.database.verify import find_problems
from collector.model import keys
from collector.model.plan import Plan, read_shard
from collector.store import open_store
from collector.store.base import Store
from jobs.objects.applied_campaign import MERGED, PAUSED, config_map, config_map_name
from jobs.objects.deployment import Deployment
from jobs.planning.stored_plans import committed_shards, read_plans
from tests.cluster import saboteur
from tests.cluster.cluster import Cluster
from tests.cluster.commands import Opmeter, Process
from tests.cluster.namespace import Namespace
from tests.cluster.shipped import write_kubeconfig
from tests.cluster.testbed.store import ObjectStore

SECRET, TORCH, BUCKET = "opmeter-s3", "torch", "drills"
GOOD = {"ok", "unsupported"}
WORKERS = "app.kubernetes.io/component=worker"
# Small operators in six to eight shards of seconds each: mostly the start of a session.
TEXT = """\
campaign: drill
sources: [{bundled: quickstart}]
operators: [NotEqual, Sub, Abs, Greater, Range, OnesLike, Pows, NonZero, Sort, Equal, Sin, Cos,
  Muls, MemSet, RotaryPositionEmbedding, RmsNorm, Slice]
update: missing-only
target: here
backend: cpu
devices: 2
measure: {budget_s: 0.002, repeats: 2, cache: warm}
shards: {target_s: 0.024, session_s: 60}
limits: {case_s: 60, memory_gb: 1}
quality: {repeat_share: 0}
"""
# Two workers fit on a node next to the other pods; a node is given up after seconds.
SITE = """\
site: drill
backend: cpu
devices_per_node: 1
shape: device
cpu: 800m
memory: 1536Mi
ephemeral_storage: 2Gi
shared_memory: 256Mi
tolerations:
  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 5}
  - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 5}
"""
# Thread teams that spin while they wait use the cores of other pods of the machine.
CALM = {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_NUM_THREADS": "1"}
_LIMIT_S = 900.0
_LOOK_S = 1.0
_DAWDLE_S, _START_S = 25.0, 4.0


@dataclass
class Drill:
    """The campaign of TEXT in a new namespace, with the accounts of the manifests.

    `site_packages` is the folder from which pods import torch, and where a drill leaves orders for
    them.
    """

    cluster: Cluster
    namespace: Namespace
    folder: Path
    site_packages: Path
    text: str = TEXT
    site: str = SITE
    annotations: Mapping[str, str] = field(default_factory=dict)
    image: str = ""  # of workers; that of `cpu` by default
    endpoint: str = ""  # address of the store for pods and controllers, if it differs

    name: str = "drill"
    root: str = ""  # address for pods; that of the object store by default
    seen_at: str = ""  # the same for this machine

    def __post_init__(self) -> None:
        self.root = self.root or f"s3://{BUCKET}/{self.namespace.name}"
        self.seen_at = self.seen_at or self.root

    def prepare(self) -> None:
        """Return everything but the campaign itself."""
        self.cluster.own.store.make_bucket(BUCKET)
        self.namespace.make_secret(SECRET, self.credentials(self.cluster.own.store))
        self.write_credentials(self.cluster.own.store)
        self.namespace.mount_folder(TORCH, self.site_packages)

    def credentials(self, store: ObjectStore) -> dict[str, str]:
        """Return the contents of the Secret."""
        found = store.credentials()
        return {k: v.replace(store.endpoint, self._endpoint) for k, v in found.items()}

    def write_credentials(self, store: ObjectStore) -> None:
        """Return the environment of processes of this machine."""
        for name, text in store.credentials().items():
            (self.folder / name).write_text(text)

    def speak_to_store_at(self, endpoint: str) -> None:
        """From now on pods and controllers use the proxy; the checks of a test do not."""
        self.endpoint = endpoint
        self.namespace.make_secret(SECRET, self.credentials(self.cluster.own.store))

    @cached_property
    def opmeter(self) -> Opmeter:
        """Return the command with the account of the controller and the credentials of the
        store."""
        config = write_kubeconfig(
            self.namespace, "opmeter-controller", self.folder / "controller.kubeconfig"
        )
        environment = {"KUBECONFIG": str(config), "AWS_ENDPOINT_URL_S3": self._endpoint}
        return Opmeter(self.folder, environment)

    @cached_property
    def store(self) -> Store:
        """Return the store without the proxy."""
        return open_store(self.seen_at)

    @property
    def deployment(self) -> Deployment:
        return Deployment(
            namespace=self.namespace.name,
            image=self.image or self.cluster.collector_image,
            allow_unpinned=bool(self.image),  # nothing has pushed it: it has no digest
            controller_image=self.cluster.controller_image,
            root=self.root,
            store_secret=SECRET,
            site_packages=TORCH,
            merge_memory="2Gi",  # nodes here are small, and so are the databases
        )

    def order(self, environment: Mapping[str, str] | None = None, **orders: object) -> None:
        """Give orders to the Python processes of pods that start from now on; each includes
        CALM."""
        path = self.site_packages / saboteur.ORDERS
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(orders | {"environment": CALM | dict(environment or {})}))
        fresh.rename(path)

    def apply(self) -> None:
        """Apply the ConfigMap, as a user would."""
        made = config_map(self.name, self.text, {"site.yaml": self.site}, self.deployment)
        made["metadata"]["annotations"] = dict(self.annotations)
        self.namespace.kubectl.apply(made)

    def delete(self) -> None:
        self.namespace("delete", "configmap", config_map_name(self.name))

    def controller(self) -> Process:
        """Start a controller, which runs until it is ended."""
        return self.opmeter.start(
            "controller", "--namespace", self.namespace.name, "--metrics-port", "0"
        )

    def launch(self) -> None:
        """Apply the campaign and start a controller."""
        self.apply()
        self.controller()

    def launch_with_orders(self, orders: Callable[[Plan], Mapping[str, Any]]) -> None:
        """The same, with orders that depend on the plan: no worker starts before they are
        written."""
        self.annotations = {PAUSED: "true"}
        self.launch()
        self.wait("it is planned", self.has_plan)
        self.order(**orders(self.plan()))
        self.opmeter("pause", self.name, "--resume", "--namespace", self.namespace.name)

    # Observations

    def plan(self) -> Plan:
        return read_plans(self.store, self.name)[-1]

    def has_plan(self) -> bool:
        return bool(read_plans(self.store, self.name))

    def leader_is(self, process: Process) -> bool:
        """Return whether this controller has made the wave."""
        return "Launch" in process.message

    def committed(self) -> int:
        """Return the number of shards."""
        return len(committed_shards(self.store, self.name))

    def commits(self) -> dict[str, bytes]:
        """Return the commits of workers: key -> object."""
        under = keys.committed_prefix(self.name)
        return {found.key: self.store.get(found.key) for found in self.store.list(under)}

    def waves(self) -> list[dict[str, Any]]:
        found = [json.loads(self.store.get(i.key)) for i in self.store.list(keys.waves(self.name))]
        return sorted(found, key=lambda wave: int(wave["serial"]))

    def workers(self, node: str = "") -> list[Any]:
        """Return the worker pods that run and are not being deleted."""
        return [
            pod
            for pod in self.namespace.pods(WORKERS)
            if pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
            and (not node or pod["spec"]["nodeName"] == node)
        ]

    def is_merged(self) -> bool:
        found = self.namespace.get("configmaps", config_map_name(self.name))
        return MERGED in (found["metadata"].get("annotations") or {})

    def reasons(self) -> set[str]:
        """Return the reasons of the Events of the campaign."""
        events = self.namespace.find("events")
        about = config_map_name(self.name)
        return {e["reason"] for e in events if e["involvedObject"].get("name") == about}

    # Conditions to wait for

    def wait(self, what: str, holds: Callable[[], bool], limit_s: float = _LIMIT_S) -> None:
        """Wait for a condition; AssertionError with the output of controllers and cluster after the
        limit."""
        deadline = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {limit_s:.0f} s\n{self.picture()}")
            time.sleep(_LOOK_S)

    def catch_worker(self, node: str = "") -> Any:
        """Return a worker pod that has just started: it waits, so that a drill can disturb it."""
        known = {pod["metadata"]["uid"] for pod in self.namespace.pods(WORKERS)}
        self.order(delay_s=_DAWDLE_S)
        caught: list[Any] = []

        def is_caught() -> bool:
            caught[:] = [p for p in self.workers(node) if p["metadata"]["uid"] not in known]
            return bool(caught)

        self.wait("another worker runs", is_caught)
        time.sleep(_START_S)  # until its worker has read the order
        self.order()
        return caught[0]

    def wait_committed(self, least: int) -> None:
        self.wait(f"{least} shards are committed", lambda: self.committed() >= least)

    def observe(self, seconds: float) -> None:
        """Give controllers the time for a few reconciliations."""
        time.sleep(seconds)

    def finish(self, limit_s: float = _LIMIT_S) -> None:
        """Wait until the campaign is merged, and check all of it."""
        self.wait("the campaign is merged", self.is_merged, limit_s)
        self.check()

    def picture(self) -> str:
        """Return the state of the cluster for the report of a failed drill."""
        logs = sorted(self.folder.glob("*.log"))
        message = [f"{log.name}:\n{log.read_text(errors='replace')[-4000:]}" for log in logs]
        message.append(self.namespace("get", "jobs,pods", "-o", "wide"))
        message.append(self.namespace("get", "events", "--sort-by=.lastTimestamp")[-4000:])
        return "\n".join(message)

    # Final checks

    def outcomes(self) -> dict[str, str]:
        """Return case -> its final outcome in the newest version. AssertionError for two of one
        shard: a case that a plan measures twice is in two."""
        rows = load_state(self.store, find_head(self.store)).measurements
        chosen = rows.select(["case", "shard", "outcome", "final"]).to_pylist()
        final = [row for row in chosen if row["final"]]
        answers = Counter((row["case"], row["shard"]) for row in final)
        often = [answer for answer, count in answers.items() if count > 1]
        assert not often, f"more than one final outcome: {often[:5]}"
        return {row["case"]: row["outcome"] for row in final}

    def shards(self) -> list[str]:
        """Return all plans: a finished one may be followed by another of cases that only suspect
        sessions have measured."""
        plans = read_plans(self.store, self.name)
        return [shard.shard_id for plan in plans for shard in plan.shards]

    def cases(self) -> dict[str, str]:
        """Return case -> the newest shard that measures it, as planned."""
        return {
            case.record.case_id: shard
            for shard in self.shards()
            for case in read_shard(self.store.get(keys.shard(self.name, shard)))
        }

    def planned_here(self, campaign: str) -> set[str]:
        """Return the cases that `opmeter plan` of a file would measure on this machine."""
        root = self.folder / "here"
        self.opmeter("plan", campaign, "--root", str(root))
        shards = (root / "campaigns" / self.name / "shards").iterdir()
        return {case.record.case_id for path in shards for case in read_shard(path.read_bytes())}

    def check(self) -> dict[str, str]:
        """Check that the database is verified and has one result for each case of each plan."""
        assert find_problems(self.store) == []
        outcomes = self.outcomes()
        assert set(outcomes) == set(self.cases())
        assert self.committed() == len(set(self.shards()))
        return outcomes

    @property
    def _endpoint(self) -> str:
        return self.endpoint or self.cluster.own.store.endpoint
