"""What the runtime of a node holds from its first second: images are unpacked once on a machine,
and nodes get links to them.

The project's image is 0.9 GB: to import it a node writes it twice over, with a core for fifteen
seconds, and eight nodes begin together where four clusters stand beside each other.
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
    """The file that tells that a node, or what its runtime is filled from, has an archive."""
    return node / _MARKERS / f"{archive.parent.name}-{archive.name}"


def fill(cache: Path, archives: Sequence[Path]) -> None:
    """Have what nodes that start from now on are given: the images of these archives, whose names
    change with their content."""
    with _lock(cache, fcntl.LOCK_EX):
        wanted = _home(cache) / _key(archives)
        if wanted.is_dir():
            return
        shutil.rmtree(_home(cache), ignore_errors=True)  # an older image, which nobody asks for
        _home(cache).mkdir(parents=True)
        with tempfile.TemporaryDirectory(dir=_home(cache)) as scratch:
            _import(Path(scratch), archives)
            node = Path(scratch) / "node"
            (node / _ROOT).parent.mkdir(parents=True)
            (Path(scratch) / "root").rename(node / _ROOT)
            for archive in archives:
                marker(node, archive).parent.mkdir(exist_ok=True)
                marker(node, archive).touch()
            node.rename(wanted)


def give(cache: Path, node: Path) -> None:
    """Fill the runtime of a node that has never run, where anything is there for it and on the
    same disk: files are linked, which a runtime only reads, and databases are copied. Whoever is
    killed meanwhile leaves no half of it: a runtime would write into the databases of all."""
    if (node / _ROOT).exists() or not _home(cache).is_dir():
        return
    with _lock(cache, fcntl.LOCK_SH):
        for filled in fillings(cache):
            if filled.stat().st_dev == node.stat().st_dev:
                _link(filled, node)


def fillings(cache: Path) -> list[Path]:
    """What nodes are filled from, each as the folder of a node: not what a `fill` that was killed
    has left."""
    return [home for home in _home(cache).iterdir() if (home / _MARKERS).is_dir()]


def _import(folder: Path, archives: Sequence[Path]) -> None:
    """Unpack archives into `root`, by a runtime of its own that ends with it."""
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
    fresh = Path(tempfile.mkdtemp(prefix="filling-", dir=node))  # a killed command's cp may go on
    command(["cp", "-al", f"{filled}/.", fresh])
    for database in (fresh / _ROOT).glob("*/*.db"):
        _unlink(database)
    for part in (_MARKERS, _ROOT):  # the root last: where it is, all is
        command(["rm", "-rf", node / part])
        (node / part).parent.mkdir(exist_ok=True)
        (fresh / part).rename(node / part)


def _unlink(file: Path) -> None:
    """Give a file content of its own."""
    fresh = file.with_suffix(".new")
    shutil.copy2(file, fresh)
    fresh.rename(file)


def _key(archives: Sequence[Path]) -> str:
    runtime = command(["containerd", "--version"])  # its files are its own version's
    names = [str(archive) for archive in archives]
    return hashlib.sha256("\n".join([runtime, *names]).encode()).hexdigest()[:16]


def _home(cache: Path) -> Path:
    return cache / "filled-nodes"


@contextmanager
def _lock(cache: Path, how: int) -> Iterator[None]:
    with (cache / "filled-nodes.lock").open("w") as file:
        fcntl.flock(file, how)
        yield
