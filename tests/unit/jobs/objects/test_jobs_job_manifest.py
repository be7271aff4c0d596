"""The content of the Jobs of a campaign: of waves, of merges, and of the probe of a stack."""

from dataclasses import replace
from pathlib import Path

import pytest

from collector.model.plan import PlannedShard
from jobs.campaign.campaign_file import campaign_from_text
from jobs.controller.launching import named_probe
from jobs.objects.deployment import Deployment
from jobs.objects.job_manifest import made_of, merge_job, probe_job, worker_job
from jobs.objects.kueue import QUEUE
from jobs.objects.site import bundled_sites, load_site
from jobs.objects.waves import Wave, index_s
from tests.unit.jobs.plans import plan_of, shards_of

pytestmark = pytest.mark.fast

DEPLOYMENT = Deployment("bench", "here/collector:1", "here/controller:1", "s3://perf/x")
A2, A3, CPU = load_site("a2-800t"), load_site("a3-800t"), load_site("cpu")
SUPERPOD = load_site("a3-superpod")
DIE = "ATLAS_800_A3_752T_128G_DIE"


def pod_of(job):
    return job["spec"]["template"]["spec"]


def container_of(job):
    (container,) = pod_of(job)["containers"]
    return container


def worker_of(site=CPU, cap=2, seconds=(10.0, 10.0, 10.0), indexes=None, deployment=DEPLOYMENT):
    """The Job of a wave of shards with these durations; one per index by default."""
    shards = shards_of(*seconds)
    plan = plan_of(shards, number=7, backend=site.backend)
    cut = indexes or tuple((shard.shard_id,) for shard in shards)
    wave = Wave("c", plan.number, plan.plan_hash, 0, cut)
    return worker_job(wave, plan, site, deployment, cap=cap)


# Labels -----------------------------------------------------------------------------------------


def test_labels_of_ascend_are_on_a_job_and_its_pods():
    for job in (worker_of(A3), probe_job(A3, DEPLOYMENT, "probe")):
        for labels in (job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]):
            assert labels["ring-controller.atlas"] == "ascend-910b"
    assert "ring-controller.atlas" not in worker_of(CPU)["metadata"]["labels"]


def test_label_of_a_site_does_not_replace_an_own_label():
    names = ("opmeter.io/wave", "opmeter.io/plan", "app.kubernetes.io/component")
    greedy = replace(CPU, pod_labels=tuple((name, "mine") for name in names))
    for job in (worker_of(greedy), probe_job(greedy, DEPLOYMENT, "probe")):
        for labels in (job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]):
            assert labels["app.kubernetes.io/component"] in ("worker", "probe")
    own, usual = worker_of(greedy)["metadata"]["labels"], worker_of()["metadata"]["labels"]
    assert own == usual


def test_job_has_its_plan_and_hash():
    job = worker_of()
    notes = job["metadata"]["annotations"]
    assert notes["opmeter.io/plan-uri"] == "s3://perf/x/campaigns/c/plans/7.json"
    assert notes["opmeter.io/plan-sha256"].startswith(job["metadata"]["labels"]["opmeter.io/plan"])
    assert len(notes["opmeter.io/plan-sha256"]) == 64
    assert job["metadata"]["labels"]["opmeter.io/kind"] == "single"


# Limits -----------------------------------------------------------------------------------------


def variables_of(job):
    return {one["name"]: one.get("value") for one in container_of(job)["env"]}


def deadline_s(job):
    return int(variables_of(job)["OPMETER_DEADLINE_S"])


def test_worker_deadline_is_before_that_of_the_kubelet():
    job = worker_of()
    room_s = pod_of(job)["activeDeadlineSeconds"] - deadline_s(job)
    # The kubelet counts the pull of the image; a hang keeps its node from the queue for 120 s.
    assert 600 <= room_s <= 1800


def test_deadline_follows_the_longest_index():
    assert deadline_s(worker_of(seconds=(10.0, 4000.0, 20.0))) == 3 * 4000 + 1800


def test_deadline_accounts_for_the_measuring_concurrency_of_an_index():
    assert (A3.devices_per_worker, A3.measure_concurrency) == (16, 8)
    even = worker_of(A3, seconds=(100.0,) * 16, indexes=(tuple(f"s{i}" for i in range(16)), ()))
    assert deadline_s(even) == 3 * 200 + 1800
    odd = worker_of(A3, seconds=(4000.0, 8.0), indexes=(("s0", "s1"), ()))
    assert deadline_s(odd) == 3 * 4000 + 1800


