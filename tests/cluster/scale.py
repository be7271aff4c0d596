"""A campaign of many shards on a simulated fleet, compared with a bare Job of the same size.

Nothing is measured: kwok lets pods complete at once, and a stand-in commits the shards of each
finished index, as its worker would have.
"""

import json
import re
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.config import new_client_from_config

from collector.codec.canonical import sha256_hex
from collector.model import keys
from collector.model.manifest import ShardCommit, StoredObject, shard_commit_to_json
from collector.model.record import write_table
from collector.store import open_store
from collector.store.base import Store, create_once
from jobs.kube.cluster import Cluster
from jobs.objects.applied_campaign import config_map, config_map_name
from jobs.objects.deployment import COMPONENT_LABEL, Deployment
from jobs.objects.waves import Wave, parse_indexes, wave_from_json
from tests.cluster.commands import Opmeter, Process
from tests.cluster.drill import WORKERS
from tests.cluster.namespace import Namespace
from tests.cluster.shipped import write_kubeconfig
from tests.servers.versitygw import free_port
from tests.unit.collector.database.campaign_maker import add_record
from tests.unit.jobs.plans import COMPLETE_TARGET

NODES, DEVICES = 256, 8
_NAME, _BARE = "fleet", "bare"
_SITE = """\
site: fleet
backend: npu
resource: huawei.com/Ascend910
devices_per_node: 8
shape: device
cpu: "1"
memory: 1Gi
node_selector: {type: kwok}
tolerations: [{key: kwok.x-k8s.io/node, operator: Exists}]
"""
_TEXT = f"""\
campaign: {_NAME}
sources: [{{cases: SHA256}}]
target: {COMPLETE_TARGET}
backend: npu
devices: {NODES * DEVICES}
shards: {{target_s: 0.001, session_s: 1}}
quality: {{repeat_share: 0}}
"""
_LOOK_S = 1.0
_OWN = re.compile("batch.kubernetes.io/|controller-uid$|job-name$")  # labels that Kubernetes adds


@dataclass(frozen=True, slots=True)
class Found:
    """Indexes per second of a campaign and of a bare Job, and the cost of the controller: its peak
    memory, and requests to the API server per second."""

    campaign: float
    bare: float
    memory_mb: float
    requests: float

    @property
    def ratio(self) -> float:
        return self.campaign / self.bare


def is_as_fast(found: Found) -> bool:
    """Return whether it was as fast as the bare Job. AssertionError if it took more than half a
    gigabyte, or too many requests to the API server."""
    print(f"\n{found}, ratio {found.ratio:.2f}")
    assert found.memory_mb < 512 and found.requests <= 5, found
    return found.ratio >= 0.9


def compare(namespace: Namespace, folder: Path, count: int, limit_s: float) -> Found:
    """Run a campaign of this many shards of one case, and then a Job of as many indexes."""
    fleet = _Fleet(namespace, folder, count)
    try:
        rate, memory_mb, requests = fleet.run_campaign(limit_s)
        return Found(rate, fleet.run_bare(limit_s), memory_mb, requests)
    finally:
        fleet.opmeter.end()


