"""Operators of a user's file, from the command to the database, in sessions on the CPU."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from threading import Event

import pytest

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput
from collector.database.merge import CREATE
from collector.model import keys
from collector.model.vocabulary import INPUT_CELLS, OPERATOR_FILE, OUTPUT_CELLS
from collector.ops.own import OperatorFile, declare, read_operator_file
from collector.store import open_store
from collector.worker.assignment import LOG, Assignment, work_on_shard
from collector.worker.exit_codes import ExitCode
from jobs.campaign.campaign_file import RunOptions
from jobs.cli.opening import open_campaign
from jobs.controller.launching import campaign_object, upload
from jobs.executor.worker_pod import End, task_of
from jobs.executor.worker_pod import work as work_in_pod
from jobs.objects.applied_campaign import applied_from
from jobs.objects.deployment import Deployment
from jobs.objects.job_manifest import worker_job
from jobs.objects.waves import Wave, wave_to_json
from jobs.planning.lifecycle import next_plan, read_state
from jobs.planning.sources import load_sources
from tests.unit.jobs.cli.in_process import ROOT, opmeter_here

pytestmark = [pytest.mark.torch, pytest.mark.slow]

OWN = ROOT / "tests" / "fixtures" / "own_operators.py"
CAMPAIGN = """campaign: own
sources: [{tree: tree}]
operators: [my_ops.py]
backend: cpu
measure: {repeats: 5}
quality: {repeat_share: 0}
"""
HEADER = ",".join((*INPUT_CELLS, *OUTPUT_CELLS))


def opmeter(folder: Path, *words: str) -> CompletedProcess[str]:
    """Run a command beside other runs on this CPU: no test here compares durations."""
    return opmeter_here(
        *words, cwd=folder, OPMETER_LOCKS=str(folder / "locks"), PYTHONPATH=str(ROOT)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(OWN, tmp_path / "my_ops.py")
    (tmp_path / "locks").mkdir()
    return tmp_path


def write_campaign(folder: Path) -> None:
    (folder / "campaign.yaml").write_text(CAMPAIGN)
    more = 'MORE = Operator("OwnUnused", "x T -> y T", torch.neg)\n'  # no source has it
    (folder / "my_ops.py").write_text((folder / "my_ops.py").read_text() + more)
    (folder / "tree").mkdir()
    row = '"{0};{1}",FLOAT;FLOAT,ND;ND,"{0}",FLOAT,ND\n'
    for kernel, other in (("ScaledSilu", "32"), ("own_add_kernel", "8,32"), ("Add", "8,32")):
        rows = f"{HEADER}\n{row.format('8,32', other)}"
        (folder / "tree" / f"{kernel}.csv").write_text(rows)


def test_campaign_measures_operators_of_its_files(folder: Path) -> None:
    write_campaign(folder)
    planned = opmeter(folder, "plan", "campaign.yaml")
    assert planned.returncode == 0 and "cases      2 in 1" in planned.stdout, planned.stderr
    done = opmeter(folder, "run", "campaign.yaml", "--strict")
    assert done.returncode == 0, done.stderr
    root = folder / "opmeter-data" / "campaigns" / "own"
    plan = json.loads((root / "plans" / "1.json").read_text())
    file = read_operator_file(folder / "my_ops.py")
    assert plan["operator_files"] == [{"name": "my_ops.py", "sha256": file.sha256}]
    assert (root / "operators" / f"{file.sha256}.py").read_text() == file.text
    (part,) = root.glob("attempts/*/*/part-1.csv")
    rows = list(csv.DictReader(part.read_text().splitlines()))
    assert {one["kernel_type"]: one["outcome"] for one in rows} == {
        "ScaledSilu": "ok",
        "own_add_kernel": "ok",
    }
    pulled = opmeter(folder, "db", "pull", "pulled")
    assert pulled.returncode == 0, pulled.stderr
    (table,) = (folder / "pulled").glob("**/ScaledSilu.csv")
    (shown,) = csv.DictReader(table.read_text().splitlines())
    assert shown[OPERATOR_FILE] == file.hash
    _not_executed_unless_allowed(folder, plan, file)


def _not_executed_unless_allowed(folder: Path, plan: dict, file: OperatorFile) -> None:
    """The store's file is executed by a worker that is given its hash, and by no other."""
    root = folder / "opmeter-data"
    own = root / "campaigns" / "own"
    shutil.rmtree(own / "committed")
    shutil.rmtree(own / "attempts")
    plan_hash = sha256_hex((own / "plans" / "1.json").read_bytes())[:16]
    scratch, store = folder / "scratch", open_store(str(root))
    scratch.mkdir()
    (scratch / LOG).touch()
    assigned = Assignment("own", 1, plan_hash, plan["shards"][0]["shard_id"], "a")
    denied = replace(assigned, operators=("0" * 64,))
    assert work_on_shard(store, denied, scratch, Event(), watched=store)
    (part,) = root.glob("campaigns/own/attempts/*/a/part-1.csv")
    for row in csv.DictReader(part.read_text().splitlines()):
        assert row["outcome"] == "unsupported" and file.hash in row["reason"]


