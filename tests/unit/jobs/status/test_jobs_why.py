"""Why a campaign on a cluster waits: reasons of Kubernetes and Kueue are passed on verbatim."""

from datetime import UTC, datetime

import pytest

from jobs.status.why import ClusterObjects, explain, running_pods, waiting_pods
from tests.unit.jobs.printed import missing, numbers

pytestmark = pytest.mark.fast

NOW = datetime(2026, 8, 1, 10, 0, 10, tzinfo=UTC)
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
    seen = ClusterObjects(
        "n", "c", cm or config_map(), lease, NOW, **parts, quarantined=quarantined
    )
    return list(explain(seen))


def line(beginning, found):
    return next(text for text in found if text.startswith(beginning))


def test_pods_waiting_for_one_reason_are_one_line_in_the_schedulers_words():
    pods = [pod(f"p{i}", why="0/2 nodes are available: 2 Insufficient cpu") for i in range(3)]
    pods += [pod("r", "Running", spec={"nodeName": "n1"})]
    found = lines(jobs=[job()], pods=pods)
    assert "3 pending" in line("pods", found) and "1 running" in line("pods", found)
    (waits,) = [text for text in found if text.startswith("pending")]
    assert numbers(waits)[0] == "3" and "p0" in waits
    assert waits.endswith("0/2 nodes are available: 2 Insufficient cpu")
    assert running_pods(pods) == 1 and len(waiting_pods(pods)) == 3


def test_volcano_message_of_the_pod_group_is_quoted():
    waits = pod(spec={"schedulerName": "volcano"}, why="1/1 tasks in gang unschedulable")
    about = "podgroup-uid-of-wave"
    events = [
        event("PodGroup", about, "older", at="2026-08-01T09:00:00Z"),
        event("PodGroup", about, "npu topology: job should be equal to node npu"),
        event("PodGroup", "podgroup-of-somebody-else", "not ours"),
    ]
    said = line("pending", lines(jobs=[job()], pods=[waits], events=events))
    quoted = ["1/1 tasks in gang unschedulable", "npu topology: job should be equal to node npu"]
    assert missing(said, ["p0", "Volcano", *quoted]) == []
    assert "older" not in said and "not ours" not in said


def test_volcano_events_are_quoted_if_the_pod_has_no_message():
    waits = pod(spec={"schedulerName": "volcano"})
    said = event("Pod", "p0", "queue is full")
    quoted = line("pending", lines(pods=[waits], events=[said]))
    assert "Volcano" in quoted and quoted.endswith("queue is full")
    assert "Volcano" in line("pending", lines(pods=[waits]))
    assert not help_in(lines(pods=[waits]))


def test_kueue_is_quoted_for_a_job_that_it_has_not_admitted():
    queued = job(labels={"kueue.x-k8s.io/queue-name": "team"}, suspend=True)
    words = "couldn't assign flavors: insufficient unused quota"
    said = event("Workload", "job-wave-0a1b2", words)
    quoted = line("job", lines(jobs=[queued], events=[said]))
    assert missing(quoted, ["wave", "Kueue", "team"]) == [] and quoted.endswith(words)
    assert numbers(quoted) == ["0", "8"]
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
PREEMPTED = (
    *("Evicted", True, "Preempted"),
    "Preempted to accommodate a workload (UID: 1, JobUID: 2) due to prioritization",
)
TOO_LARGE = (
    *("QuotaReserved", False, "Pending"),
    "couldn't assign flavors to pod set main: insufficient quota for cpu in flavor f, request > "
    "maximum capacity (4 > 2)",
)
LATE = ("Evicted", True, "PodsReadyTimeout", "Exceeded the PodsReady timeout ns/job-wave")
GIVEN_UP = (
    *("Evicted", True, "DeactivatedDueToRequeuingLimitExceeded"),
    "The workload is deactivated due to exceeding the maximum number of re-queuing retries",
)


