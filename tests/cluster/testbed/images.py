"""The project's own images, built from its Dockerfile without a registry and without a daemon.

The bases are made from Debian's packages and the wheels of pip. podman keeps their layers in the
cache, so that a change of the sources builds only the last layers again.
"""

import fcntl
import hashlib
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.testbed import machine
from tests.cluster.testbed.pythons import python_folder

PROJECT = Path(__file__).parents[3]
_SOURCES = ("collector", "jobs", "opmeter", "images")
_FILES = ("Dockerfile", ".dockerignore", "LICENSE", "README.md", "pyproject.toml")
_BASE_SUITE, _OF_DEBIAN = "bookworm", "3.11"  # the suite, and its Python
_BASE_PACKAGES = "python3,python3-venv,ca-certificates"
_VENDOR = Path(__file__).with_name("vendor")
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
_SETTINGS = """\
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "none"
"""
# podman keeps a cache in /var/lib despite its options: it gets a separate one.
_PODMAN = 'mount --bind "$0/lib" /var/lib && exec podman --runroot "$0/run" --tmpdir "$0/tmp" "$@"'


@dataclass(frozen=True, slots=True)
class Target:
    """A target of the Dockerfile on a base: a Debian, or a stand-in of the vendor's image, whose
    Python, of the version `python`, has `packages`."""

    stage: str
    name: str
    packages: tuple[str, ...] = ()
    python: str = _OF_DEBIAN


CONTROLLER = Target("controller", "controller")
COLLECTOR_CPU = Target("collector-cpu", "collector-cpu")
# Of the wheels that each release requires next to vLLM.
_OF_VENDOR = ("pandas", "scipy", "pyyaml", "psutil")
COLLECTORS = {
    "0.18.0": Target("collector", "collector-0.18", ("numpy==1.26.4", *_OF_VENDOR), "3.11"),
    "0.23.0": Target("collector", "collector-0.23", ("numpy==2.3.5", *_OF_VENDOR), "3.12"),
}
IN_PODS = "0.18.0"  # the release whose workers run in the cluster


@dataclass(frozen=True, slots=True)
class ProjectImage:
    """An image under a name that changes with its content, and its archive."""

    name: str
    archive: Path

    def config(self) -> dict[str, Any]:
        """Return the configuration of the image: user, environment, labels, layers."""
        with tarfile.open(self.archive) as archive:
            manifest = json.loads(_read(archive, "manifest.json"))
            config: dict[str, Any] = json.loads(_read(archive, manifest[0]["Config"]))
        return config


def build_image(cache: Path, target: Target = CONTROLLER) -> ProjectImage:
    """Return the image of a target, from the cache or built now (minutes, once).

    NoCluster if podman is not available, RuntimeError if the build fails.
    """
    key = _key(target)
    archive = cache / "images" / f"{target.name}-{key}.tar"
    image = ProjectImage(_tagged(target, key), archive)
    if not archive.exists():
        with podman_with(cache, target) as podman:
            if not archive.exists():  # built by another process in the meantime
                archive.parent.mkdir(parents=True, exist_ok=True)
                podman.save(image.name, archive)
                for older in archive.parent.glob(f"{target.name}-*.tar"):
                    if older != archive:
                        older.unlink()
    return image


def build_archives(cache: Path) -> list[Path]:
    """Return the archives of the images that pods of the tests run."""
    return [build_image(cache, target).archive for target in (CONTROLLER, COLLECTORS[IN_PODS])]