def test_gangs_of_an_index_run_one_by_one_before_the_other_shards():
    single = PlannedShard("s", 1, 100.0, "0" * 64)
    gang = replace(single, ranks=8)
    planned = {"s": single, "t": single, "g": gang, "h": gang}
    assert index_s(["s", "t", "g", "h", "gone"], planned, 8) == 100 + 100 + 100


@pytest.mark.parametrize(
    ("limit", "count"), [("40Gi", 40 * 2**30), ("400G", 400 * 10**9), ("1000000", 10**6)]
)
def test_worker_gets_the_size_limit_of_its_volume(limit, count):
    job = worker_of(replace(A2, ephemeral_storage=limit))
    (work,) = [volume for volume in pod_of(job)["volumes"] if volume["name"] == "work"]
    assert work["emptyDir"]["sizeLimit"] == limit
    assert variables_of(job)["OPMETER_VOLUME_BYTES"] == str(count)


def merge_of(deployment, site=CPU):
    return merge_job("c", [7], "feed", site, deployment, partial=False)


def test_merge_has_the_memory_of_the_campaign():
    for deployment, memory in (
        (DEPLOYMENT, "8Gi"),
        (replace(DEPLOYMENT, merge_memory="40Gi"), "40Gi"),
    ):
        requested = container_of(merge_of(deployment))["resources"]
        assert requested["requests"]["memory"] == requested["limits"]["memory"] == memory


def test_memory_of_merges_does_not_recreate_workers():
    more = replace(DEPLOYMENT, merge_memory="40Gi")
    assert made_of(CPU, more) == made_of(CPU, DEPLOYMENT)


def test_driver_of_the_host_replaces_no_library_path_of_the_image():
    message = variables_of(worker_of(load_site("cce")))
    assert "/usr/local/Ascend/driver/lib64" in message["OPMETER_DRIVER_LIBRARIES"].split(":")
    assert "LD_LIBRARY_PATH" not in message
    assert "OPMETER_DRIVER_LIBRARIES" not in variables_of(worker_of(A2))


# The user and the network of a site ---------------------------------------------------------------


def test_measuring_pod_has_the_named_user_of_its_site():
    usual = pod_of(worker_of(A2))["securityContext"]
    ids = {"run_as_user": "1001", "run_as_group": "1002", "supplemental_groups": "[27, 44]"}
    site = load_site("a2-800t", ids)
    for job in (worker_of(site), probe_job(site, DEPLOYMENT, "probe")):
        found = pod_of(job)["securityContext"]
        other = {"runAsUser": 1001, "runAsGroup": 1002, "supplementalGroups": [27, 44]}
        assert found == usual | other  # with the group of the volumes
        (volume,) = [one for one in pod_of(job)["volumes"] if one["name"] == "passwd"]
        (item,) = volume["downwardAPI"]["items"]
        (mount,) = [m for m in container_of(job)["volumeMounts"] if m["name"] == "passwd"]
        assert (mount["mountPath"], mount["subPath"]) == ("/etc/passwd", item["path"])
        notes = job["spec"]["template"]["metadata"]["annotations"]
        (key,) = [key for key in notes if f"['{key}']" in item["fieldRef"]["fieldPath"]]
        users = [line.split(":") for line in notes[key].splitlines()]
        assert [(user[0], *user[2:4]) for user in users][1] == ("HwHiAiUser", "1001", "1002")
    assert usual["runAsUser"] == pod_of(merge_of(DEPLOYMENT))["securityContext"]["runAsUser"]
    assert "passwd" not in [one["name"] for one in pod_of(worker_of(A2))["volumes"]]


def test_interface_and_timeout_of_a_site_reach_its_ranks():
    def network(name, **changes):
        message = variables_of(worker_of(load_site(name, changes)))
        keys = ("HCCL_", "GLOO_", "OPMETER_SUPER_POD")
        return {key: value for key, value in message.items() if key.startswith(keys)}

    waits = {"HCCL_CONNECT_TIMEOUT": "600"}
    named = {"HCCL_SOCKET_IFNAME": "=bond0", "GLOO_SOCKET_IFNAME": "bond0"}
    assert network("a3-800t") == waits
    assert network("a3-800t", network="host") == waits | {"HCCL_IF_IP": "$(HOST_IP)"}
    assert network("a3-800t", network="host", host_ip_interface="bond0") == waits | named
    longer = network("a3-superpod", hccl_connect_timeout_s="900")
    assert longer == {"HCCL_CONNECT_TIMEOUT": "900", "OPMETER_SUPER_POD": "1"}
    assert network("cpu", host_ip_interface="eth1") == {"GLOO_SOCKET_IFNAME": "eth1"}
    # A variable may use those before it: that is how $(HOST_IP) becomes an address.
    on_host = load_site("a3-800t", {"network": "host"})
    before = [one["name"] for one in container_of(worker_of(on_host))["env"]]
    assert before.index("HOST_IP") < before.index("HCCL_IF_IP")