class _Fleet:
    def __init__(self, namespace: Namespace, folder: Path, count: int):
        self._namespace, self._folder, self._count = namespace, folder, count
        self._store: Store = open_store(f"file://{folder}/store")
        self._waves: dict[str, Wave] = {}
        self._committed: set[str] = set()
        self._template: dict[str, Any] = {}
        # A kubectl per second is a tenth of a core, which this measurement cannot spare.
        api = new_client_from_config(str(namespace.kubectl.kubeconfig))
        self._cluster = Cluster(api, namespace.name)
        config = write_kubeconfig(namespace, "opmeter-controller", folder / "kubeconfig")
        self.opmeter = Opmeter(folder, {"KUBECONFIG": str(config)})

    def run_campaign(self, limit_s: float) -> tuple[float, float, float]:
        """Return indexes per second, and the controller's MB and requests per second."""
        self._apply()
        port = free_port()
        controller = self.opmeter.start(
            *("controller", "--namespace", self._namespace.name, "--metrics-port", str(port))
        )
        self._wait("its first Job", lambda: bool(self._jobs()), limit_s, controller)
        started, before = time.monotonic(), _requests(port)
        self._wait("all shards", self._commit_finished, limit_s, controller)
        took_s = time.monotonic() - started
        requested = _requests(port) - before
        memory_mb = _peak_mb(controller)
        controller.kill()
        self._namespace("delete", "configmap", config_map_name(_NAME))
        self._wait("its pods are gone", lambda: not self._has_pods(), limit_s, controller)
        return self._count / took_s, memory_mb, requested / took_s

    def run_bare(self, limit_s: float) -> float:
        """Run a Job of the same pods without a controller."""
        spec = {
            "completionMode": "Indexed",
            "completions": self._count,
            "parallelism": min(self._count - 1, NODES * DEVICES),
            "backoffLimitPerIndex": 3,
            "maxFailedIndexes": self._count,
            "podReplacementPolicy": "Failed",
            "template": self._template,
        }
        metadata = {"name": _BARE, "labels": {COMPONENT_LABEL: _BARE}}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
        self._namespace.create(job)
        started = time.monotonic()
        self._wait("the bare Job", self._bare_is_done, limit_s)
        took_s = time.monotonic() - started
        self._namespace("delete", "job", _BARE, "--cascade=foreground", "--timeout=600s")
        return self._count / took_s

    def _apply(self) -> None:
        table = write_table([add_record(64 * n) for n in range(1, self._count + 1)])
        digest = sha256_hex(table)
        self._store.put(keys.source(_NAME, digest), table)
        deployment = Deployment(
            namespace=self._namespace.name,
            image="never/pulled:1",
            controller_image="never/pulled:1",
            root=self._store.url,
            allow_unpinned=True,
        )
        text = _TEXT.replace("SHA256", digest)
        made = config_map(_NAME, text, {"site.yaml": _SITE}, deployment)
        self._namespace.kubectl.apply(made)

    def _commit_finished(self) -> bool:
        """Commit the shards that have finished since; return whether those are all."""
        for job in self._jobs():
            wave = self._wave(job["metadata"]["labels"]["opmeter.io/wave"])
            self._template = self._template or _copied_pod(job)
            for index in parse_indexes(job["status"].get("completedIndexes") or ""):
                for shard in set(wave.indexes[index]) - self._committed:
                    create_once(self._store, keys.committed(_NAME, shard), _commit(shard))
                    self._committed.add(shard)
        return len(self._committed) == self._count

    def _wave(self, wave_hash: str) -> Wave:
        if wave_hash not in self._waves:
            key = keys.wave(_NAME, wave_hash)
            self._waves[wave_hash] = wave_from_json(self._store.get(key), key=key)
        return self._waves[wave_hash]

    def _jobs(self) -> list[Any]:
        return self._cluster.jobs(WORKERS)

    def _has_pods(self) -> bool:
        pods = f"/api/v1/namespaces/{self._namespace.name}/pods"
        expected = f"labelSelector={WORKERS.replace('=', '%3D')}&limit=1"
        message = self._namespace.kubectl("get", "--raw", f"{pods}?{expected}")
        return bool(json.loads(message)["items"])

    def _bare_is_done(self) -> bool:
        (bare,) = self._cluster.jobs(f"{COMPONENT_LABEL}={_BARE}")
        done = bare["status"].get("completedIndexes") or ""
        return len(parse_indexes(done)) == self._count

    def _wait(self, what: str, holds: Callable[[], bool], limit_s: float, *logs: Process) -> None:
        deadline = time.monotonic() + limit_s
        while not holds():
            message = "\n".join(log.message[-3000:] for log in logs)
            assert time.monotonic() < deadline, f"{what}: not within {limit_s:.0f} s\n{message}"
            time.sleep(_LOOK_S)


def _copied_pod(job: Any) -> dict[str, Any]:
    """Return the pod of a Job for another Job, without the fields that name its owner."""
    pod: dict[str, Any] = json.loads(json.dumps(job["spec"]["template"]))
    labels = pod["metadata"]["labels"].items()
    pod["metadata"]["labels"] = {name: text for name, text in labels if not _OWN.match(name)}
    return pod


def _commit(shard: str) -> bytes:
    nothing = StoredObject("none", 0, "0" * 64)
    return shard_commit_to_json(ShardCommit(shard, "stand-in", nothing, "0"))


def _requests(port: int) -> float:
    """Return the number of requests of a controller so far, from its metrics."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(r"^opmeter_api_requests_total (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def _peak_mb(process: Process) -> float:
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1000
