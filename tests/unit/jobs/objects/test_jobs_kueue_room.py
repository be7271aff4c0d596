"""How many pods of one Job fit in a ClusterQueue."""

import math

import pytest

from jobs.objects.kueue import room

pytestmark = pytest.mark.fast

WORKER = {"cpu": "100m", "memory": "4Gi", "npu": "8"}


def queue(*groups, **spec):
    """A ClusterQueue: each group is a list of flavors, which are quotas by resource."""

    def flavor(quotas):
        return {"name": "f", "resources": [{"name": k, **v} for k, v in quotas.items()]}

    made = [
        {"coveredResources": sorted({k for f in fs for k in f}), "flavors": list(map(flavor, fs))}
        for fs in groups
    ]
    return {"spec": {"resourceGroups": made, **spec}}


def has(nominal, **more):
    return {"nominalQuota": nominal, **more}


def test_pods_take_one_flavor_of_each_group():
    host = {"cpu": has("0.3"), "memory": has("1Ti")}
    small, large = {"npu": has("8")}, {"npu": has("32")}
    assert room(queue([host], [small]), WORKER).pods == 1
    found = room(queue([host], [small, large]), WORKER)
    assert (found.pods, found.resource) == (3, "cpu"), "0.3 CPUs are three times 100m"
    both = [{**host, **small}, {"cpu": has("8"), "memory": has("8Gi"), "npu": has(64)}]
    assert room(queue(both), WORKER).pods == 2, "of one flavor, not of both"
    assert room(queue([{**host, "npu": has("7")}]), WORKER).pods == 0
    assert room(queue([{**host, "gpu": has("8")}], [small]), {"gpu": "0"}).pods == math.inf


def test_queue_of_a_cohort_borrows_as_much_as_it_may():
    of_npus = {"npu": has("8", borrowingLimit="8")}
    assert room(queue([of_npus], cohortName="all"), WORKER).pods == 2
    assert room(queue([of_npus], cohort="all"), WORKER).pods == 2
    assert room(queue([{"npu": has("0")}], cohortName="all"), WORKER).pods == math.inf
    assert room(queue([of_npus]), WORKER).pods == 1, "no cohort lends"
