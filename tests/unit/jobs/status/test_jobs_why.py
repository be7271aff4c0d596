"""Why a campaign on a cluster waits: who says so is passed on in their own words."""

import pytest

from jobs.status.why import Seen, explain, running_pods, waiting_pods

pytestmark = pytest.mark.fast

LEASE = {"spec": {"holderIdentity": "me", "renewTime": "2026-08-01T10:00:00.000000Z"}}


def config_map(**metadata):
    return {"metadata": {"name": "opmeter-campaign-c", "namespace": "n", "uid": "cm", **metadata}}


def job(name="wave", *, labels=None, suspend=False, conditions=(), **status):
    component = {"app.kubernetes.io/component": "worker"}
    metadata = {"name": name, "uid": f"uid-of-{name}", "labels": component | (labels or {})}
    spec = {"completions": 8, "parallelism": 4, "suspend": suspend}
    return {
        "metadata": metadata,
        "spec": spec,
        "status": {**status, "conditions": list(conditions)},
    }


def pod(name="p0", phase="Pending", *, of="wave", spec=None, waiting=None, why=None, **metadata):
    labels = {"batch.kubernetes.io/job-name": of, "app.kubernetes.io/component": "worker"}
    status = {"phase": phase}
    if why:
        status["conditions"] = [{"type": "PodScheduled", "status": "False", "message": why}]
    if waiting:
        status["containerStatuses"] = [{"state": {"waiting": waiting}}]
    return {
        "metadata": {"name": name, "labels": labels, **metadata},
        "spec": spec or {},
        "status": status,
    }


def event(kind, name, message, *, reason="Said", warning=True, at="2026-08-01T10:00:00Z"):
    return {
        "metadata": {"name": f"{name}.{message}"},
        "involvedObject": {"kind": kind, "name": name},
        "reason": reason,
        "message": message,
        "type": "Warning" if warning else "Normal",
        "lastTimestamp": at,
    }


def lines(cm=None, lease=LEASE, **more):
    parts = {key: tuple(value) for key, value in more.items() if key != "quarantined"}
    quarantined = frozenset(more.get("quarantined", ()))
    seen = Seen("n", "c", cm or config_map(), lease, **parts, quarantined=quarantined)
    return list(explain(seen))


def line(beginning, found):
    return next(text for text in found if text.startswith(beginning))


def test_pods_that_wait_for_the_same_are_one_line_in_the_schedulers_words():
    pods = [pod(f"p{i}", why="0/2 nodes are available: 2 Insufficient cpu") for i in range(3)]
    pods += [pod("r", "Running", spec={"nodeName": "n1"})]
    found = lines(jobs=[job()], pods=pods)
    assert line("pods", found) == "pods        3 pending, 1 running"
    assert line("pending", found) == (
        "pending     3 (as p0): the scheduler: 0/2 nodes are available: 2 Insufficient cpu"
    )
    assert running_pods(pods) == 1 and len(waiting_pods(pods)) == 3


def test_volcano_is_quoted_with_what_it_says_of_the_group():
    waits = pod(spec={"schedulerName": "volcano"}, why="1/1 tasks in gang unschedulable")
    about = "podgroup-uid-of-wave"
    events = [
        event("PodGroup", about, "older", at="2026-08-01T09:00:00Z"),
        event("PodGroup", about, "npu topology: job should be equal to node npu"),
        event("PodGroup", "podgroup-of-somebody-else", "not ours"),
    ]
    assert line("pending", lines(jobs=[job()], pods=[waits], events=events)) == (
        "pending     1 (as p0): Volcano: 1/1 tasks in gang unschedulable; "
        "of its group: npu topology: job should be equal to node npu"
    )


def test_volcano_that_says_nothing_on_the_pod_is_quoted_from_its_events():
    waits = pod(spec={"schedulerName": "volcano"})
    said = event("Pod", "p0", "queue is full")
    assert "Volcano: queue is full" in line("pending", lines(pods=[waits], events=[said]))
    assert "Volcano: no word yet" in line("pending", lines(pods=[waits]))


def test_kueue_is_quoted_for_a_job_that_it_has_not_admitted():
    queued = job(labels={"kueue.x-k8s.io/queue-name": "team"}, suspend=True)
    words = "couldn't assign flavors: insufficient unused quota"
    said = event("Workload", "job-wave-0a1b2", words)
    assert line("job", lines(jobs=[queued], events=[said])) == (
        f"job         wave: 0 of 8 done; suspended: Kueue has it in the queue team: {words}"
    )
    assert "kubectl get workloads.kueue.x-k8s.io" in line("job", lines(jobs=[queued]))


