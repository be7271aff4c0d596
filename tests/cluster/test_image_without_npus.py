"""The image of workers on clusters without NPUs, built from the Dockerfile as a site would: it runs
the quickstart as a user who is not root. Several gigabytes of torch, and minutes."""

import pytest

from tests.cluster.testbed.images import COLLECTOR_CPU, podman_with
from tests.cluster.testbed.settings import NoCluster, from_environment
from tests.lacking import lacking

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

_QUICKSTART = (
    "cd /work && id -u && opmeter run quickstart && opmeter db verify && opmeter db pull out"
)


def test_the_workers_image_measures_the_quickstart():
    try:
        with podman_with(from_environment().cache, COLLECTOR_CPU) as podman:
            words = ("run", "--rm", "--read-only", "--volume=/work", "--network=none", podman.image)
            reported = podman(*words, "sh", "-c", _QUICKSTART)
    except NoCluster as error:
        lacking(str(error))
    print(reported)
    first, *lines = reported.splitlines()
    assert first == "1000"
    assert any(line.startswith("coverage") for line in lines)
