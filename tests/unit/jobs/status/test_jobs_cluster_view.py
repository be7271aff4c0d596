"""The objects that `status` and `doctor --cluster` fetch, from a cluster that is simulated or
absent."""

import itertools
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput, StoreUnavailable
from collector.database import snapshot
from collector.database.merge import CREATE, merge_plans
from collector.environment import Environment, use_environment
from collector.model import keys
from collector.model.plan import PlannedSource, plan_to_json
from collector.model.record import write_table
from collector.model.stack import Stack
from collector.store import open_store
from collector.store.in_memory import MemoryStore
from jobs.cli import opening, status
from jobs.cli.cluster import logs_command
from jobs.cli.machine import doctor_command
from jobs.cli.status import status_command
from jobs.doctor import cluster as doctor_cluster
from jobs.doctor.cluster import check_cluster
from jobs.kube.cluster import Cluster
from jobs.kube.errors import ClusterAway, ClusterError
from jobs.objects.applied_campaign import config_map
from jobs.objects.deployment import Deployment
from jobs.objects.waves import NodeFailure, NodeFailures, Wave, node_failures_to_json, wave_to_json
from jobs.planning import stored_plans
from jobs.status import picture
from jobs.status.follower import Follower
from jobs.status.why import ClusterView, explain
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    answered,
    commit_shard,
    plan_of,
    table_of,
    write_campaign,
)
from tests.unit.jobs.printed import missing, numbers
from tests.unit.jobs.simulated_kueue import NoKueue, SimulatedKueue

TEXT = "campaign: small\nsources: [{bundled: quickstart}]\nbackend: cpu\n"


class SimulatedCluster:
    """One namespace, with the objects that a test puts there."""

    namespace = "bench"

    def __init__(self, root="s3://b/p", applied=True):
        deployment = Deployment("bench", "here/a:1", "here/b:1", root)
        campaign = config_map("small", TEXT, {"site": "cpu"}, deployment)
        campaign["metadata"]["uid"] = "cm-1"
        self.campaigns = [campaign] if applied else []
        self.live, self.probes, self.waiting, self.queried = [], [], [], []
        self.away = self.refuses = False
        self.keeps_quiet = True
        self.deleted = []
        self.leases = itertools.repeat(None)  # as each request finds the Lease of a controller
        self.kueue = NoKueue()

    def version(self):
        if self.away:
            raise ClusterAway("no response")
        return "v1.36.0"

    def config_maps(self, selector):
        if self.away:
            raise ClusterAway("no response")
        return self.campaigns

    def jobs(self, selector):
        return list(self.probes if selector.endswith("=probe") else self.live)

    def pods(self, selector, fields=""):
        return list(self.waiting)

    def nodes(self):
        ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {}}
        return [{"metadata": {"name": f"n{i}"}, "status": ready} for i in range(4)]

    def events(self, fields):
        self.queried.append(fields)
        return []

    def lease(self, name):
        return next(self.leases)

    def has_api(self, group):
        return isinstance(self.kueue, SimulatedKueue)

    def may(self, *permission, account=""):
        if not account:
            return True
        if self.keeps_quiet:
            raise ClusterError("403: forbidden")
        return permission[:3] != ("patch", "", "configmaps")

    def daemon_sets(self):
        return None

    def dry_run(self, job):
        if self.refuses:
            raise ClusterError("403: exceeded quota")
        return job

    def delete_job(self, name):
        self.deleted.append(name)


def led(*renewed):
    """A Lease that a controller renewed at these seconds of a day, one for each request."""
    for second in renewed:
        at = f"{NOON + timedelta(seconds=second):%Y-%m-%dT%H:%M:%S.%fZ}"
        yield {"spec": {"holderIdentity": "pod-a1", "renewTime": at}}


NOON = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


class AtNoon(Environment):
    """A clock that moves while a caller sleeps."""

    def __init__(self):
        self.slept_s = 0.0

    def monotonic(self):
        return self.slept_s

    def sleep(self, seconds):
        self.slept_s += seconds

    def wait(self, event, seconds):
        self.slept_s += seconds
        return event.is_set()

    def utc_now(self):
        return NOON + timedelta(seconds=self.slept_s)


def found_of(cluster, name, queue="team"):
    """The check of that name, where the site names a queue."""
    cluster.campaigns[0]["data"]["site.kueue_queue"] = queue
    return [check for check in check_cluster(None, None, None) if check.name == name]


