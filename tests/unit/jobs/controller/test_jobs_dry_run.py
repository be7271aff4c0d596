"""The output of `launch --dry-run`, and the first Jobs of a campaign."""

from dataclasses import replace

import pytest
import yaml

from collector.codec.errors import BadInput
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import RunOptions, campaign_from_text
from jobs.cli.launch import launch_command
from jobs.controller.launching import first_objects, named_probe
from jobs.objects.applied_campaign import applied_from
from jobs.objects.deployment import Deployment
from jobs.objects.job_manifest import DEGRADED, MADE_OF, SPEC_HASH, is_same, made_of, worker_job
from jobs.objects.kueue import QUEUE
from jobs.objects.site import load_site
from jobs.objects.waves import Wave
from tests.unit.jobs.controller.simulated_campaign import Simulation
from tests.unit.jobs.plans import COMPLETE_TARGET

pytestmark = pytest.mark.fast

HEADER = (
    "OP State,Accelerator Core,Input Shapes,Input Data Types,Input Formats,"
    "Output Shapes,Output Data Types,Output Formats\n"
)
ROW = 'static,AI_VECTOR_CORE,"""8,8;8,8""",FLOAT;FLOAT,ND;ND,"""8,8""",FLOAT,ND\n'
OP_MAPPING = "operator_mappings: {aten.add.Tensor: {kernel_type: Add, query_mode: elementwise}}\n"
TARGET = "target: {device: CPU_x_2t, torch: 2.13.0}\n"
TEXT = f"campaign: c\nsources: [{{tree: tree}}]\nbackend: cpu\ndevices: 2\n{TARGET}"
NPUS = TEXT.replace("backend: cpu", "backend: npu").replace(TARGET, f"target: {COMPLETE_TARGET}\n")
DEPLOYMENT = Deployment("bench", "here/worker:1", "here/controller:1", "s3://perf/x")
CPU = load_site("cpu")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "Add.csv").write_text(HEADER + ROW)
    (tmp_path / "tree" / "op_mapping.yaml").write_text(OP_MAPPING)
    (tmp_path / "c.yaml").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def campaign_of(folder, text=TEXT):
    return campaign_from_text(text, path="c.yaml", base=folder)


def test_dry_run_prints_the_first_wave_if_the_stack_is_given(folder):
    store = MemoryStore()
    (job,) = first_objects(campaign_of(folder, NPUS), CPU, DEPLOYMENT, store)
    assert job["spec"]["completions"] == 1 and job["kind"] == "Job"
    assert job["spec"]["suspend"] is True  # its plan and its wave are not in the store
    assert not list(store.list(""))


