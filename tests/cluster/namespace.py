"""A namespace of one test, with short forms of frequent calls."""

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.testbed.kubectl import Kubectl, Manifest

_POD_LIMIT_S = 180.0
_LOOK_S = 0.3
_LOG_S = 3.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a pod ended, and its output."""

    exit_code: int
    log: str


@dataclass(frozen=True)
class Namespace:
    """Removed with everything in it when its test ends."""

    name: str
    kubectl: Kubectl

    def __call__(self, *words: str | Path, text: str | None = None) -> str:
        """Return the output of kubectl in this namespace."""
        return self.kubectl("-n", self.name, *words, text=text)

    def get(self, kind: str, name: str) -> Any:
        """Return one object of this namespace, by the plural of its kind."""
        return self.kubectl.objects.get(kind, name, self.name)

    def find(self, kind: str, selector: str = "") -> list[Any]:
        """Return the objects of this namespace that a label selector selects."""
        return self.kubectl.objects.find(kind, self.name, selector)

    def pods(self, selector: str = "") -> list[Any]:
        """Return its pods."""
        return self.find("pods", selector)

    def create(self, *manifests: Manifest) -> None:
        """Create objects in this namespace, with unknown fields refused."""
        for manifest in manifests:
            self("create", "--validate=strict", "-f", "-", text=json.dumps(manifest))

    def refusal(self, manifest: Manifest) -> str:
        """Return the error of the API server for an object, strictly and without creating it; empty
        if it would accept it."""
        return self.kubectl.objects.refusal(manifest, self.name)

    def run(self, pod: Manifest, limit_s: float = _POD_LIMIT_S) -> Ended:
        """Create a pod, wait for its end, and read its log."""
        self.create(pod)
        return self.end_of(pod["metadata"]["name"], limit_s)

    def end_of(self, pod: str, limit_s: float = _POD_LIMIT_S) -> Ended:
        """Wait until a pod's container has ended."""
        self.wait(f"{pod} ends", lambda: self._phase(pod) in ("Succeeded", "Failed"), limit_s)
        state = self.get("pods", pod)["status"]["containerStatuses"][0]["state"]
        return Ended(state["terminated"]["exitCode"], self._log(pod))

    def wait_running(self, pod: str, limit_s: float = _POD_LIMIT_S) -> None:
        """Wait until a pod runs."""
        self.wait(f"{pod} runs", lambda: self._phase(pod) == "Running", limit_s)

    def wait(self, what: str, holds: Callable[[], bool], limit_s: float = _POD_LIMIT_S) -> None:
        """Wait until a condition holds; AssertionError with the namespace's events after the
        limit."""
        deadline = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > deadline:
                events = self("get", "events", "--sort-by=.lastTimestamp")
                raise AssertionError(f"{what}: not within {limit_s:.0f} s\n{events}")
            time.sleep(_LOOK_S)

    def make_secret(self, name: str, content: Mapping[str, str]) -> None:
        """Create or replace a Secret."""
        self.kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": self.name},
                "stringData": dict(content),
            }
        )

    def make_accounts(self, *names: str) -> None:
        """Create ServiceAccounts without rights."""
        for name in names:
            self("create", "serviceaccount", name)

    def mount_folder(self, claim: str, folder: Path) -> None:
        """Make a claim through which pods read a folder of our own nodes: their disks are those of
        this machine. A hostPath volume itself is not allowed in a `restricted` namespace."""
        volume = f"{self.name}-{claim}"
        spec = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
        self.kubectl.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume, "labels": {"opmeter-test": self.name}},
                "spec": spec
                | {
                    "capacity": {"storage": "1Gi"},
                    "persistentVolumeReclaimPolicy": "Retain",
                    "hostPath": {"path": str(folder), "type": "Directory"},
                },
            }
        )
        request = {"volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}}
        self.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": claim},
                "spec": spec | request,
            }
        )

    def offer_volume(self, claim: str, folder: Path) -> None:
        """Make a volume over a new folder of this machine that a claim of this namespace will find,
        as a storage class would make it."""
        folder.mkdir(mode=0o770)
        os.chown(folder, 1000, 1000)
        self.kubectl.create(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"{self.name}-store", "labels": {"opmeter-test": self.name}},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "",
                    "capacity": {"storage": "10Gi"},
                    "persistentVolumeReclaimPolicy": "Retain",
                    "hostPath": {"path": str(folder), "type": "Directory"},
                    "claimRef": {"namespace": self.name, "name": claim},
                },
            }
        )

    def remove(self) -> None:
        """Remove the namespace; return when its pods have ended: the next test needs the
        devices."""
        self("delete", "jobs,pods", "--all", "--grace-period=1", "--timeout=120s")
        self.kubectl("delete", "namespace", self.name, "--wait=false")
        of_test = ("persistentvolumes", "-l", f"opmeter-test={self.name}")
        self.kubectl("delete", *of_test, "--wait=false")

    def _log(self, pod: str) -> str:
        """Return the output of an ended container: on a busy node its runtime writes the last of it
        after it has reported the end. A container without output is waited for too."""
        deadline = time.monotonic() + _LOG_S
        while not (message := self("logs", pod)) and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        return message

    def _phase(self, pod: str) -> str:
        return str(self.get("pods", pod)["status"].get("phase", ""))