def test_paths_of_the_node_are_mounted_once_and_read_only():
    paths = "[/etc/hccn.conf, /usr/local/dcmi]"
    mounts = container_of(worker_of(load_site("cce", {"host_paths": paths})))["volumeMounts"]
    for path in ("/etc/hccn.conf", "/usr/local/dcmi"):
        (mount,) = [one for one in mounts if one["mountPath"] == path]
        assert mount["readOnly"]


# Access -----------------------------------------------------------------------------------------


def test_every_job_of_a_site_has_its_pull_secrets_and_the_ca_of_its_store():
    for ca, volume in (
        ("{config_map: ours, key: all.pem}", {"configMap": {"name": "ours"}}),
        ("{secret: ours, key: all.pem}", {"secret": {"secretName": "ours", "defaultMode": 0o440}}),
    ):
        site = load_site("cpu", {"image_pull_secrets": "[a, b.c]", "store_ca": ca})
        gang = Wave("c", 7, "h", 0, (("s0",), ("s0",)), pods=2)
        plan = plan_of(shards_of(10.0), number=7)
        for job in (
            *(worker_of(site), merge_of(DEPLOYMENT, site), probe_job(site, DEPLOYMENT, "probe")),
            worker_job(gang, plan, site, DEPLOYMENT, cap=2),
        ):
            assert pod_of(job)["imagePullSecrets"] == [{"name": "a"}, {"name": "b.c"}]
            (found,) = [one for one in pod_of(job)["volumes"] if one["name"] == "store-ca"]
            ((kind, held),) = volume.items()
            assert found[kind] == held | {"items": [{"key": "all.pem", "path": "ca.crt"}]}
            (mount,) = [m for m in container_of(job)["volumeMounts"] if m["name"] == "store-ca"]
            assert variables_of(job)["AWS_CA_BUNDLE"] == f"{mount['mountPath']}/ca.crt"
        assert made_of(site, DEPLOYMENT) != made_of(CPU, DEPLOYMENT)
    for job in (worker_of(), merge_of(DEPLOYMENT), probe_job(CPU, DEPLOYMENT, "probe")):
        assert "imagePullSecrets" not in pod_of(job) and "AWS_CA_BUNDLE" not in variables_of(job)


# Queues -----------------------------------------------------------------------------------------


def test_all_jobs_of_a_site_with_a_queue_name_it_and_start_suspended():
    """Where Kueue also manages Jobs that name no queue, a merge without one would never run."""
    queued = replace(A2, kueue_queue="team")
    merge = merge_of(DEPLOYMENT, queued)
    for job in (worker_of(queued), merge, probe_job(queued, DEPLOYMENT, "probe")):
        assert job["metadata"]["labels"][QUEUE] == "team" and job["spec"]["suspend"]
        assert QUEUE not in job["spec"]["template"]["metadata"]["labels"]  # its pods are the Job's
    for job in (worker_of(A2), merge_of(DEPLOYMENT), probe_job(A2, DEPLOYMENT, "probe")):
        assert QUEUE not in job["metadata"]["labels"] and not job["spec"].get("suspend")


def test_queue_admits_all_pods_of_a_wave_or_none():
    """A Job that is admitted narrow stays narrow until its end."""
    job = worker_of(replace(A2, kueue_queue="team"))
    assert "kueue.x-k8s.io/job-min-parallelism" not in job["metadata"]["annotations"]


def test_probe_has_the_resource_requests_of_a_worker():
    """A queue may cover less than that: ephemeral-storage is not covered by default."""
    requested = [
        container_of(job)["resources"]["requests"]
        for job in (worker_of(A2), probe_job(A2, DEPLOYMENT, "probe"))
    ]
    assert requested[0] == requested[1] and "ephemeral-storage" in requested[0]


def test_a_probe_waits_in_the_queue_of_its_site():
    queue = "kueue.x-k8s.io/queue-name"
    queued = replace(A2, kueue_queue="team")
    assert probe_job(queued, DEPLOYMENT, "probe")["metadata"]["labels"][queue] == "team"
    assert queue not in probe_job(A2, DEPLOYMENT, "probe")["metadata"]["labels"]


# The probe --------------------------------------------------------------------------------------


def probe_of(site, target="here"):
    text = f"campaign: c\nsources: [{{bundled: quickstart}}]\nbackend: {site.backend}\n"
    campaign = campaign_from_text(f"{text}target: {target}\n", path="c.yaml", base=Path("/"))
    return named_probe(campaign, site, DEPLOYMENT)


