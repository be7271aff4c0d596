"""A real Kueue: built from its Go modules, and run in the cluster with its own manifests.

It is a separate module: its dependencies are not those of the servers. If they cannot be fetched,
the tests that need it are skipped.
"""

import fcntl
import hashlib
import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.testbed.archive import Image, write_archive
from tests.cluster.testbed.build import BUILD_LIMIT_S
from tests.cluster.testbed.kubectl import Kubectl
from tests.cluster.testbed.machine import command
from tests.cluster.testbed.processes import wait_until
from tests.cluster.testbed.settings import NoCluster

NAMESPACE, MANAGED = "kueue-system", {"opmeter.test/queued": "true"}
_SOURCES = Path(__file__).parent.parent / "kueue"
_MODULE, _GROUP = "sigs.k8s.io/kueue", "kueue.x-k8s.io"
_START_S = 120
_GO = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
# Kinds that expose pods' addresses, and are not needed here.
_LEFT_OUT = ("APIService",)


@dataclass(frozen=True, slots=True)
class BuiltKueue:
    """A folder with its image, as an archive, and its manifests."""

    folder: Path

    @property
    def image(self) -> Path:
        return self.folder / "kueue.tar"

    @property
    def manifests(self) -> Path:
        return self.folder / "config"


def build_kueue(cache: Path) -> BuiltKueue:
    """Return it from the cache, or build it now (minutes). NoCluster if its modules cannot be
    fetched."""
    folder = cache / f"kueue-{_key()}"
    if not folder.is_dir():
        if shutil.which("go") is None:
            raise NoCluster("go is not installed (https://go.dev/dl)")
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "kueue.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not folder.is_dir():
                _build_in(cache, folder)
    return BuiltKueue(folder)


def install_kueue(built: BuiltKueue, kubectl: Kubectl, settings: dict[str, Any]) -> None:
    """Run its manager with its own permissions and webhooks; nodes hold its image. `settings` are
    added to its configuration. It manages the namespaces with the label MANAGED."""
    objects = list(yaml.safe_load_all(kubectl("kustomize", built.manifests / "default")))
    expected = [_ours(one, settings) for one in objects if one["kind"] not in _LEFT_OUT]
    kubectl("apply", "--server-side", "-f", "-", text=yaml.safe_dump_all(expected))
    rollout = ("rollout", "status", "deployment/kueue-controller-manager")
    kubectl("-n", NAMESPACE, *rollout, f"--timeout={_START_S}s")


def remove_kueue(built: BuiltKueue, kubectl: Kubectl) -> None:
    """Remove it once its finalizers are gone; its webhooks first: without it they would refuse new
    objects."""
    is_gone = partial(_holds_nothing, kubectl)
    wait_until("Kueue's objects are gone", is_gone, _START_S)
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        kubectl("delete", kind, "-l", "app.kubernetes.io/name=kueue", "--ignore-not-found")
    kubectl("-n", NAMESPACE, "delete", "deployment", "--all", "--wait=true")
    objects = yaml.safe_load_all(kubectl("kustomize", built.manifests / "default"))
    left = [one for one in objects if one["kind"] != "APIService"]
    words = ("delete", "--ignore-not-found", "--wait=false", "-f", "-")
    kubectl(*words, text=yaml.safe_dump_all(left))


def _holds_nothing(kubectl: Kubectl) -> bool:
    kinds = f"workloads.{_GROUP},localqueues.{_GROUP},clusterqueues.{_GROUP}"
    return not kubectl.get(kinds, "--all-namespaces")["items"]


def _ours(manifest: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return its manifests as shipped, except for the image, the requests on a small node, and the
    settings."""
    if manifest["kind"] == "Deployment":
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        container |= {"image": "local/kueue:1", "imagePullPolicy": "Never"}
        container["resources"] = {"requests": {"cpu": "50m", "memory": "256Mi"}}
    if manifest["kind"] == "ConfigMap":
        (name,) = manifest["data"]
        found = yaml.safe_load(manifest["data"][name])
        found["integrations"] = {"frameworks": ["batch/job"]}
        found["managedJobsNamespaceSelector"] = {"matchLabels": MANAGED}
        manifest["data"] = {name: yaml.safe_dump(found | settings)}
    return manifest


def _build_in(cache: Path, folder: Path) -> None:
    """The folder appears when it is complete."""
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        fresh = Path(scratch) / "built"
        fresh.mkdir()
        program = fresh / "kueue"
        try:
            _go("build", "-ldflags", "-s -w", "-o", program, f"{_MODULE}/cmd/kueue")
            module = Path(json.loads(_go("list", "-m", "-json", _MODULE))["Dir"])
        except RuntimeError as error:
            raise NoCluster(f"Kueue cannot be built here: {error}") from error
        write_archive(fresh / "kueue.tar", Image("local/kueue:1", program, "/manager", "65532"))
        program.unlink()
        shutil.copytree(module / "config", fresh / "config", copy_function=shutil.copyfile)
        for directory in (fresh / "config").rglob("*"):
            directory.chmod(0o755 if directory.is_dir() else 0o644)  # the module cache is read-only
        (fresh / "config").chmod(0o755)
        fresh.rename(folder)


def _go(*words: str | Path) -> str:
    return command(["go", *words], environment=_GO, folder=_SOURCES, limit_s=BUILD_LIMIT_S)


def version() -> str:
    """Return the version of Kueue that is built, as 0.19.2."""
    found = re.search(rf"{re.escape(_MODULE)} v(\S+)", (_SOURCES / "go.mod").read_text())
    assert found, f"go.mod requires {_MODULE}"
    return found[1]


def _key() -> str:
    digest = hashlib.sha256()
    for file in (*sorted(_SOURCES.glob("go.*")), Path(__file__)):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]
