"""The cluster of these tests: started here if none runs, and ended if these tests started it.

KUBECONFIG names another cluster instead; tests that change nodes are skipped there.
OPMETER_CLUSTER_KEEP=1 keeps our own cluster running, so that the next run starts at once.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.cluster import saboteur, scale
from tests.cluster.cluster import Cluster, users_cluster
from tests.cluster.drill import Drill
from tests.cluster.faults import Faults
from tests.cluster.gangs import as_gang
from tests.cluster.namespace import Namespace
from tests.cluster.npu_packages import write_packages
from tests.cluster.npus import as_npus
from tests.cluster.queues import SETTINGS, Queue
from tests.cluster.shipped import apply_base, remove_from_cluster
from tests.cluster.testbed.images import build_archives
from tests.cluster.testbed.kueue import build_kueue, install_kueue, remove_kueue
from tests.cluster.testbed.settings import (
    NoCluster,
    Settings,
    from_environment,
    process_of_tests,
)
from tests.cluster.testbed.testbed import Testbed, open_testbed
from tests.servers.faults import FaultProxy


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The long drills run only if they are named: pytest tests/cluster/long"""
    is_named = any("long" in Path(argument).parts for argument in config.args)
    return True if collection_path.name == "long" and not is_named else None


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster; KUBECONFIG names it."""
    settings = from_environment(beside=process_of_tests())
    named = os.environ.get("KUBECONFIG")
    if named and Path(named).resolve() != settings.kubeconfig:
        yield users_cluster(Path(named))
        return
    testbed = _opened(settings)
    was_up = testbed.is_up()
    try:
        _preload(testbed)
        testbed.up()
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("KUBECONFIG", str(settings.kubeconfig))
            yield Cluster(testbed.kubectl, testbed)
    finally:
        if not was_up and os.environ.get("OPMETER_CLUSTER_KEEP") != "1":
            testbed.down()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    """A namespace of one test, whose pods must be `restricted`."""
    made = cluster.make_namespace()
    yield made
    made.remove()


@pytest.fixture
def foreign(cluster: Cluster) -> Iterator[Namespace]:
    """A namespace of other users, whose pods the controller may not list."""
    made = cluster.make_namespace()
    yield made
    made.remove()


@pytest.fixture
def testbed(cluster: Cluster) -> Testbed:
    """The testbed of our own cluster; skips on the user's."""
    return cluster.own


@pytest.fixture
def faults(testbed: Testbed) -> Faults:
    """The faults of our own cluster; skips on the user's."""
    return Faults(testbed)


@pytest.fixture
def store_proxy(testbed: Testbed) -> Iterator[FaultProxy]:
    """A proxy between pods and the object store, without rules; pods get `url`."""
    with FaultProxy(testbed.store.endpoint, host=testbed.settings.gateway) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def own_site_packages(cluster: Cluster) -> Iterator[Path]:
    """The packages from which pods import torch, with a folder for a drill's orders: links to the
    installed ones, which cost neither time nor disk."""
    installed = cluster.site_packages()
    folder = Path(tempfile.mkdtemp(prefix="opmeter-drills-", dir=installed.parent))
    try:
        subprocess.run(["cp", "-al", f"{installed}/.", folder], check=True)
        shutil.copy(saboteur.__file__, folder / "sitecustomize.py")
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def own_npu_packages(cluster: Cluster) -> Iterator[Path]:
    """The same for pods of the collector's image: torch, torch_npu and a CANN."""
    cache = cluster.own.settings.cache
    folder = Path(tempfile.mkdtemp(prefix="npu-drills-", dir=cache))
    try:
        write_packages(folder)
        shutil.copy(saboteur.__file__, folder / "sitecustomize.py")
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def drill_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a drill, with the credentials that its processes read."""
    _skip_late()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path


@pytest.fixture
def drill(
    cluster: Cluster, namespace: Namespace, own_site_packages: Path, drill_files: Path
) -> Iterator[Drill]:
    """A small campaign, ready to be applied in a namespace with the accounts of the manifests."""
    with _ready(Drill(cluster, namespace, drill_files, own_site_packages)) as made:
        yield made


@pytest.fixture
def npu_drill(
    cluster: Cluster, namespace: Namespace, own_npu_packages: Path, drill_files: Path
) -> Iterator[Drill]:
    """The same on NPUs: the image of the collector, on the recording runtime."""
    with _ready(Drill(cluster, namespace, drill_files, own_npu_packages)) as made:
        as_npus(made)
        yield made


@pytest.fixture
def gang(drill: Drill) -> Drill:
    """A drill whose campaign is one gang over both nodes."""
    as_gang(drill)
    return drill


@pytest.fixture(scope="module")
def kueue(cluster: Cluster) -> Iterator[None]:
    """A Kueue that manages namespaces with a label, including jobs without a queue name, and
    requires pods to be ready in 40 s."""
    own = cluster.own
    try:
        built = build_kueue(own.settings.cache)
    except NoCluster as error:
        pytest.skip(str(error))
    own.load(built.image)
    install_kueue(built, cluster.kubectl, SETTINGS)
    yield
    remove_kueue(built, cluster.kubectl)


@pytest.fixture
def queue(kueue: None, drill: Drill) -> Iterator[Queue]:
    made = Queue(drill)
    yield made
    drill.opmeter.end()
    made.remove()


@pytest.fixture
def fleet(testbed: Testbed, namespace: Namespace, tmp_path: Path) -> Iterator[Namespace]:
    """A namespace with the accounts of the manifests, and 2,048 simulated NPUs."""
    apply_base(namespace, tmp_path / "base")
    try:
        testbed.kwok.add_nodes(scale.NODES, devices=scale.DEVICES)
        yield namespace
        namespace("delete", "jobs", "--all", "--cascade=foreground", "--timeout=600s")
    finally:
        testbed.kwok.stop()
        remove_from_cluster(namespace)


@contextmanager
def _ready(made: Drill) -> Iterator[Drill]:
    apply_base(made.namespace, made.folder / "base")
    made.prepare()
    made.order()
    yield made
    made.opmeter.end()
    remove_from_cluster(made.namespace)


def _skip_late() -> None:
    """Skip the remaining drills after OPMETER_DRILLS_UNTIL (seconds since 1970), so that later
    steps have their time."""
    until = os.environ.get("OPMETER_DRILLS_UNTIL")
    if until and time.time() > float(until):
        pytest.skip("OPMETER_DRILLS_UNTIL is in the past: run without it to include this drill")


def _preload(testbed: Testbed) -> None:
    """If the images cannot be built, tests that need them are skipped with the reason."""
    with suppress(NoCluster):
        testbed.preload(build_archives(testbed.settings.cache))


def _opened(settings: Settings) -> Testbed:
    try:
        return open_testbed(settings)
    except NoCluster as error:
        pytest.skip(str(error))