def test_probe_gets_the_device_name_of_the_campaign():
    named = probe_of(A3, f"{{device: {DIE}}}")
    assert container_of(named)["command"][6:8] == ["--device", DIE]
    other = probe_of(A3, f"{{device: {DIE.replace('752T', '560T')}}}")
    assert named["metadata"]["name"] != other["metadata"]["name"]


def test_probe_gets_no_name_if_there_is_none_or_for_cpus():
    assert "--device" not in container_of(probe_of(A3))["command"]
    assert "--device" not in container_of(probe_of(CPU, "{device: CPU_x_2t}"))["command"]


@pytest.mark.parametrize("name", bundled_sites())
def test_probe_requests_the_devices_of_a_worker(name):
    site = load_site(name)
    requested = container_of(probe_of(site))["resources"]["requests"]
    assert requested.get(site.resource, "1") == str(site.devices_per_worker)


def test_sp_block_of_a_pod_equals_its_requested_devices():
    for site in (SUPERPOD, replace(SUPERPOD, shape="pair", scheduler="default")):
        probe = probe_job(site, DEPLOYMENT, "probe")
        block = probe["spec"]["template"]["metadata"]["annotations"]["sp-block"]
        assert block == container_of(probe)["resources"]["limits"][site.resource]


def test_queueing_and_image_pull_do_not_count_against_the_probe_limit():
    probe = probe_job(A2, DEPLOYMENT, "probe")
    assert "activeDeadlineSeconds" not in probe["spec"]
    assert "activeDeadlineSeconds" not in pod_of(probe)
    command = container_of(probe)["command"]
    assert float(command[command.index("--limit") + 1]) >= 300  # counted by the process itself


def test_failed_probe_is_deleted_soon():
    assert probe_job(A2, DEPLOYMENT, "probe")["spec"]["ttlSecondsAfterFinished"] <= 300


# Gangs over several pods ------------------------------------------------------------------------


def gang_job(site=A3, pods=2, **more):
    shard = replace(shards_of(10.0)[0], ranks=16 * pods)
    plan = plan_of((shard,), number=7, backend=site.backend)
    indexes = ((shard.shard_id,),) * pods
    wave = Wave("c", plan.number, plan.plan_hash, 0, indexes, pods=pods, **more)
    return worker_job(wave, plan, site, DEPLOYMENT, cap=1)


def test_gang_runs_all_of_its_pods_at_once_and_fails_with_one_of_them():
    spec = gang_job(pods=3)["spec"]
    assert spec["completions"] == spec["parallelism"] == 3
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (3, 0)
    assert gang_job()["metadata"]["labels"]["opmeter.io/kind"] == "gang"
    assert worker_of()["metadata"]["labels"]["opmeter.io/kind"] == "single"


def test_pods_of_gangs_run_on_separate_nodes_and_know_their_address():
    job = gang_job(avoid=("n7",))
    affinity = pod_of(job)["affinity"]
    (apart,) = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"]["matchLabels"] == {"opmeter.io/kind": "gang"}
    assert job["spec"]["template"]["metadata"]["labels"]["opmeter.io/kind"] == "gang"
    assert "nodeAffinity" in affinity
    addresses = [e for e in container_of(job)["env"] if e["name"] == "POD_IP"]
    assert addresses == [
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    ]
    assert "podAntiAffinity" not in pod_of(worker_of()).get("affinity", {})
    assert not [e for e in container_of(worker_of())["env"] if e["name"] == "POD_IP"]


def test_gang_stays_in_the_super_pod_of_its_first_pod():
    job = gang_job(replace(A3, super_pod_label="example.com/sp"))
    affinity = pod_of(job)["affinity"]
    (near,) = affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert near["topologyKey"] == "example.com/sp"
    ((label, value),) = near["labelSelector"]["matchLabels"].items()
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert label == "opmeter.io/wave" and labels[label] == value
    assert "podAffinity" not in pod_of(gang_job(A3))["affinity"]
    single = pod_of(worker_of(replace(A3, super_pod_label="example.com/sp")))
    assert "podAffinity" not in single.get("affinity", {})


def test_super_pod_scheduler_gets_the_size_of_the_gang():
    job = gang_job(SUPERPOD)
    assert job["metadata"]["annotations"]["scheduling.volcano.sh/group-min-member"] == "2"
    assert job["spec"]["template"]["metadata"]["annotations"]["sp-block"] == "32"
    assert gang_job(A3)["spec"]["template"]["metadata"]["annotations"].get("sp-block") is None