HELPS = [
    (workload(MISSING), "localqueues.kueue.x-k8s.io"),
    (workload(UNNAMED), "site.kueue_queue"),
    (workload(NO_CLUSTER_QUEUE), "ClusterQueue"),
    (workload(HELD), "stopPolicy"),
    (workload(INACTIVE), "stopPolicy"),
    (workload(FULL), "nothing: it starts when other Jobs of the queue end"),
    (workload(TOO_LARGE), "one pod (of a gang: all of its pods) needs more than the queue has"),
    (workload(PREEMPTED, FULL), "nothing: it goes on by itself"),
    (workload(UNCOVERED), "coveredResources"),
    (workload(LATE, ("QuotaReserved", False, "Pending", "")), "waitForPodsReady"),
    (workload(GIVEN_UP, active=False), '"active":true'),
    (workload(active=False), '"active":true'),
]


@pytest.mark.parametrize("component", ["worker", "merge"])
def test_workload_condition_is_quoted_with_a_hint(component):
    """Its Events may have expired, and a missing queue has none."""
    wrong, given = [], {}
    for of_kueue, help in HELPS:
        named = {} if "LocalQueue  " in str(of_kueue) else {"kueue.x-k8s.io/queue-name": "team"}
        labels = {"app.kubernetes.io/component": component} | named
        found = lines(jobs=[job(suspend=True, labels=labels)], workloads=[of_kueue])
        quoted = [condition["message"] for condition in of_kueue["status"]["conditions"]]
        (what,) = help_in(found)
        given.setdefault(what, set()).add(help)
        if "Kueue" not in line("job", found) or not all(q in line("job", found) for q in quoted):
            wrong.append((quoted, line("job", found)))
        if help not in what:
            wrong.append((help, what))
    assert wrong == []
    assert len(given) == 10 and all(len(helps) == 1 for helps in given.values())


def test_reason_is_quoted_once():
    """As Kueue 0.19 reports a pre-emption: the same message in both conditions."""
    again = ("QuotaReserved", False, "Pending", PREEMPTED[3])
    queued = job(labels={"kueue.x-k8s.io/queue-name": "team"}, suspend=True)
    pull, name = "ErrImagePull: no such host", "opmeter-campaign-c"
    why = f"other: p0 does not start: {pull}; it is retried in 15 minutes"
    stuck = pod(spec={"nodeName": "n1"}, waiting={"reason": pull[:12], "message": pull[14:]})
    unplaced = pod("p1", why="0/2 nodes are available: 2 Insufficient cpu")
    gone = "n7 does not respond; its shards are measured elsewhere"
    differs = f"most of its pods fail: {pull}. To do: compare driver and plan"
    events = [
        event("ConfigMap", name, why, reason="Suspended", at="1"),
        event("ConfigMap", name, f"1 pod does not start on n1 (such as p0): {pull}", at="2"),
        event(
            "ConfigMap",
            name,
            "1 pod waits for a node: 0/2 nodes are available: 2 Insufficient cpu. To do: wait",
            at="3",
        ),
        event("ConfigMap", name, gone, reason="NodeLost", at="4"),
        event("ConfigMap", name, differs, reason="NodesFail", at="5"),
        event("PodGroup", "podgroup-uid-of-wave", "0/2 nodes are available: 2 Insufficient cpu"),
    ]
    found = lines(
        jobs=[job(), queued | {"metadata": queued["metadata"] | {"name": "q", "uid": "uid-of-q"}}],
        pods=[stuck, unplaced],
        events=events,
        workloads=[workload(PREEMPTED, again, of="q")],
    )
    text = "\n".join(found)
    for reason in (PREEMPTED[3], pull, "2 Insufficient cpu", gone):
        assert text.count(reason) == 1, text
    shown = [line for line in found if line.startswith("event")]
    assert shown == [
        f"event       NodeLost: {gone}",
        "event       NodesFail: compare driver and plan",
    ]


def test_merge_suspended_by_others_is_not_announced_to_resume_by_itself():
    merge = job("merge", suspend=True, labels={"app.kubernetes.io/component": "merge"})
    said, of_wave = (line("job", lines(jobs=[one])) for one in (merge, job(suspend=True)))
    assert "suspended" in said and "suspended" in of_wave
    assert "Kueue" in said and "Kueue" not in of_wave


