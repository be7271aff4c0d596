"""The access to Kubernetes, against a server that returns the errors of real API servers."""

import pytest
from kubernetes import client

from collector.codec.errors import BadInput
from jobs.kube import requests
from jobs.kube.cluster import Cluster
from jobs.kube.errors import (
    ClusterAway,
    ClusterError,
    ObjectConflict,
    ObjectMissing,
    cluster_error,
)
from jobs.kube.requests import RateLimit
from jobs.objects.job_manifest import (
    ALL_FEATURES,
    DEGRADED,
    SPEC_HASH,
    Features,
    features_of,
    unknown_fields,
)
from tests.servers.scripted import Answer, ScriptedServer

pytestmark = pytest.mark.server

JOBS = "/apis/batch/v1/namespaces/bench/jobs"
JOB = {
    "metadata": {"name": "wave-1", "annotations": {SPEC_HASH: "abc"}},
    "spec": {"completions": 3},
}
BUSY = Answer(429, {"message": "too many requests"}, {"Retry-After": "0"})
AWAY = Answer(503, {"message": "shutting down"})


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    monkeypatch.setattr(requests, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(requests, "_TIMEOUT_S", (0.5, 0.5))


@pytest.fixture
def cluster_of():
    """A cluster whose server returns these responses."""
    servers = []

    def make(*answers, **patience):
        server = ScriptedServer(answers)
        servers.append(server)
        server.__enter__()
        settings = client.Configuration(host=server.url)
        settings.retries = False
        api = client.ApiClient(settings)
        return Cluster(api, "bench", RateLimit(rate=1000.0), **patience), server

    yield make
    for server in servers:
        server.__exit__(None, None, None)


def listing(*names, token="", kind="Job"):
    items = [{"kind": kind, "metadata": {"name": name}} for name in names]
    return Answer(200, {"items": items, "metadata": {"continue": token, "resourceVersion": "7"}})


@pytest.mark.parametrize("trouble", [BUSY, AWAY, Answer(500), Answer(cut=True)])
def test_creation_is_retried_while_the_server_is_overloaded(cluster_of, trouble):
    cluster, server = cluster_of(trouble, trouble, Answer(201, JOB))
    assert cluster.create_or_adopt(JOB)
    assert [request.method for request in server.requests] == ["POST"] * 3
    assert {request.path for request in server.requests} == {JOBS}
    assert server.requests[-1].query == {"fieldValidation": "Strict", "fieldManager": "opmeter"}


def test_patch_is_server_side_applied_and_retried(cluster_of):
    cluster, server = cluster_of(BUSY, Answer(200, JOB))
    cluster.patch_job("wave-1", {"parallelism": 2, "suspend": False})
    one, two = server.requests
    assert one == two and two.method == "PATCH" and two.query["force"] == "true"
    assert two.content_type == "application/apply-patch+yaml"
    assert two.body["spec"] == {"parallelism": 2, "suspend": False}


def test_existing_job_is_adopted_if_its_specification_is_equal(cluster_of):
    cluster, _ = cluster_of(Answer(409, {"message": "exists"}), Answer(200, JOB))
    assert not cluster.create_or_adopt(JOB)
    other = {"metadata": {"name": "wave-1", "annotations": {SPEC_HASH: "xyz"}}}
    cluster, _ = cluster_of(Answer(409, {"message": "exists"}), Answer(200, other))
    with pytest.raises(ObjectConflict, match="wave-1"):
        cluster.create_or_adopt(JOB)


def test_creation_with_a_lost_reply_adopts_its_own_job(cluster_of):
    cluster, server = cluster_of(Answer(cut=True), Answer(409), Answer(200, JOB))
    assert not cluster.create_or_adopt(JOB)
    assert [request.method for request in server.requests] == ["POST", "POST", "GET"]


def test_silent_server_is_given_up_in_bounded_time(cluster_of):
    for patience_s, most in ((0.6, 2), (0.0, 1)):
        cluster, server = cluster_of(Answer(200, {}, silent_s=30), patience_s=patience_s)
        with pytest.raises(ClusterAway):
            cluster.version()
        assert len(server.requests) <= most  # the client itself repeats no request


def test_truncated_response_is_retried(cluster_of):
    cut = Answer(200, '{"gitVersion": "v1.', {"X": "y"})
    cluster, server = cluster_of(Answer(cut=True), Answer(200, {"gitVersion": "v1.36.3"}))
    assert cluster.version() == "v1.36.3" and len(server.requests) == 2
    cluster, _ = cluster_of(cut)
    with pytest.raises(ClusterAway, match="gitVersion"):
        cluster.version()


def test_refusal_is_reported_in_the_words_of_the_server_and_not_retried(cluster_of):
    cluster, server = cluster_of(Answer(403, {"message": "exceeded quota: pods"}))
    with pytest.raises(ClusterError, match="403: exceeded quota: pods"):
        cluster.create_or_adopt(JOB)
    assert len(server.requests) == 1


def test_long_listing_is_read_in_pages(cluster_of):
    cluster, server = cluster_of(listing("a", "b", token="next"), listing("c"))
    assert [pod["metadata"]["name"] for pod in cluster.pods("x=y")] == ["a", "b", "c"]
    assert [request.query.get("continue") for request in server.requests] == [None, "next"]
    assert all(request.query["limit"] == "500" for request in server.requests)


def test_expired_listing_is_started_again(cluster_of):
    gone = Answer(410, {"message": "the provided continue parameter is too old"})
    cluster, server = cluster_of(
        listing("a", "b", token="old"), gone, listing("a", token="new"), listing("c")
    )
    assert sorted(job["metadata"]["name"] for job in cluster.jobs("x")) == ["a", "b", "c"]
    assert len(server.requests) == 4


def test_forbidden_node_list_is_empty(cluster_of):
    cluster, _ = cluster_of(Answer(403, {"message": "forbidden"}))
    assert cluster.nodes() == []
    assert list(cluster.pods_everywhere("")) == []
    cluster, _ = cluster_of(AWAY)
    with pytest.raises(ClusterAway):
        cluster.nodes()


def test_deletion_of_a_missing_object_succeeds(cluster_of):
    cluster, server = cluster_of(Answer(404, {"message": "not found"}))
    cluster.delete_job("wave-1")
    assert server.requests[0].body == {"propagationPolicy": "Background"}
    with pytest.raises(ObjectMissing):
        cluster.delete_config_map("c")
    assert cluster.lease("l") is None
    assert not cluster.has_api("kueue.x-k8s.io")


KUEUE = Answer(200, {"preferredVersion": {"groupVersion": "kueue.x-k8s.io/v1beta1"}})


@pytest.mark.parametrize(
    ("kept", "queued"),
    [
        ({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "default"}}}, True),
        ({"spec": {"suspend": True}}, True),
        ({"spec": {"suspend": False}}, False),
        ({}, False),
    ],
)
def test_dry_run_detects_a_queue_that_suspends_new_jobs(kept, queued):
    sent = {"spec": {"suspend": False}}
    assert features_of(sent, kept).queued is queued
    assert features_of({"spec": {"suspend": True}}, {"spec": {"suspend": True}}).queued is False