def test_dry_run_prints_a_gang_with_its_super_pod(folder):
    text = f"""\
campaign: c
sources:
  - collectives:
      {{operations: [all_reduce], bytes: [4096], groups: [32], ranks: 32, grid: [2, 8, 2]}}
backend: npu
devices: 32
target: {COMPLETE_TARGET}
"""
    site = load_site("a3-800t", {"shape": "node", "super_pod_label": "example.com/sp"})
    (job,) = first_objects(campaign_of(folder, text), site, DEPLOYMENT, MemoryStore())
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    affinity = job["spec"]["template"]["spec"]["affinity"]
    (near,) = affinity["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert near["topologyKey"] == "example.com/sp"


def test_printed_wave_is_suspended_and_has_no_queue(folder):
    site = replace(CPU, kueue_queue="team")
    (job,) = first_objects(campaign_of(folder, NPUS), site, DEPLOYMENT, MemoryStore())
    assert job["spec"]["suspend"] is True and QUEUE not in job["metadata"]["labels"]


@pytest.mark.parametrize("target", ["", TARGET], ids=["nothing", "a processor by its name"])
def test_dry_run_prints_the_probe_if_the_stack_is_incomplete(folder, target):
    """Flags, threads and allocator of a processor are more than a target can express."""
    campaign = campaign_of(folder, TEXT.replace(TARGET, target))
    (job,) = first_objects(campaign, CPU, DEPLOYMENT, MemoryStore())
    assert job["metadata"]["name"].startswith("opmeter-probe-")
    assert named_probe(campaign, CPU, DEPLOYMENT) == job
    other = replace(DEPLOYMENT, image="here/worker:2")
    assert named_probe(campaign, CPU, other)["metadata"]["name"] != job["metadata"]["name"]


def named(printed, key):
    """Return the comments that name an object of the store."""
    return [line for line in printed.splitlines() if line.startswith("#") and key in line]


def test_dry_run_prints_objects_with_the_same_meaning_in_the_cluster(folder, capsys):
    requested = {"image": "here/worker:1", "store": str(folder / "store"), "dry_run": True}
    code = launch_command("c.yaml", **requested)
    printed = capsys.readouterr().out
    config_map, job = yaml.safe_load_all(printed)
    assert code == 0 and job["kind"] == "Job" and not (folder / "store").exists()
    applied = applied_from(config_map)
    assert applied.op_mapping == OP_MAPPING
    (source,) = applied.campaign.sources
    assert len(source.sha256) == 64
    assert len(named(printed, f"campaigns/c/sources/{source.sha256}.csv")) == 1
    key = folder / "store" / "campaigns" / "c" / "sources" / f"{source.sha256}.csv"
    key.parent.mkdir(parents=True)
    key.write_bytes(b"")
    assert launch_command("c.yaml", **requested) == 0
    assert named(capsys.readouterr().out, source.sha256) == []
    assert applied.campaign.target == campaign_of(folder).target


def test_site_keys_are_changed_as_by_components(folder, capsys):
    requested = {"image": "here/worker:1", "store": str(folder / "store"), "dry_run": True}
    keys = ["scheduler=volcano", "volcano_queue=a=b", "memory=5Gi"]
    assert launch_command("c.yaml", set_key=keys, **requested) == 0
    config_map, job = yaml.safe_load_all(capsys.readouterr().out)
    site = applied_from(config_map).site
    assert (site.scheduler, site.volcano_queue, site.memory) == ("volcano", "a=b", "5Gi")
    assert job["spec"]["template"]["spec"]["schedulerName"] == "volcano"
    for key, name in (("memory", "--set"), ("memory=much", "site.memory"), ("rack=1", "rack")):
        with pytest.raises(BadInput, match=name):
            launch_command("c.yaml", set_key=[key], **requested)


def test_a_dry_run_needs_no_credentials(folder, capsys, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    nowhere = str(folder / "nothing")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
    monkeypatch.setenv("AWS_CONFIG_FILE", nowhere)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    bucket = "s3://bucket/x?endpoint=http://127.0.0.1:9"
    assert launch_command("c.yaml", image="here/worker:1", store=bucket, dry_run=True) == 0
    printed = capsys.readouterr()
    assert [one["kind"] for one in yaml.safe_load_all(printed.out)] == ["ConfigMap", "Job"]
    assert "s3://bucket/x" in printed.err and "AWS_" in printed.err


@pytest.mark.thorough
def test_printed_and_applied_job_is_resumed_by_a_controller():
    simulation, other = Simulation(cases=6), Simulation(cases=6)
    other.reconcile()
    (job,) = other.cluster.worker_jobs()
    job["spec"]["suspend"] = True
    simulation.cluster.create_or_adopt(job)
    simulation.cluster.step()
    assert not simulation.cluster.tried
    simulation.run().check_complete()
    workers = [name for name in simulation.cluster.created if "merge" not in name]
    assert workers == [job["metadata"]["name"]]


def a_wave(plan_shards, avoid=()):
    return Wave("c", 1, "feed", 0, tuple((s,) for s in plan_shards), avoid)


@pytest.fixture
def plan(folder):
    from jobs.campaign.target import resolve_stack_of
    from jobs.planning.lifecycle import NewPlan, make_next, read_state

    campaign = campaign_of(folder, NPUS)
    state = read_state(campaign, MemoryStore(), resolve_stack_of(campaign, lambda: None))
    return make_next(state, NewPlan(1, ()), RunOptions()).plan


def test_nodes_are_avoided_by_their_names(plan):
    job = worker_job(a_wave("ab", avoid=("n1", "n2")), plan, CPU, DEPLOYMENT, cap=2)
    affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [one["values"] for one in term["matchFields"]] == [["n1"], ["n2"]]


def test_fingerprint_of_a_job_depends_only_on_image_and_site(plan):
    job = worker_job(a_wave("ab"), plan, CPU, DEPLOYMENT, cap=2)
    assert job["metadata"]["annotations"][MADE_OF] == made_of(CPU, DEPLOYMENT)
    same = replace(DEPLOYMENT, owner=("c", "uid"), controller_image="other")
    assert made_of(CPU, same) == made_of(CPU, DEPLOYMENT)
    assert made_of(CPU, replace(DEPLOYMENT, image="i")) != made_of(CPU, DEPLOYMENT)
    assert made_of(replace(CPU, memory="9Gi"), DEPLOYMENT) != made_of(CPU, DEPLOYMENT)


def test_mutable_fields_do_not_make_another_job(plan):
    wave = a_wave("abcd")
    one = worker_job(wave, plan, CPU, DEPLOYMENT, cap=1)
    two = worker_job(wave, plan, CPU, DEPLOYMENT, cap=3, suspend=True)
    assert is_same(one, two)
    old = worker_job(wave, plan, CPU, DEPLOYMENT, cap=1, features=DEGRADED)
    assert not is_same(one, old) and SPEC_HASH in old["metadata"]["annotations"]
    assert "podReplacementPolicy" not in old["spec"]


def test_digest_of_an_image_reaches_the_certificates(plan):
    pinned = replace(DEPLOYMENT, image="here/worker@sha256:" + "0" * 64)
    job = worker_job(a_wave("a"), plan, CPU, pinned, cap=1)
    env = {
        one["name"]: one.get("value")
        for one in job["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert env["OPMETER_IMAGE_DIGEST"] == "sha256:" + "0" * 64