def workload(*conditions, of="wave", active=True):
    said = [
        {"type": kind, "status": str(true), "reason": reason, "message": message}
        for kind, true, reason, message in conditions
    ]
    owner = {"kind": "Job", "name": of, "uid": f"uid-of-{of}"}
    return {
        "metadata": {"name": f"job-{of}", "ownerReferences": [owner]},
        "spec": {"active": active},
        "status": {"conditions": said},
    }


MISSING = ("QuotaReserved", False, "Inadmissible", "LocalQueue team doesn't exist")
UNNAMED = ("QuotaReserved", False, "Misconfigured", "LocalQueue  doesn't exist")
NO_CLUSTER_QUEUE = ("QuotaReserved", False, "Inadmissible", "ClusterQueue cq doesn't exist")
HELD = ("QuotaReserved", False, "Inadmissible", "ClusterQueue cq is stopped")
INACTIVE = ("QuotaReserved", False, "Suspended", "LocalQueue team is inactive")
FULL = ("QuotaReserved", False, "Pending", "insufficient unused quota for cpu in flavor f")
UNCOVERED = (
    *("QuotaReserved", False, "NoMatchingFlavor"),
    "resource ephemeral-storage unavailable in ClusterQueue",
)
LATE = ("Evicted", True, "PodsReadyTimeout", "Exceeded the PodsReady timeout ns/job-wave")
GIVEN_UP = (
    *("Evicted", True, "DeactivatedDueToRequeuingLimitExceeded"),
    "The workload is deactivated due to exceeding the maximum number of re-queuing retries",
)


@pytest.mark.parametrize(
    ("of_kueue", "help"),
    [
        (workload(MISSING), "create that LocalQueue"),
        (workload(UNNAMED), "site.kueue_queue"),
        (workload(NO_CLUSTER_QUEUE), "create that ClusterQueue"),
        (workload(HELD), "stopPolicy"),
        (workload(INACTIVE), "stopPolicy"),
        (workload(FULL), "ask for more quota"),
        (workload(UNCOVERED), "coveredResources"),
        (workload(LATE, ("QuotaReserved", False, "Pending", "")), "waitForPodsReady"),
        (workload(GIVEN_UP, active=False), '"active":true'),
        (workload(active=False), '"active":true'),
    ],
)
@pytest.mark.parametrize("component", ["worker", "merge"])
def test_what_a_workload_says_is_quoted_with_what_helps(of_kueue, help, component):
    """Its Events may be gone, and a missing queue has none."""
    named = {} if "LocalQueue  " in str(of_kueue) else {"kueue.x-k8s.io/queue-name": "team"}
    labels = {"app.kubernetes.io/component": component} | named
    found = lines(jobs=[job(suspend=True, labels=labels)], workloads=[of_kueue])
    said = line("job", found)
    conditions = of_kueue["status"]["conditions"]
    assert "Kueue has it" in said and all(c["message"] in said for c in conditions)
    (what,) = help_in(found)
    assert help in what


def test_a_merge_that_somebody_else_has_suspended_is_not_said_to_go_on_by_itself():
    merge = job("merge", suspend=True, labels={"app.kubernetes.io/component": "merge"})
    assert "somebody else has suspended it" in line("job", lines(jobs=[merge]))


def test_jobs_that_wait_for_the_same_are_one_line_and_of_many_only_the_newest_are_told():
    labels = {"kueue.x-k8s.io/queue-name": "team"}
    waiting = [job(f"w{i}", suspend=True, labels=labels) for i in range(9)]
    running = [job(f"r{i}") for i in range(40)]
    found = lines(jobs=waiting + running, workloads=[workload(FULL, of=f"w{i}") for i in range(9)])
    assert len([text for text in found if text.startswith("job ")]) < 16
    (queued,) = [text for text in found if "insufficient" in text]
    assert "(and 8 more)" in queued


def test_who_pauses_is_told_how_to_stop_what_belongs_to_kueue():
    paused = config_map(annotations={"opmeter.io/paused": "true"})
    running = job(labels={"kueue.x-k8s.io/queue-name": "team"})
    found = "\n".join(lines(paused, jobs=[running]))
    assert "kubectl -n n patch workloads.kueue.x-k8s.io NAME --type=merge -p" in found
    assert '"active":false' in found
    assert "active" not in "\n".join(lines(jobs=[running]))


def test_a_pause_says_how_it_ends():
    paused = config_map(annotations={"opmeter.io/paused": "true"})
    found = lines(paused, jobs=[job(suspend=True)])
    assert "opmeter pause c --resume" in line("cluster", found)
    assert line("job", found).endswith("suspended: the campaign is paused")