@dataclass(frozen=True, slots=True)
class Podman:
    """podman, with all of its files below one folder; `image` is what was built last."""

    folder: Path
    image: str = ""

    @property
    def environment(self) -> dict[str, str]:
        return {"CONTAINERS_CONF": str(self.folder / "containers.conf")}

    def command(self, *words: str | Path) -> list[str | Path]:
        """Return a command line of podman; it requires `environment`."""
        private = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _PODMAN]
        return [*private, self.folder, *words]

    def __call__(self, *words: str | Path) -> str:
        return machine.command(self.command(*words), environment=self.environment, limit_s=3600)

    def build(self, name: str, folder: Path, *words: str) -> None:
        """Build the Dockerfile of a folder."""
        certificates = os.environ.get("PIP_CERT") or _CERTIFICATES
        self(
            *("build", "--tag", name, *words),
            *("--pull=never", "--network=host", "--isolation=chroot", "--layers"),
            *("--secret", f"id=pip,src={self.folder}/pip.conf"),
            *("--secret", f"id=ca,src={certificates}"),
            folder,
        )

    def names(self) -> list[str]:
        return self("images", "--format", "{{.Repository}}:{{.Tag}}").split()

    def save(self, name: str, archive: Path) -> None:
        fresh = archive.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        self("save", "--quiet", "--format", "docker-archive", "--output", fresh, name)
        fresh.rename(archive)

    def forget(self, name: str, *, but: str) -> None:
        """Remove older builds: their layers would fill the disk."""
        older = [tagged for tagged in self.names() if tagged.startswith(f"{name}:")]
        for tagged in older:
            if tagged != but:
                self("rmi", tagged)
        self("image", "prune", "--force")


@contextmanager
def podman_with(cache: Path, target: Target) -> Iterator[Podman]:
    """Provide podman with the image of a target, which is built now if it is not in its store. One
    process at a time has it.

    NoCluster if podman is not available, RuntimeError if the build fails.
    """
    machine.require_root()
    machine.require(machine.IMAGE_TOOLS)
    folder = cache / "podman"
    for part in ("lib", "run", "tmp"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        (folder / "containers.conf").write_text(_SETTINGS)
        (folder / "pip.conf").write_text(_pip_settings())
        name = _tagged(target, _key(target))
        podman = Podman(folder, name)
        if name not in podman.names():
            base = _vendor_base(podman, target) if target.packages else _debian(podman)
            podman.build(name, PROJECT, "--target", target.stage, f"--build-arg=BASE={base}")
            podman.forget(name.partition(":")[0], but=name)
        yield podman


def _tagged(target: Target, key: str) -> str:
    return f"localhost/opmeter-{target.name}:{key}"


def _debian(podman: Podman) -> str:
    """Make a Debian with Python and nothing else, used if python:3.11-slim cannot be pulled."""
    name = f"localhost/opmeter-base:{_digest(_BASE_SUITE, _BASE_PACKAGES)}"
    if name not in podman.names():
        archive = podman.folder / "base.tar"
        options = ("--variant=minbase", f"--include={_BASE_PACKAGES}")
        machine.make_debian(_BASE_SUITE, archive, options)
        podman("import", archive, name)
        archive.unlink()
    return name


def _vendor_base(podman: Podman, target: Target) -> str:
    """Make the stand-in of an image of vLLM-Ascend."""
    debian = _debian(podman)
    files = [path.read_text() for path in sorted(_VENDOR.iterdir())]
    name = f"localhost/opmeter-vendor-{target.name}"
    tagged = f"{name}:{_digest(debian, target.python, *target.packages, *files)}"
    if tagged not in podman.names():
        words = [f"--build-arg=BASE={debian}", f"--build-arg=PACKAGES={' '.join(target.packages)}"]
        if target.python != _OF_DEBIAN:
            words.append(f"--volume={python_folder(target.python)}:/python:ro")
        podman.build(tagged, _VENDOR, *words)
        podman.forget(name, but=tagged)
    return tagged


def _pip_settings() -> str:
    """Return pip's settings here that a build needs: its certificates and its index."""
    index = os.environ.get("PIP_INDEX_URL", "")
    chosen = f"index-url = {index}\n" if index else ""
    return f"[global]\ncert = /run/secrets/ca\n{chosen}"


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.extractfile(name)
    assert member is not None, f"{name} is a file"
    return member.read()


def _digest(*words: str) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:12]


def _key(target: Target) -> str:
    """Return the hash of everything that a build reads."""
    files = [PROJECT / name for name in _FILES]
    for folder in _SOURCES:
        files += [p for p in (PROJECT / folder).rglob("*") if "__pycache__" not in p.parts]
    if target.packages:
        files += _VENDOR.iterdir()
    words = " ".join((_BASE_SUITE, _BASE_PACKAGES, target.python, *target.packages))
    digest = hashlib.sha256(words.encode())
    for file in sorted(files):
        if file.is_file():
            digest.update(f"{file.relative_to(PROJECT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]
