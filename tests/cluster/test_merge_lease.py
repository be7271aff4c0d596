"""A store without conditional writes, on a real cluster: merges take turns by a Lease."""

from typing import Any

import pytest

from collector.database.commits import find_head, history
from jobs.kube.leader_election import MERGE_LEASE
from jobs.objects.applied_campaign import LEASED, config_map_name
from tests.cluster.drill import WORKERS, Drill
from tests.servers.faults import Answer, FaultProxy, Rule

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]

MERGES = "app.kubernetes.io/component=merge"
_UNKNOWN = b"<Error><Code>NotImplemented</Code><Message>If-None-Match</Message></Error>"
_API = "/var/run/secrets/kubernetes.io/serviceaccount"


def test_store_without_create_only_writes_is_merged_in_turns(drill: Drill, store_proxy: FaultProxy):
    store_proxy.add(Rule(Answer(501, _UNKNOWN), method="PUT", header="If-None-Match"))
    drill.speak_to_store_at(store_proxy.url)
    other = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": MERGE_LEASE},
        "spec": {"holderIdentity": "somebody", "leaseDurationSeconds": 20},
    }
    drill.namespace.create(other)
    drill.launch()
    drill.wait("a worker runs", lambda: bool(drill.workers()))
    assert not any(has_token(pod) for pod in drill.namespace.pods(WORKERS))
    drill.wait("a merge waits", lambda: bool(drill.namespace.pods(MERGES)))
    second_pod(drill)
    drill.finish()
    assert {commit.guard for commit in history(drill.store)} == {"lease"}
    head = find_head(drill.store)
    assert head is not None and head.number == 1
    assert "NoCreateOnly" in drill.reasons()
    applied = drill.namespace.get("configmaps", config_map_name(drill.name))
    assert applied["metadata"]["annotations"][LEASED] == drill.root
    lease = drill.namespace.get("leases", MERGE_LEASE)["spec"]
    assert lease["leaseTransitions"] >= 1  # taken over from a holder that fell silent
    drill.wait("both merges end", lambda: has_ended(drill))
    assert not drill.namespace.get("leases", MERGE_LEASE)["spec"].get("holderIdentity")
    assert find_head(drill.store) == head


def second_pod(drill: Drill) -> None:
    """A second pod for the same merge, as Kubernetes may start one; only these have a token."""
    assert all(has_token(pod) for pod in drill.namespace.pods(MERGES))
    job = drill.namespace.find("jobs", MERGES)[0]
    spec = job["spec"]["template"]["spec"]
    metadata = {"name": "beside", "labels": {"app.kubernetes.io/component": "merge"}}
    drill.namespace.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def has_ended(drill: Drill) -> bool:
    pods = drill.namespace.pods(MERGES)
    return all(pod["status"].get("phase") == "Succeeded" for pod in pods)


def has_token(pod: Any) -> bool:
    mounts = pod["spec"]["containers"][0]["volumeMounts"]
    return any(mount["mountPath"] == _API for mount in mounts)