def test_workloads_are_read_in_the_preferred_version(cluster_of):
    cluster, server = cluster_of(KUEUE, listing("job-a", kind="Workload"))
    assert [one["metadata"]["name"] for one in cluster.kueue.workloads()] == ["job-a"]
    assert server.requests[1].path == "/apis/kueue.x-k8s.io/v1beta1/namespaces/bench/workloads"


@pytest.mark.parametrize("answers", [[Answer(404)], [KUEUE, Answer(403)], [Answer(403)]])
def test_workloads_are_empty_if_kueue_is_missing_or_forbidden(cluster_of, answers):
    cluster, _ = cluster_of(*answers)
    assert cluster.kueue.workloads() == []


def test_unavailable_api_server_is_not_mistaken_for_one_without_kueue(cluster_of):
    cluster, _ = cluster_of(*[AWAY] * 20)
    with pytest.raises(ClusterAway):
        cluster.kueue.workloads()


def test_queues_are_read_by_name_and_a_missing_one_is_reported(cluster_of):
    queue = Answer(200, {"spec": {"clusterQueue": "cq"}})
    cluster, server = cluster_of(KUEUE, queue, KUEUE, Answer(404))
    assert cluster.kueue.local_queue("team") == queue.body
    with pytest.raises(ObjectMissing):
        cluster.kueue.cluster_queue("cq")
    paths = [request.path for request in server.requests]
    assert paths[1].endswith("/v1beta1/namespaces/bench/localqueues/team")
    assert paths[3].endswith("/v1beta1/clusterqueues/cq")


def test_repeated_announcement_is_one_event(cluster_of):
    cluster, server = cluster_of(Answer(201), Answer(409))
    owner = {"metadata": {"name": "campaign", "namespace": "bench", "uid": "u"}}
    cluster.announce(owner, "NodeLost", "n1 is silent for 5 s", about="n1", warning=True)
    cluster.announce(owner, "NodeLost", "n1 is silent for 9 s", about="n1", warning=True)
    one, two = (request.body for request in server.requests)
    assert one["metadata"]["name"] == two["metadata"]["name"]
    assert one["involvedObject"]["uid"] == "u" and one["type"] == "Warning"