@pytest.fixture
def cluster(monkeypatch):
    simulated = SimulatedCluster()
    monkeypatch.setattr(Cluster, "connect", classmethod(lambda cls, namespace=None: simulated))
    return simulated


@pytest.fixture
def nowhere(monkeypatch):
    def connect(cls, namespace=None):
        raise BadInput("no cluster: set KUBECONFIG")

    monkeypatch.setattr(Cluster, "connect", classmethod(connect))


def test_missing_cluster_is_reported_only_if_a_namespace_was_named(nowhere):
    assert ClusterView("small", None).seen() is None
    assert ClusterView("small", None).trouble == ""
    assert "KUBECONFIG" in ClusterView("small", "bench").trouble
    assert ClusterView("small", None).address() == ""


def test_unreachable_cluster_is_reported_in_one_line(cluster):
    cluster.away = True
    view = ClusterView("small", None)
    assert view.seen() is None
    assert "no response" in view.trouble and "\n" not in view.trouble


def test_missing_campaign_is_reported_only_if_a_namespace_was_named(cluster):
    cluster.campaigns = []
    view = ClusterView("small", "bench")
    assert view.seen() is None and missing(view.trouble, ["'small'", "bench"]) == []
    silent = ClusterView("small", None)
    assert silent.seen() is None and silent.trouble == ""


def test_probe_of_the_campaign_is_shown_before_the_first_wave(cluster):
    def probe(name, owner):
        return {"metadata": {"name": name, "ownerReferences": [{"uid": owner}]}, "spec": {}}

    cluster.probes = [probe("ours", "cm-1"), probe("of-others", "cm-2")]
    seen = ClusterView("small", None).seen()
    assert [job["metadata"]["name"] for job in seen.jobs] == ["ours"]
    cluster.live = [{"metadata": {"name": "wave"}, "spec": {}}]
    seen = ClusterView("small", None).seen()
    assert [job["metadata"]["name"] for job in seen.jobs] == ["wave"]


def test_number_of_requests_is_independent_of_the_waiting_pods(cluster):
    cluster.waiting = [
        {"metadata": {"name": f"p{i}"}, "spec": {}, "status": {"phase": "Pending"}}
        for i in range(500)
    ]
    ClusterView("small", None).seen()
    assert len(cluster.queried) <= 8


def test_quarantined_nodes_are_determined_as_by_the_controller(cluster):
    failures = NodeFailures(
        frozenset({NodeFailure("n1", "s1"), NodeFailure("n1", "s2"), NodeFailure("n2", "s3")})
    )
    assert ClusterView("small", None).quarantined(failures) == {"n1"}