def test_the_controllers_newest_reason_for_a_suspension_is_told():
    events = [
        event("ConfigMap", "opmeter-campaign-c", "wave: old", reason="Suspended", at="1"),
        event("ConfigMap", "opmeter-campaign-c", "wave: the store is away", reason="Suspended"),
        event("ConfigMap", "opmeter-campaign-c", "other: not ours", reason="Suspended", at="9"),
    ]
    found = line("job", lines(jobs=[job(suspend=True)], events=events))
    assert found.endswith("suspended: the store is away")
    assert "nobody has said why" in line("job", lines(jobs=[job(suspend=True)]))


@pytest.mark.parametrize(
    ("one", "events", "words"),
    [
        (
            pod(
                spec={"nodeName": "n1"},
                waiting={"reason": "ImagePullBackOff", "message": "no such image"},
            ),
            [],
            "ImagePullBackOff: no such image",
        ),
        (
            pod(spec={"nodeName": "n1"}, waiting={"reason": "ContainerCreating"}),
            [event("Pod", "p0", 'secret "s3" not found', reason="FailedMount")],
            'starting on n1: secret "s3" not found',
        ),
        (pod(spec={"nodeName": "n1"}), [], "starting on n1"),
        (
            pod(spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}),
            [],
            "held back by kueue.x-k8s.io/admission",
        ),
    ],
)
def test_what_keeps_a_pod_from_starting_is_told(one, events, words):
    assert line("pending", lines(pods=[one], events=events)) == f"pending     1 (as p0): {words}"


def test_a_job_whose_pods_are_refused_says_by_what():
    refused = event("Job", "wave", 'violates PodSecurity "restricted"', reason="FailedCreate")
    found = line("job", lines(jobs=[job()], events=[refused]))
    assert found.endswith('FailedCreate: violates PodSecurity "restricted"')


def help_in(found):
    return [text.split("what helps: ")[1] for text in found if "what helps: " in text]


def test_each_trouble_comes_with_what_helps():
    waits = pod(why="0/2 nodes are available: 2 Insufficient huawei.com/Ascend910")
    assert "wait for devices" in help_in(lines(jobs=[job()], pods=[waits]))[0]
    pull = {"reason": "ImagePullBackOff", "message": "not found"}
    assert "pull secret" in help_in(lines(pods=[pod(spec={"nodeName": "n"}, waiting=pull)]))[0]
    mount = event("Pod", "p0", 'MountVolume.SetUp failed: secret "s3" not found')
    assert "store_secret" in help_in(lines(pods=[pod(spec={"nodeName": "n"})], events=[mount]))[0]
    why = "wave: p0 does not start: ErrImagePull: no such host"
    said = event("ConfigMap", "opmeter-campaign-c", why, reason="Suspended")
    assert "pull secret" in help_in(lines(jobs=[job(suspend=True)], events=[said]))[0]
    stuck = pod("p9", "Running", spec={"nodeName": "n7"}, deletionTimestamp="2026")
    assert "kubectl delete node n7" in help_in(lines(pods=[stuck]))[0]


def test_what_goes_its_way_wants_no_help():
    paused = config_map(annotations={"opmeter.io/paused": "true"})
    assert not help_in(lines(paused, jobs=[job(suspend=True)]))
    assert not help_in(lines(jobs=[job(suspend=True)], pods=[pod(spec={"nodeName": "n1"})]))
    assert not help_in(lines(pods=[pod()]))
    assert not help_in(lines(pods=[pod(spec={"schedulingGates": [{"name": "gate"}]})]))


def test_a_job_that_ended_says_how():
    failed = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "43"}
    found = line("job", lines(jobs=[job(conditions=[failed], succeeded=3, failed=2)]))
    assert found == "job         wave: 3 of 8 done, 2 pods failed; failed: 43"


def test_without_a_leader_it_is_said_that_nothing_will_happen():
    for lease in (None, {"spec": {"holderIdentity": ""}}):
        assert "none leads" in line("controller", lines(lease=lease))
    assert "me leads" in line("controller", lines())


def test_nodes_in_quarantine_and_pods_that_do_not_end_are_named():
    stuck = pod("p9", "Running", spec={"nodeName": "n7"}, deletionTimestamp="2026")
    found = lines(pods=[stuck], quarantined=["n3", "n2"])
    assert line("quarantine", found).startswith("quarantine  n2, n3:")
    assert line("ending", found) == "ending      1 on n7 (as p9) do not end"


def test_only_the_newest_warnings_of_the_campaign_are_told():
    name = "opmeter-campaign-c"
    events = [event("ConfigMap", name, f"m{i}", at=f"2026-08-0{i}") for i in range(1, 9)]
    events.append(event("ConfigMap", name, "all is well", warning=False, at="2026-09-01"))
    told = [text for text in lines(events=events) if text.startswith("event")]
    assert told == [f"event       Said: m{i}" for i in range(4, 9)]