def change(name, kind="MODIFIED"):
    return {"type": kind, "object": {"metadata": {"name": name}}}


def test_watch_starts_at_the_current_version_and_yields_names(cluster_of):
    cluster, server = cluster_of(listing(), Answer(lines=[change("a"), change("b")]))
    assert list(cluster.watch_jobs("x=y", 1)) == ["a", "b"]
    assert server.requests[1].query == {
        "watch": "true",
        "timeoutSeconds": "1",
        "labelSelector": "x=y",
        "resourceVersion": "7",
    }


def test_expired_watch_ends(cluster_of):
    gone = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}
    cluster, _ = cluster_of(listing(), Answer(lines=[change("a"), gone, change("never")]))
    assert list(cluster.watch_jobs("x=y", 1)) == ["a"]
    cluster, _ = cluster_of(listing(), Answer(410, {"message": "too old"}))
    assert list(cluster.watch_jobs("x=y", 1)) == []


def test_watch_of_a_dead_connection_ends(cluster_of):
    cluster, _ = cluster_of(listing(), Answer(lines=[change("a")], open_s=60))
    assert list(cluster.watch_jobs("x=y", 0)) == ["a"]


def test_all_requests_share_one_rate_limit():
    slept, now = [], [0.0]
    budget = RateLimit(rate=5.0, burst=2.0, clock=lambda: now[0], sleep=slept.append)
    for _ in range(5):
        budget.take()
    assert slept == pytest.approx([0.2, 0.4, 0.6])
    now[0] = 10.0
    budget.take()
    assert len(slept) == 3


def test_retry_after_of_the_server_is_used():
    error = cluster_error(429, "busy", "7")
    assert isinstance(error, ClusterAway) and error.retry_after_s == 7
    assert cluster_error(429, "busy", "Thu, 01 Jan 2026 00:00:00 GMT").retry_after_s == 0


def test_field_dropped_by_a_dry_run_is_a_missing_feature():
    spec = dict.fromkeys(
        ["completionMode", "podFailurePolicy", "backoffLimitPerIndex", "podReplacementPolicy"], 1
    )
    sent = {"spec": spec}
    assert features_of(sent, sent) == ALL_FEATURES
    kept = {k: v for k, v in spec.items() if k != "podReplacementPolicy"}
    assert features_of(sent, {"spec": kept}) == Features(True, False)
    kept.pop("backoffLimitPerIndex")
    assert features_of(sent, {"spec": kept}) == DEGRADED
    kept.pop("podFailurePolicy")
    with pytest.raises(BadInput, match=r"podFailurePolicy.*\b1\.26\b"):
        features_of(sent, {"spec": kept})


def test_old_server_that_refuses_the_fields_lacks_the_features():
    words = 'strict decoding error: unknown field "spec.backoffLimitPerIndex"'
    assert unknown_fields(words) == DEGRADED
    assert unknown_fields('strict decoding error: unknown field "spec.typo"') is None
    assert unknown_fields("403: forbidden") is None


def test_daemon_sets_of_all_namespaces_are_listed_or_unknown(cluster_of):
    cluster, server = cluster_of(listing("plugin", token="more"), listing("plugin"))
    assert cluster.daemon_sets() is not None and len(server.requests) == 2
    cluster, _ = cluster_of(Answer(403, {"message": "forbidden"}))
    assert cluster.daemon_sets() is None


def test_rights_of_another_account_are_reviewed_in_its_name(cluster_of):
    cluster, server = cluster_of(Answer(201, {"status": {"allowed": True}}), Answer(403))
    assert cluster.may("list", "batch", "jobs", account="opmeter-controller")
    (request,) = server.requests
    assert request.path.endswith("/namespaces/bench/localsubjectaccessreviews")
    assert request.body["spec"]["user"] == "system:serviceaccount:bench:opmeter-controller"
    with pytest.raises(ClusterError):
        cluster.may("list", "batch", "jobs", account="opmeter-controller")


def test_right_to_one_object_is_reviewed_by_its_name(cluster_of):
    allowed = Answer(201, {"status": {"allowed": True}})
    cluster, server = cluster_of(allowed, allowed, allowed)
    of_lease = ("update", "coordination.k8s.io", "leases", "opmeter-merge")
    assert cluster.may(*of_lease) and cluster.may(*of_lease, account="it")
    assert cluster.may("create", *of_lease[1:3])
    reviewed = [one.body["spec"]["resourceAttributes"].get("name") for one in server.requests]
    assert reviewed == ["opmeter-merge", "opmeter-merge", None]