def test_store_address_of_the_campaign_is_used_if_it_is_valid_here(
    cluster, tmp_path, monkeypatch, capsys
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    cluster.campaigns = SimulatedCluster(root="file:///not/here").campaigns
    status_command("small")
    printed = capsys.readouterr().out
    (line,) = [text for text in printed.splitlines() if text.startswith("store")]
    assert missing(line, ["file:///not/here", "--root"]) == [] and "opmeter-data" not in printed
    assert "\ncontroller" in printed
    write(
        tmp_path / "store", MadePlan([MadeShard("s", [add_record(1)], is_committed=False)], "small")
    )
    cluster.campaigns = SimulatedCluster(root=f"file://{tmp_path}/store").campaigns
    status_command("small")
    assert capsys.readouterr().out.startswith("small plan 1")


class AwayStore(MemoryStore):
    """A store that does not respond, from some request on."""

    def __init__(self, responses=0):
        super().__init__()
        self.responses = responses

    def list(self, prefix):
        self.responses -= 1
        if self.responses < 0:
            raise StoreUnavailable("s3://b/p: no response")
        return super().list(prefix)


@pytest.mark.parametrize("responses", [0, 1, 3])
def test_status_shows_the_cluster_while_the_store_is_away(
    cluster, tmp_path, monkeypatch, capsys, responses
):
    def opened(url, location):
        store = AwayStore()
        write_campaign(
            store, MadePlan([MadeShard("s", [add_record(1)], is_committed=False)], "small")
        )
        store.responses = responses
        return store

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(opening, "open_store", opened)
    with use_environment(AtNoon()):
        status_command("small", root="s3://b/p")
    printed = capsys.readouterr().out
    (line,) = [text for text in printed.splitlines() if text.startswith("store")]
    assert "no response" in line and "\ncluster" in printed and "\ncontroller" in printed
    cluster.campaigns = []
    if not responses:  # nothing would be shown
        with use_environment(AtNoon()), pytest.raises(StoreUnavailable):
            status_command("small", root="s3://b/p")


def test_status_of_a_namespace_lists_the_campaigns_that_are_applied_there(
    cluster, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path / "store", MadePlan([MadeShard("s", [add_record(1)], is_committed=False)], "small")
    )
    of_small = cluster.campaigns = SimulatedCluster(root=f"file://{tmp_path}/store").campaigns
    deployment = Deployment("bench", "here/a:1", "here/b:1", "file:///away")
    other = config_map("other", TEXT.replace("small", "other"), {"site": "cpu"}, deployment)
    other["metadata"] |= {"uid": "cm-2", "annotations": {"opmeter.io/paused": "true"}}
    cluster.campaigns = [other, *of_small]
    labels = {"app.kubernetes.io/component": "worker", "opmeter.io/campaign": "small"}
    pod = {"metadata": {"name": "p", "labels": labels}, "status": {"phase": "Running"}}
    cluster.waiting = [pod, pod]
    status_command(namespace="bench")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("other: not available: file:///away") and "paused" in lines[1]
    assert lines[2].startswith("small plan 1") and lines[3].endswith("pods: 2 running")
    assert lines[4].startswith("controller ") and len(lines) == 5
    status_command(namespace="bench", as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert [(one["campaign"], len(one["plans"])) for one in found] == [("other", 0), ("small", 1)]
    cluster.campaigns = []
    with pytest.raises(BadInput, match="no campaign is applied in namespace bench"):
        status_command(namespace="bench")


def test_cancelled_campaign_is_reported_without_a_folder_that_the_user_did_not_name(
    cluster, tmp_path, monkeypatch
):
    cluster.campaigns = []
    monkeypatch.chdir(tmp_path)
    for command in (status_command, partial(logs_command, None)):
        for namespace in ("bench", None):
            name = {"campaign": "small"}
            with pytest.raises(BadInput, match=r"small.* namespace bench; --root") as raised:
                command(**name, namespace=namespace)
            assert "opmeter-data" not in str(raised.value)
    write(
        tmp_path / "opmeter-data",
        MadePlan([MadeShard("s", [add_record(1)], is_committed=False)], "own"),
    )
    with pytest.raises(BadInput, match="known campaigns: own"):
        status_command("small")
    with pytest.raises(BadInput, match="namespace bench; --root"):
        status_command("small", namespace="bench")


def test_status_without_a_cluster_shows_the_contents_of_the_store(nowhere, tmp_path, capsys):
    records = [add_record(1), add_record(2)]
    shards = [
        MadeShard("done", records[:1], [answered(records[:1], 5.0)]),
        MadeShard("open", records[1:], is_committed=False),
    ]
    write(tmp_path, MadePlan(shards, campaign="small"))
    status_command("small", root=str(tmp_path))
    printed = capsys.readouterr().out
    head = next(line for line in printed.splitlines() if line.startswith("small plan"))
    assert numbers(head)[:5] == ["1", "1", "2", "1", "2"]
    assert re.search(r"Add  ##########\.\.\.\.\.\.\.\.\.\.  1\b.*\b2\b", printed)
    assert "\ncluster" not in printed and "\ncontroller" not in printed


def test_status_without_a_plan_shows_the_state_of_the_cluster(cluster, tmp_path, capsys):
    status_command("small", root=str(tmp_path))
    printed = capsys.readouterr().out
    assert "small plan" not in printed  # there is none yet
    assert missing(printed, ["small", "bench", "opmeter-controller"]) == []


@pytest.mark.parametrize(
    ("renewed", "leads", "longest_s"),
    [
        (itertools.repeat(-20), True, 0),
        (itertools.repeat(-90), False, 32),
        # A controller that lives, whose clock is a minute and a half behind.
        (itertools.chain([-90, -90, -90, -90], itertools.count(-85)), True, 4),
    ],
)
def test_controller_that_no_longer_renews_its_lease_does_not_lead(
    cluster, renewed, leads, longest_s
):
    cluster.leases = led(*itertools.islice(renewed, 100))
    view, clock = ClusterView("small", None), AtNoon()
    with use_environment(clock):
        (line,) = [text for text in explain(view.seen()) if text.startswith("controller")]
        assert ("leads," in line) is leads and "pod-a1" in line
        assert ("opmeter controller --namespace bench" in line) is not leads
        assert clock.slept_s <= longest_s
        until_s = clock.slept_s
        assert view.seen().is_led is leads and clock.slept_s - until_s <= 1


def test_eta_follows_from_the_devices_of_running_pods(cluster, tmp_path, capsys):
    shards = [MadeShard(f"s{n}", [add_record(n + 1)], is_committed=False) for n in range(240)]
    write(tmp_path, MadePlan(shards, campaign="small"))  # a second each, by forecast
    pod = {
        "metadata": {"name": "p", "labels": {"app.kubernetes.io/component": "worker"}},
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Running"},
    }
    cluster.waiting = [pod]
    cluster.campaigns[0]["data"] |= {
        "campaign.yaml": TEXT.replace("cpu", "npu"),
        "allow_unpinned": "true",
        "site": "a2-800t",
        "site.shape": "node",
        "site.measure_concurrency": "4",
    }
    status_command("small", root=str(tmp_path))
    assert "60 s" in capsys.readouterr().out
    cluster.campaigns[0]["data"]["site.measure_concurrency"] = "8"
    status_command("small", root=str(tmp_path))
    assert "30 s" in capsys.readouterr().out


def test_named_campaign_is_found_without_listing_others(nowhere, tmp_path, monkeypatch):
    listed = []

    def campaigns(store):
        listed.append(store)
        return ["small"]

    write(
        tmp_path / "opmeter-data",
        MadePlan([MadeShard("s", [add_record(1)], is_committed=False)], "small"),
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stored_plans, "campaigns", campaigns)
    status_command("small")
    assert not listed
    status_command()
    assert len(listed) == 1


def test_database_is_read_only_after_the_merge_of_its_campaign(
    nowhere, tmp_path, monkeypatch, capsys
):
    loaded = []

    def load_state(*arguments, **options):
        loaded.append(arguments)
        return snapshot.load_state(*arguments, **options)

    monkeypatch.setattr(picture, "load_state", load_state)
    records = [add_record(1), add_record(2)]
    shards = [MadeShard(f"s{n}", [r], [answered([r], 5.0)]) for n, r in enumerate(records)]
    made = MadePlan(shards, "small")
    store = open_store(str(tmp_path))
    plan = write_campaign(
        store, replace(made, shards=[shards[0], replace(shards[1], is_committed=False)])
    )
    store.put(keys.source("small", "0" * 64), write_table(records))
    merge_plans(store, [("small", 1)], guard=CREATE, author="test", allow_missing=True)
    status_command("small", root=str(tmp_path))
    assert "file://" in capsys.readouterr().out and not loaded
    commit_shard(store, made, plan, shards[1])
    status_command("small", root=str(tmp_path))
    assert "coverage" not in capsys.readouterr().out and not loaded  # committed, not yet merged
    merge_plans(store, [("small", 1)], guard=CREATE, author="test")
    status_command("small", root=str(tmp_path), watch=True)  # ends by itself
    assert re.search(r"^coverage\D+2\D+2\b", capsys.readouterr().out, flags=re.MULTILINE)
    assert len(loaded) == 1


def test_watch_interval_grows_with_the_duration_of_a_read(nowhere, tmp_path, monkeypatch):
    write(tmp_path, MadePlan([MadeShard("s", [add_record(1)], is_committed=False)], "small"))
    clock, slept = [0.0], []

    class Time:
        monotonic = staticmethod(lambda: clock[0])

        @staticmethod
        def sleep(seconds):
            slept.append(seconds)
            if len(slept) == 2:
                raise KeyboardInterrupt

    class Slow(Follower):
        def read(self, campaign, **options):
            clock[0] += 30.0 * len(slept)
            return super().read(campaign, **options)

    monkeypatch.setattr(status, "time", Time)
    monkeypatch.setattr(picture, "Follower", Slow)
    status_command("small", root=str(tmp_path), watch=True)
    assert slept == [60.0, 120.0]


def test_watch_requires_one_existing_campaign(nowhere, tmp_path):
    with pytest.raises(BadInput, match="--watch"):
        status_command(root=str(tmp_path), watch=True)
    with pytest.raises(BadInput, match="'small'"):
        status_command("small", root=str(tmp_path), watch=True)


def write(folder, made):
    write_campaign(open_store(str(folder)), made)


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(
    "harmed",
    ["plans/1", "plans/2", "nodes.json", "waves/", "progress.json", "committed/s2"]
    + ["shards/s2", "part-0.csv", "manifest.json", "sources/"],
)
def test_status_is_printed_despite_any_damage(nowhere, tmp_path, capsys, harmed, merged):
    store = open_store(str(tmp_path))
    record, source = add_record(1), write_table([add_record(1)])
    digest = sha256_hex(source)
    for number in (1, 2):
        shard = MadeShard(f"s{number}", [record], [answered([record], 5.0)])
        made = MadePlan([shard], campaign="small", number=number)
        plan = replace(plan_of(made), sources=(PlannedSource("made", digest, 1, same_stack=False),))
        store.create(keys.shard("small", shard.name), table_of(shard))
        store.create(keys.plan("small", number), plan_to_json(plan))
        commit_shard(store, made, plan, shard)
    store.create(keys.source("small", digest), source)
    store.create(keys.nodes("small"), node_failures_to_json(NodeFailures()))
    wave = Wave("small", 2, plan.plan_hash, 0, (("s2",),))
    store.create(keys.wave("small", wave.wave_hash), wave_to_json(wave))
    store.create(keys.progress("small", "s2", "a-9"), b'{"done": 1, "cases": 1, "case": ""}')
    if merged:
        merge_plans(store, [("small", 1), ("small", 2)], guard=CREATE, author="test")
    found = [info.key for info in store.list("campaigns/") if harmed in info.key]
    [key] = [key for key in found if "s1" not in key]
    for rot in (b"", b"\xff\x00", b"[" * 50_000, b"[]", b'{"done": 1e999}', b"null"):
        store.put(key, rot)
        status_command("small", root=str(tmp_path))
        reported = capsys.readouterr().out
        assert "small plan" in reported
        unseen = harmed in ("waves/", "progress.json") or (harmed == "sources/" and not merged)
        # What the head holds needs nothing of what was committed.
        unseen |= merged and harmed in ("committed/s2", "shards/s2", "part-0.csv", "manifest.json")
        assert (key in reported) == (not unseen), reported
        status_command(root=str(tmp_path))
        assert "small plan" in capsys.readouterr().out


# doctor --cluster -------------------------------------------------------------------------------


def checks(**more):
    return {check.name: check for check in check_cluster(None, more.get("site"), more.get("root"))}


def test_doctor_checks_everything_and_leaves_no_objects(cluster, monkeypatch):
    probed = []

    def stack_of_workers(cluster, applied):
        probed.append(applied)
        return Stack(device="CPU_x", torch="2.13.0")

    monkeypatch.setattr(doctor_cluster, "stack_of_workers", stack_of_workers)
    cluster.leases = led(-30, -25)
    found = checks(root="s3://other/place")
    assert all(check.ok for check in found.values())
    assert "CPU_x" in found["pod"].found
    assert probed[0].deployment.root == "s3://other/place"
    assert probed[0].campaign.name.startswith("doctor-")  # so that no older answer is used
    assert len(cluster.deleted) == 1


def test_failing_probe_pod_is_reported_with_its_output(cluster, monkeypatch):
    def stack_of_workers(cluster, applied):
        raise BadInput("Job x found no stack on a worker's node: the store refuses")

    monkeypatch.setattr(doctor_cluster, "stack_of_workers", stack_of_workers)
    found = checks()["pod"]
    assert not found.ok and "the store refuses" in found.found
    assert len(cluster.deleted) == 1


@pytest.fixture
def with_kueue(cluster, monkeypatch):
    """A doctor's cluster with a Kueue, whose probe finds nothing."""
    cluster.kueue = SimulatedKueue(cluster)
    monkeypatch.setattr(doctor_cluster, "_PATIENCE_S", 0.0)
    return cluster


def test_doctor_reports_a_missing_queue_of_the_site(with_kueue):
    (check,) = found_of(with_kueue, "queue", "other")
    assert not check.ok and "other" in check.found and "kueue_queue" in check.fix
    assert found_of(with_kueue, "queue")[0].ok


@pytest.mark.parametrize("policy", ["Hold", "HoldAndDrain"])
def test_doctor_reports_a_held_queue(with_kueue, policy):
    with_kueue.kueue.holds = policy
    (check,) = found_of(with_kueue, "cluster queue")
    assert not check.ok and policy in check.found


def test_doctor_reports_resources_that_the_queue_does_not_cover(with_kueue):
    """ephemeral-storage, which no ClusterQueue covers by default: no worker was ever admitted."""
    (check,) = found_of(with_kueue, "quota")
    assert not check.ok and "ephemeral-storage" in check.found and "memory" in check.found
    assert "cpu" not in check.found and "coveredResources" in check.fix
    with_kueue.kueue.covers += ("memory", "ephemeral-storage")
    assert found_of(with_kueue, "quota")[0].ok


def test_doctor_reports_a_queue_without_room_for_a_pod_and_makes_no_probe(with_kueue):
    """A quota smaller than one request is never admitted: the campaign would wait for ever."""
    kueue = with_kueue.kueue
    kueue.covers += ("memory", "ephemeral-storage")
    assert "room for 8 workers at once, by its cpu, and for a merge" in quota_of(with_kueue)
    with_kueue.deleted.clear()
    merge = {"memory": "7Gi"}  # a worker of this site requests 4Gi, a merge 8Gi
    for quotas, words in ({"cpu": "0"}, "a worker requests 1 of cpu"), (merge, "a merge requests"):
        kueue.quotas = quotas
        assert words in quota_of(with_kueue)
        (probe,) = found_of(with_kueue, "pod")
        assert probe.skipped and with_kueue.deleted == [], "no probe waits for three minutes"


def quota_of(cluster) -> str:
    (check,) = found_of(cluster, "quota")
    return check.found


def test_doctor_without_rights_to_a_cluster_queue_does_not_report_it_missing(with_kueue):
    def refuse(name):
        raise ClusterError("403: forbidden")

    with_kueue.kueue.cluster_queue = refuse
    (check,) = found_of(with_kueue, "cluster queue")
    assert check.ok and check.skipped


def test_doctor_without_a_campaign_reports_the_skipped_checks(cluster):
    cluster.campaigns = []
    found = checks()
    assert found["pod"].skipped
    assert found["site"].found == "cpu"


def test_doctor_separates_the_rights_of_the_controller_from_its_own(cluster):
    cluster.campaigns = []
    found = checks()
    assert found["rights"].ok and not found["rights"].skipped
    assert found["controller"].skipped
    assert found["plugin"].skipped  # a CPU site requests no devices
    cluster.keeps_quiet = False
    found = checks()
    assert found["rights"].ok and not found["controller"].ok
    assert found["controller"].found.endswith("patch configmaps")
    assert "opmeter-controller" in found["controller"].found


def test_doctor_reports_that_no_controller_leads(cluster, monkeypatch):
    def stack_of_workers(cluster, applied):
        return Stack(device="CPU_x", torch="2.13.0")

    def leader(leases):
        cluster.leases = leases
        with use_environment(AtNoon()):
            return checks()["leader"]

    monkeypatch.setattr(doctor_cluster, "stack_of_workers", stack_of_workers)
    dead = leader(led(*[-3600] * 100))
    assert not dead.ok and missing(dead.found, ["pod-a1", "bench"]) == []
    assert "opmeter controller --namespace bench" in dead.fix
    missed = leader(itertools.repeat(None))
    assert not missed.ok and "none leads" in missed.found
    assert leader(led(-3600, -3595)).ok  # it renews it, by a clock that is behind
    cluster.campaigns = []
    assert leader(itertools.repeat(None)).skipped  # nothing is applied that needs one


def test_skipped_check_is_not_reported_as_ok(cluster, capsys):
    cluster.campaigns = []
    assert doctor_command(cluster=True) == 0
    lines = {line.split()[1]: line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert lines["pod"] == lines["controller"] == lines["plugin"] == "skip"
    assert lines["version"] == "ok"


def test_doctor_stops_if_the_cluster_is_unreachable(cluster):
    cluster.away = True
    found = checks()
    assert list(found) == ["version"] and not found["version"].ok


def test_refused_job_is_reported_in_the_words_of_the_server(cluster):
    cluster.campaigns, cluster.refuses = [], True
    assert "exceeded quota" in checks()["features"].found


def test_invalid_campaign_is_reported_with_its_key(cluster):
    cluster.campaigns[0]["data"]["imag"] = "x"
    assert "'imag'" in checks()["campaigns"].found