def test_launched_files_are_executed_in_pods_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    write_campaign(folder)
    path, store = str(folder / "campaign.yaml"), open_store(str(folder / "store"))
    deployment = Deployment("bench", "here/collector:1", "here/controller:1", store.url)
    try:
        campaign = open_campaign(path)
        loaded = load_sources(campaign, store)
        applied = campaign_object(campaign, path, "cpu", deployment, loaded)
    finally:
        declare(())  # from here on, no file is executed
    found = applied_from(applied)
    assert found.campaign.operators == {"ScaledSilu", "own_add_kernel"}
    with pytest.raises(BadInput, match="not stored"):
        read_state(found.campaign, store)
    upload(campaign, loaded, store)
    state = read_state(found.campaign, store)
    plan = next_plan(state, lambda: CREATE, RunOptions(), lambda line: None).plan
    wave = Wave("own", 1, plan.plan_hash, 0, (tuple(one.shard_id for one in plan.shards),))
    store.create(keys.wave("own", wave.wave_hash), wave_to_json(wave))
    job = worker_job(wave, plan, found.site, found.deployment, cap=1)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    of_job = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    (folder / "work").mkdir()
    of_pod = {"JOB_COMPLETION_INDEX": "0", "TMPDIR": str(folder / "work"), "OPMETER_DEADLINE_S": ""}
    (folder / "my_ops.py").unlink()
    assert work_in_pod(task_of({**of_job, **of_pod}), Event()) == End(ExitCode.DONE)
    parts = (folder / "store").glob("campaigns/own/attempts/*/*/part-1.csv")
    rows = [row for part in parts for row in csv.DictReader(part.read_text().splitlines())]
    assert {one["kernel_type"] for one in rows} == found.campaign.operators
    assert [one["reason"] for one in rows if one["outcome"] != "ok"] == []
    refused = {**applied["data"], "site.own_operators": "refused"}
    with pytest.raises(BadInput, match="own_operators: refused"):
        applied_from({**applied, "data": refused})
    local = {**applied["data"], "campaign.yaml": CAMPAIGN.replace("my_ops.py", str(OWN))}
    with pytest.raises(BadInput, match="NAME.py@SHA256"):
        applied_from({**applied, "data": local})


def test_check_compares_with_signatures_and_references(folder: Path) -> None:
    good = opmeter(folder, "ops", "--check", "my_ops.py")
    assert good.returncode == 0 and len(good.stdout.splitlines()) == 2, good.stdout
    text = (folder / "my_ops.py").read_text()
    text = text.replace("x * torch.sigmoid(x) * gate", "x * gate")
    text += "NONE = Operator('OwnNone', 'x FLOAT[n, k] -> y FLOAT[n]', 'torch.no_such_function')\n"
    text += "SUM = Operator('OwnSum', 'x FLOAT[n, k] -> y FLOAT[n]', lambda x: x.sum(0))\n"
    (folder / "my_ops.py").write_text(text)
    bad = opmeter(folder, "ops", "--check", "my_ops.py", "--json")
    problems = {one["kernel"]: one["problem"] for one in json.loads(bad.stdout)}
    assert bad.returncode == 1 and not problems["own_add_kernel"]
    assert "reference" in problems["ScaledSilu"]
    assert "no_such_function" in problems["OwnNone"] and "output 0" in problems["OwnSum"]


def test_measured_operator_is_answered_without_its_file(folder: Path) -> None:
    case = "own_add_kernel 64,64;64,64 fp32"
    words = ("--operators", "my_ops.py", "--backend", "cpu", "--sessions", "2", "--json")
    done = opmeter(folder, "measure", case, *words)
    assert done.returncode == 0, done.stderr
    (measured,) = json.loads(done.stdout)["cases"]
    (folder / "my_ops.py").unlink()
    queried = json.loads(opmeter(folder, "query", case, "--json").stdout)
    assert queried[0]["value_us"] == measured["value_us"] and queried[0]["support"] == 2
