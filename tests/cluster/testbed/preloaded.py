"""The initial contents of a node's runtime: images are unpacked once on a machine, and nodes get
links to them.

The project's image is 0.9 GB: a node that imports it writes it twice, with a core for fifteen
seconds, and eight nodes start together if four clusters run concurrently.
"""

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.testbed.machine import command
from tests.cluster.testbed.processes import Daemon, wait_until

_SETTINGS = """\
version = 2
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{folder}/socket"
"""
_ROOT, _MARKERS = "containerd/root", "images"  # below the folder of a node
_START_S = 60.0


def marker(node: Path, archive: Path) -> Path:
    """Return the file that marks that a node, or its template, has an archive."""
    return node / _MARKERS / f"{archive.parent.name}-{archive.name}"


def fill(cache: Path, archives: Sequence[Path]) -> None:
    """Prepare the template for nodes that start from now on: the images of these archives, whose
    names change with their content."""
    with _lock(cache, fcntl.LOCK_EX):
        expected = _home(cache) / _key(archives)
        if expected.is_dir():
            return
        shutil.rmtree(_home(cache), ignore_errors=True)  # an older image, which is not used
        _home(cache).mkdir(parents=True)
        with tempfile.TemporaryDirectory(dir=_home(cache)) as scratch:
            _import(Path(scratch), archives)
            node = Path(scratch) / "node"
            (node / _ROOT).parent.mkdir(parents=True)
            (Path(scratch) / "root").rename(node / _ROOT)
            for archive in archives:
                marker(node, archive).parent.mkdir(exist_ok=True)
                marker(node, archive).touch()
            node.rename(expected)


def give(cache: Path, node: Path) -> None:
    """Fill the runtime of a node that has never run from the template, if there is one on the same
    disk: files are linked, since a runtime only reads them, and databases are copied. A killed fill
    leaves nothing partial: a runtime would write into the databases of all."""
    if (node / _ROOT).exists() or not _home(cache).is_dir():
        return
    with _lock(cache, fcntl.LOCK_SH):
        for filled in fillings(cache):
            if filled.stat().st_dev == node.stat().st_dev:
                _link(filled, node)


def fillings(cache: Path) -> list[Path]:
    """Return the templates of nodes, each as the folder of a node, without those of a killed
    `fill`."""
    return [home for home in _home(cache).iterdir() if (home / _MARKERS).is_dir()]


def _import(folder: Path, archives: Sequence[Path]) -> None:
    """Unpack archives into `root`, by a separate runtime that ends with it."""
    (folder / "settings.toml").write_text(_SETTINGS.format(folder=folder))
    runtime = Daemon("fill", folder, lambda: ["containerd", "-c", str(folder / "settings.toml")])
    ctr = ["ctr", "-a", str(folder / "socket"), "-n", "k8s.io"]
    runtime.start()
    try:
        wait_until("containerd", (folder / "socket").exists, _START_S, runtime)
        for archive in archives:
            command([*ctr, "images", "import", archive])
    finally:
        runtime.stop()


def _link(filled: Path, node: Path) -> None:
    fresh = Path(tempfile.mkdtemp(prefix="filling-", dir=node))  # a killed cp may still run
    command(["cp", "-al", f"{filled}/.", fresh])
    for database in (fresh / _ROOT).glob("*/*.db"):
        _unlink(database)
    for part in (_MARKERS, _ROOT):  # the root last: if it exists, everything does
        command(["rm", "-rf", node / part])
        (node / part).parent.mkdir(exist_ok=True)
        (fresh / part).rename(node / part)


def _unlink(file: Path) -> None:
    """Replace a link by a copy of its content."""
    fresh = file.with_suffix(".new")
    shutil.copy2(file, fresh)
    fresh.rename(file)


def _key(archives: Sequence[Path]) -> str:
    runtime = command(["containerd", "--version"])  # its files belong to its version
    names = [str(archive) for archive in archives]
    return hashlib.sha256("\n".join([runtime, *names]).encode()).hexdigest()[:16]


def _home(cache: Path) -> Path:
    return cache / "filled-nodes"


@contextmanager
def _lock(cache: Path, how: int) -> Iterator[None]:
    with (cache / "filled-nodes.lock").open("w") as file:
        fcntl.flock(file, how)
        yield
