"""Drills: gangs that lose pods, and a node. Each ends with a complete, verified database."""

from contextlib import suppress
from functools import partial

import pytest

from tests.cluster.drill import Drill
from tests.cluster.faults import Faults
from tests.cluster.gangs import check_gang, wait_for_both

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]

_INDEX = "batch.kubernetes.io/job-completion-index"


def test_gang_whose_pods_are_killed_is_started_again(gang: Drill, faults: Faults):
    """First one that lends its ranks, then the one that measures."""
    gang.launch()
    for index in ("1", "0"):
        wait_for_both(gang)
        gang.observe(8)  # until ranks have begun
        (victim,) = (p for p in gang.workers() if p["metadata"]["labels"][_INDEX] == index)
        name = victim["metadata"]["name"]
        with suppress(RuntimeError):
            faults.kill_container(gang.namespace, name)
        gang.wait("it is gone", partial(is_gone, gang, name))
    check_gang(gang)


def is_gone(gang: Drill, name: str) -> bool:
    return name not in {worker["metadata"]["name"] for worker in gang.workers()}


def test_gang_survives_a_power_loss_of_a_node(gang: Drill, faults: Faults):
    gang.launch()
    wait_for_both(gang)
    gang.observe(10)
    with faults.node_dead("node2"):
        gang.observe(30)
    check_gang(gang)