def test_waiting_jobs_with_one_reason_are_one_line_and_only_the_newest_are_listed():
    labels = {"kueue.x-k8s.io/queue-name": "team"}
    waiting = [job(f"w{i}", suspend=True, labels=labels) for i in range(9)]
    running = [job(f"r{i}") for i in range(40)]
    found = lines(jobs=waiting + running, workloads=[workload(FULL, of=f"w{i}") for i in range(9)])
    assert len([text for text in found if text.startswith("job ")]) < 16
    (queued,) = [text for text in found if "insufficient" in text]
    assert numbers(queued) == ["0", "8", "8"]


def test_pause_shows_how_to_stop_jobs_of_kueue():
    paused = config_map(annotations={"opmeter.io/paused": "true"})
    running = job(labels={"kueue.x-k8s.io/queue-name": "team"})
    found = "\n".join(lines(paused, jobs=[running]))
    assert "kubectl -n n patch workloads.kueue.x-k8s.io NAME --type=merge -p" in found
    assert '"active":false' in found
    assert "active" not in "\n".join(lines(jobs=[running]))


def test_pause_shows_how_it_ends():
    paused = config_map(annotations={"opmeter.io/paused": "true"})
    found = lines(paused, jobs=[job(suspend=True)])
    assert "opmeter pause c --resume" in line("cluster", found)
    assert "paused" in line("job", found)


def test_newest_suspension_reason_of_the_controller_is_shown():
    events = [
        event("ConfigMap", "opmeter-campaign-c", "wave: old", reason="Suspended", at="1"),
        event("ConfigMap", "opmeter-campaign-c", "wave: the store is away", reason="Suspended"),
        event("ConfigMap", "opmeter-campaign-c", "other: not ours", reason="Suspended", at="9"),
    ]
    found = line("job", lines(jobs=[job(suspend=True)], events=events))
    assert "suspended" in found and found.endswith("the store is away")
    unexplained = line("job", lines(jobs=[job(suspend=True)]))
    assert "suspended" in unexplained
    assert "paused" not in unexplained and "the store is away" not in unexplained


@pytest.mark.parametrize(
    ("one", "events", "words"),
    [
        (
            pod(
                spec={"nodeName": "n1"},
                waiting={"reason": "ImagePullBackOff", "message": "no such image"},
            ),
            [],
            ["ImagePullBackOff", "no such image"],
        ),
        (
            pod(spec={"nodeName": "n1"}, waiting={"reason": "ContainerCreating"}),
            [event("Pod", "p0", 'secret "s3" not found', reason="FailedMount")],
            ["n1", 'secret "s3" not found'],
        ),
        (pod(spec={"nodeName": "n1"}), [], ["n1"]),
        (
            pod(spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}),
            [],
            ["kueue.x-k8s.io/admission"],
        ),
    ],
)
def test_reason_why_a_pod_does_not_start_is_shown(one, events, words):
    said = line("pending", lines(pods=[one], events=events))
    assert missing(said, ["p0", *words]) == [] and numbers(said) == ["1"]


def test_refused_pods_of_a_job_are_shown_with_the_reason():
    refused = event("Job", "wave", 'violates PodSecurity "restricted"', reason="FailedCreate")
    shown = lines(jobs=[job()], events=[refused])
    found = line("job", shown)
    assert "FailedCreate" in found and found.endswith('violates PodSecurity "restricted"')
    assert "`privileged`" in help_in(shown)[0]


def help_in(found):
    """Return the lines without a label: the remedy for the line before each."""
    return [text for text in found if text.startswith("  ")]


def test_each_problem_has_a_hint():
    waits = pod(why="0/2 nodes are available: 2 Insufficient huawei.com/Ascend910")
    assert "site.cpu" in help_in(lines(jobs=[job()], pods=[waits]))[0]
    pull = {"reason": "ImagePullBackOff", "message": "not found"}
    assert "kind load" in help_in(lines(pods=[pod(spec={"nodeName": "n"}, waiting=pull)]))[0]
    mount = event("Pod", "p0", 'MountVolume.SetUp failed: secret "s3" not found')
    assert "store_secret" in help_in(lines(pods=[pod(spec={"nodeName": "n"})], events=[mount]))[0]
    why = "wave: p0 does not start: ErrImagePull: no such host"
    said = event("ConfigMap", "opmeter-campaign-c", why, reason="Suspended")
    assert "kind load" in help_in(lines(jobs=[job(suspend=True)], events=[said]))[0]
    stuck = pod("p9", "Running", spec={"nodeName": "n7"}, deletionTimestamp="2026-08-01T09:59:00Z")
    assert "kubectl delete node n7" in help_in(lines(pods=[stuck]))[0]


