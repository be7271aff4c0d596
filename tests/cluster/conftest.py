"""The cluster of these tests: started here where none runs, and ended if these tests started it.

KUBECONFIG names another cluster instead; what harms nodes skips there. OPMETER_CLUSTER_KEEP=1 keeps
a cluster of our own running afterwards, so that the next run starts at once.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, users_cluster
from tests.cluster.faults import Faults
from tests.cluster.namespace import Namespace
from tests.cluster.testbed.settings import NoCluster, Settings, from_environment
from tests.cluster.testbed.testbed import Testbed, open_testbed
from tests.servers.faults import FaultProxy


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A cluster that runs; KUBECONFIG names it to whoever asks."""
    settings = from_environment()
    named = os.environ.get("KUBECONFIG")
    if named and Path(named).resolve() != settings.kubeconfig:
        yield users_cluster(Path(named))
        return
    testbed = _opened(settings)
    was_up = testbed.is_up()
    try:
        testbed.up()
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("KUBECONFIG", str(settings.kubeconfig))
            yield Cluster(testbed.kubectl, testbed)
    finally:
        if not was_up and os.environ.get("OPMETER_CLUSTER_KEEP") != "1":
            testbed.down()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    """A namespace of the test's own, whose pods must be `restricted`."""
    made = cluster.make_namespace()
    yield made
    made.remove()


@pytest.fixture
def testbed(cluster: Cluster) -> Testbed:
    """The machinery of a cluster of our own; skips where it is the user's."""
    return cluster.own


@pytest.fixture
def faults(testbed: Testbed) -> Faults:
    """What can go wrong with a cluster of our own; skips where it is the user's."""
    return Faults(testbed)


@pytest.fixture
def store_proxy(testbed: Testbed) -> Iterator[FaultProxy]:
    """Between pods and the object store, without rules; `url` is what pods are told."""
    with FaultProxy(testbed.store.endpoint, host=testbed.settings.gateway) as proxy:
        yield proxy


def _opened(settings: Settings) -> Testbed:
    try:
        return open_testbed(settings)
    except NoCluster as error:
        pytest.skip(str(error))
