"""Invariants of a cluster that hold after every step, checked on its objects."""

import json
from collections.abc import Sequence

from tests.attack.simulation.api import ApiServer, Object, made_by
from tests.attack.simulation.jobcontroller import INDEX, has_ended
from tests.attack.simulation.stage import Stage

_CAMPAIGN, _WAVE = "opmeter.io/campaign", "opmeter.io/wave"
_COMPONENT = "app.kubernetes.io/component"


class Guards:
    """Called at every change of an object."""

    def __init__(self, stage: Stage, server: ApiServer):
        self._stage, self._server = stage, server
        self._images_differ = bool(stage.faults.wrong_image)  # in this simulation, at any time
        server.changed.append(self._changed)

    def _changed(self, kind: str) -> None:
        if kind == "pods":
            self._check_cap()
        elif kind == "jobs":
            self._check_waves()

    def _check_cap(self) -> None:
        """Check that a campaign has no more pods than devices, except for pods that end, or will
        end as soon as the cluster has noticed that their Job is gone."""
        held: dict[str, list[Object]] = {}
        jobs = {job["metadata"]["uid"] for job in self._server.kinds["jobs"].values()}
        for pod in self._server.kinds["pods"].values():
            if _is_at_work(pod) and made_by(pod) in jobs:
                held.setdefault(pod["metadata"]["labels"][_CAMPAIGN], []).append(pod)
        for name, pods in held.items():
            most = self._stage.expected[name].devices
            if len(pods) > most and self._with_work(name, pods) > most:
                self._stage.world.broken(
                    f"{name}: {len(pods)} pods, and {most} devices are requested"
                )

    def _with_work(self, campaign: str, pods: Sequence[Object]) -> int:
        """Return how many of its pods have an uncommitted shard: the others end at once."""
        objects = self._stage.depot.objects
        count = 0
        for pod in pods:
            labels = pod["metadata"]["labels"]
            wave = json.loads(objects[f"campaigns/{campaign}/waves/{labels[_WAVE]}.json"])
            shards = wave["indexes"][int(labels[INDEX])]
            count += any(f"campaigns/{campaign}/committed/{s}.json" not in objects for s in shards)
        return count

    def _check_waves(self) -> None:
        """Check that at most half of the nodes are quarantined. (Nodes with another image are
        avoided too; and a gang avoids nodes on which it failed, while there are enough nodes.)"""
        if self._images_differ:
            return
        nodes = len(self._server.kinds["nodes"])
        for key, data in self._stage.depot.objects.items():
            if "/waves/" not in key:
                continue
            wave = json.loads(data)
            most = max(nodes // 2, nodes - wave["pods"]) if "pods" in wave else nodes // 2
            if len(wave["avoid"]) > most:
                self._stage.world.broken(f"{key} avoids {len(wave['avoid'])} of {nodes} nodes")


def _is_at_work(pod: Object) -> bool:
    metadata = pod["metadata"]
    is_worker = metadata["labels"][_COMPONENT] == "worker"
    return is_worker and "deletionTimestamp" not in metadata and not has_ended(pod)