def test_store_that_the_controller_does_not_reach_is_shown_once():
    why = "s3://b/p: no response"
    away = {"opmeter.io/store-unavailable": f"since 2026-08-01T09:50:00Z: {why}"}
    cm = config_map(annotations=away)
    said = event("ConfigMap", "opmeter-campaign-c", why, reason="StoreUnavailable")
    found = lines(cm, jobs=[job()], events=[said])
    assert missing(line("store", found), ["controller", "2026-08-01T09:50", why]) == []
    assert not [text for text in found if text.startswith("event")]


def test_normal_states_have_no_hint():
    paused = config_map(annotations={"opmeter.io/paused": "true"})
    assert not help_in(lines(paused, jobs=[job(suspend=True)]))
    assert not help_in(lines(jobs=[job(suspend=True)], pods=[pod(spec={"nodeName": "n1"})]))
    assert not help_in(lines(pods=[pod()]))
    assert not help_in(lines(pods=[pod(spec={"schedulingGates": [{"name": "gate"}]})]))


def test_ended_job_has_its_condition():
    failed = {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "43"}
    found = line("job", lines(jobs=[job(conditions=[failed], succeeded=3, failed=2)]))
    assert "wave" in found and numbers(found) == ["3", "8", "2", "43"]


def test_missing_leader_is_reported():
    for lease in (None, {"spec": {"holderIdentity": ""}}):
        assert "opmeter-controller" in line("controller", lines(lease=lease))
    led = line("controller", lines())
    assert missing(led, ["me", "2026-08-01T10:00:00"]) == [] and "opmeter-controller" not in led


def test_nodes_in_quarantine_and_pods_that_do_not_end_are_named():
    stuck = pod("p9", "Running", spec={"nodeName": "n7"}, deletionTimestamp="2026-08-01T09:59:00Z")
    found = lines(pods=[stuck], quarantined=["n3", "n2"])
    assert "n2, n3" in line("quarantine", found)
    assert missing(line("ending", found), ["n7", "p9"]) == []
    assert numbers(line("ending", found)) == ["1"]


def test_only_the_newest_warnings_of_the_campaign_are_shown():
    name = "opmeter-campaign-c"
    events = [event("ConfigMap", name, f"m{i}", at=f"2026-08-0{i}") for i in range(1, 9)]
    events.append(event("ConfigMap", name, "all is well", warning=False, at="2026-09-01"))
    reported = [text for text in lines(events=events) if text.startswith("event")]
    assert [text.split()[-2:] for text in reported] == [["Said:", f"m{i}"] for i in range(4, 9)]


def test_deleted_pods_get_their_grace_period_before_their_node_is_blamed():
    """A deletionTimestamp is the end of the grace period: two minutes after the deletion."""

    def ending(name, until):
        return pod(name, "Running", spec={"nodeName": "n7"}, deletionTimestamp=until)

    preempted = [ending(f"p{i}", f"2026-08-01T10:0{i}:05Z") for i in range(3)]
    found = lines(pods=preempted)
    assert missing(line("ending", found), ["n7", "p0", "until 2026-08-01T10:02:05 UTC"]) == []
    assert not help_in(found)
    just_over, late = ending("p3", "2026-08-01T09:59:11Z"), ending("p4", "2026-08-01T09:59:09Z")
    assert not help_in(lines(pods=[just_over]))  # its node may still report the end
    found = [text for text in lines(pods=[*preempted, late]) if text.startswith("ending")]
    assert [numbers(text)[0] for text in found] == ["3", "1"] and "p4" in found[1]
    assert not lines(pods=[pod("p5", "Succeeded", deletionTimestamp="2026-08-01T09:00:00Z")])[3:]
