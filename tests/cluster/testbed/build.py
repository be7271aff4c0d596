"""Builds the servers of the cluster from their Go modules, into the cache.

The folder's name is the hash of all inputs, so that a stale build is never used. Of two processes
that need it one builds, and the other waits.
"""

import fcntl
import hashlib
import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.testbed.archive import Image, write_archive
from tests.cluster.testbed.machine import command
from tests.cluster.testbed.settings import NoCluster

_SOURCES = Path(__file__).parent.parent / "servers"
_COMPONENTS = (
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"),
    *("kubelet", "kubectl", "npu-device-plugin"),
)
_JOBSET, _KWOK = "sigs.k8s.io/jobset", "sigs.k8s.io/kwok"
_STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
BUILD_LIMIT_S = 3600
_GO = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}


@dataclass(frozen=True, slots=True)
class Built:
    """A folder of executables, of images as archives, and of the non-code files of the modules."""

    folder: Path

    def tool(self, name: str) -> Path:
        return self.folder / "bin" / name

    @property
    def pause(self) -> Path:
        return self.folder / "pause.tar"

    @property
    def jobset(self) -> Path:
        return self.folder / "jobset.tar"

    @property
    def jobset_manifests(self) -> Path:
        return self.folder / "jobset-config"

    @property
    def kwok_stages(self) -> Path:
        return self.folder / "kwok-stages.yaml"


def build_servers(cache: Path) -> Built:
    """Return the servers, from the cache or built now (minutes). NoCluster if there is no Go."""
    folder = cache / f"kubernetes-{_key()}"
    if not folder.is_dir():
        if shutil.which("go") is None:
            raise NoCluster("go is not installed (https://go.dev/dl)")
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / "kubernetes.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not folder.is_dir():
                _build_in(cache, folder)
    return Built(folder)


def version() -> str:
    """Return the version of Kubernetes that is built, as 1.36.3."""
    found = re.search(r"^\s*k8s\.io/kubernetes v(\S+)$", _text("go.mod"), re.MULTILINE)
    assert found, "go.mod requires k8s.io/kubernetes"
    return found[1]


def _fill(folder: Path) -> None:
    (folder / "bin").mkdir(parents=True)
    packages = [".", "./pause", _JOBSET, f"{_KWOK}/cmd/kwok"]
    flags = f"-s -w {_version_flags()}"
    _go("build", "-ldflags", flags, "-o", f"{folder / 'bin'}/", *packages)
    for name in _COMPONENTS:
        (folder / "bin" / name).symlink_to("cluster")
    _write_images(Built(folder))
    manifests = folder / "jobset-config"
    shutil.copytree(_module(_JOBSET) / "config", manifests, copy_function=shutil.copyfile)
    for directory in (manifests, *(p for p in manifests.rglob("*") if p.is_dir())):
        directory.chmod(0o755)  # the module cache is read-only
    Built(folder).kwok_stages.write_text(_stages())


def _write_images(built: Built) -> None:
    """Build images without a registry: a statically linked program each."""
    write_archive(built.pause, Image("local/pause:1", built.tool("pause"), "/pause"))
    write_archive(built.jobset, Image("local/jobset:1", built.tool("jobset"), "/manager", "65532"))


def _version_flags() -> str:
    """Without these the API server would report a wrong version."""
    full = version()
    major, minor, _ = full.split(".")
    message = {
        "gitVersion": f"v{full}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    package = "k8s.io/component-base/version"
    return " ".join(f"-X {package}.{name}={value}" for name, value in message.items())


def _stages() -> str:
    """Return kwok's own behaviours of nodes and pods, as one file."""
    folder = _module(_KWOK) / "kustomize" / "stage"
    files = [file for part in _STAGES for file in sorted((folder / part).glob("*.yaml"))]
    return "\n---\n".join(file.read_text() for file in files if file.stem != "kustomization")


def _module(name: str) -> Path:
    return Path(json.loads(_go("list", "-m", "-json", name))["Dir"])


def _go(*words: str) -> str:
    return command(["go", *words], environment=_GO, folder=_SOURCES, limit_s=BUILD_LIMIT_S)


def _build_in(cache: Path, folder: Path) -> None:
    """The folder appears when it is complete."""
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        fresh = Path(scratch) / "built"
        _fill(fresh)
        fresh.rename(folder)


def _key() -> str:
    digest = hashlib.sha256()
    here = Path(__file__)
    for file in (*sorted(_SOURCES.rglob("*.*")), here, here.with_name("archive.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _text(name: str) -> str:
    return (_SOURCES / name).read_text()
