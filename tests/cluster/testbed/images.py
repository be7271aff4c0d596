"""The project's own image, built from its Dockerfile without a registry and without a daemon.

The base is made from Debian's packages. podman keeps its layers in the cache, so that a change of
the sources builds only the last layers again.
"""

import fcntl
import hashlib
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.testbed import machine

PROJECT = Path(__file__).parents[3]
_SOURCES = ("collector", "jobs", "opmeter", "images")
_FILES = ("Dockerfile", ".dockerignore", "LICENSE", "README.md", "pyproject.toml")
_BASE_SUITE = "bookworm"  # Python 3.11, as the requirements are locked for
_BASE_PACKAGES = "python3,python3-venv,ca-certificates"
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


def build_image(cache: Path, target: str = "controller") -> ProjectImage:
    """Return the image of a target of the Dockerfile, from the cache or built now (minutes, once).

    NoCluster if podman is not available, RuntimeError if the build fails.
    """
    machine.require_root()
    machine.require(machine.IMAGE_TOOLS)
    name, key = f"localhost/opmeter-{target}", _key()
    image = ProjectImage(f"{name}:{key}", cache / "images" / f"{target}-{key}.tar")
    if not image.archive.exists():
        podman = _Podman(cache / "podman")
        with podman.alone():
            if not image.archive.exists():  # built by another process in the meantime
                podman.build(image.name, target, _base(podman))
                image.archive.parent.mkdir(parents=True, exist_ok=True)
                podman.save(image.name, image.archive)
                podman.forget(name, but=image.name)
                _remove_older(image.archive, target)
    return image


def run_built(cache: Path, target: str, words: Sequence[str]) -> str:
    """Return the output of a command in a container of a target that is built here (several
    gigabytes for `collector-cpu`), without a network; it is kept only in podman's own store.

    NoCluster if podman is not available, RuntimeError if anything fails.
    """
    machine.require_root()
    machine.require(machine.IMAGE_TOOLS)
    name = f"localhost/opmeter-{target}"
    podman = _Podman(cache / "podman")
    with podman.alone():
        tagged = f"{name}:{_key()}"
        podman.build(tagged, target, _base(podman))
        podman.forget(name, but=tagged)
        return podman("run", "--rm", "--network=none", tagged, *words)


@dataclass(frozen=True, slots=True)
class _Podman:
    """podman, with all of its files below one folder."""

    folder: Path

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Allow one build at a time."""
        for part in ("lib", "run", "tmp"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            (self.folder / "containers.conf").write_text(_SETTINGS)
            (self.folder / "pip.conf").write_text(_pip_settings())
            yield

    def __call__(self, *words: str | Path) -> str:
        settings = {"CONTAINERS_CONF": str(self.folder / "containers.conf")}
        private = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _PODMAN]
        command = [*private, self.folder, *words]
        return machine.command(command, environment=settings, limit_s=3600)

    def build(self, name: str, target: str, base: str) -> None:
        certificates = os.environ.get("PIP_CERT") or _CERTIFICATES
        self(
            *("build", "--tag", name, "--target", target, "--build-arg", f"BASE={base}"),
            *("--pull=never", "--network=host", "--isolation=chroot", "--layers"),
            *("--secret", f"id=pip,src={self.folder}/pip.conf"),
            *("--secret", f"id=ca,src={certificates}"),
            PROJECT,
        )

    def has(self, name: str) -> bool:
        return name in self.names()

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


def _base(podman: _Podman) -> str:
    """Make a Debian with Python and nothing else, used if python:3.11-slim cannot be pulled."""
    digest = hashlib.sha256(f"{_BASE_SUITE} {_BASE_PACKAGES}".encode()).hexdigest()[:12]
    name = f"localhost/opmeter-base:{digest}"
    if not podman.has(name):
        archive = podman.folder / "base.tar"
        include = f"--include={_BASE_PACKAGES}"
        machine.command(["mmdebstrap", "--variant=minbase", include, _BASE_SUITE, archive])
        podman("import", archive, name)
        archive.unlink()
    return name


def _pip_settings() -> str:
    """Return pip's settings here that a build needs: its certificates and its index."""
    index = os.environ.get("PIP_INDEX_URL", "")
    chosen = f"index-url = {index}\n" if index else ""
    return f"[global]\ncert = /run/secrets/ca\n{chosen}"


def _remove_older(kept: Path, target: str) -> None:
    for archive in kept.parent.glob(f"{target}-*.tar"):
        if archive != kept:
            archive.unlink()


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.extractfile(name)
    assert member is not None, f"{name} is a file"
    return member.read()


def _key() -> str:
    """Return the hash of everything that a build reads."""
    files = [PROJECT / name for name in _FILES]
    for folder in _SOURCES:
        files += [p for p in (PROJECT / folder).rglob("*") if "__pycache__" not in p.parts]
    digest = hashlib.sha256(f"{_BASE_SUITE} {_BASE_PACKAGES}".encode())
    for file in sorted(files):
        if file.is_file():
            digest.update(f"{file.relative_to(PROJECT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]
