"""Workers have separate credentials: with the policy that the manifests have for them, on a real
server, a worker can do all of its work, and nothing else."""

import json
import threading
from pathlib import Path

import pytest

from collector.codec.errors import StoreRefused
from collector.database.merge import CREATE
from collector.database.shard_commits import read_shard_commit
from collector.model import keys
from collector.store import open_store
from collector.store.base import Store
from collector.worker.exit_codes import ExitCode
from jobs.campaign.campaign_file import RunOptions, campaign_from_text
from jobs.cli.machine import stack_command
from jobs.executor.worker_pod import End, task_of, work
from jobs.objects.waves import Wave, wave_to_json
from jobs.planning.lifecycle import next_plan, read_state
from tests.contract.conftest import S3Server
from tests.servers.versitygw import NoServer, Versitygw

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
WORKER = "opmeter-workers"
CAMPAIGN = (
    "campaign: small\nsources: [{bundled: quickstart}]\noperators: [Sub]\nbackend: cpu\n"
    "measure: {budget_s: 0.01, repeats: [3, 3]}\nlimits: {memory_gb: 2}\n"
)


def policy_of_workers() -> str:
    """Return the policy of the manifests, for this server's account. versitygw does not support the
    condition of the last statement, and reports it."""
    file = ROOT / "manifests" / "components" / "s3-secret" / "workers-policy.json"
    policy = json.loads(file.read_text("utf-8"))
    policy["Statement"] = [one for one in policy["Statement"] if "Condition" not in one]
    for statement in policy["Statement"]:
        statement["Principal"] = {"AWS": WORKER}
    return json.dumps(policy)


@pytest.fixture
def server(tmp_path: Path):
    made = Versitygw(tmp_path / "server", accounts={WORKER: "a-secret-of-theirs"})
    made.root.mkdir()
    try:
        made.start()
    except NoServer as error:
        pytest.skip(str(error))
    made.make_bucket("perf")
    made.set_policy("perf", policy_of_workers())
    yield made
    made.stop()


@pytest.fixture
def owner(server: Versitygw, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store as controller and merges reach it; the environment is the worker's afterwards."""
    S3Server(server.endpoint, "perf", server.environment()).enter(monkeypatch)
    store = open_store(f"s3://perf/opmeter?endpoint={server.endpoint}")
    assert list(store.list("")) == []  # a client that has read its credentials keeps them
    for name, value in server.environment(WORKER).items():
        monkeypatch.setenv(name, value)
    return store


def test_worker_credentials_allow_only_the_objects_of_its_attempt(owner: Store):
    worker = open_store(owner.url)
    mine = keys.committed("small", "s1")
    for key in (mine, keys.progress("small", "s1", "a"), keys.part("small", "s1", "a", 1)):
        worker.create(key, b"x")
        assert worker.get(key) == b"x"
    worker.put(keys.progress("small", "s1", "a"), b"y")
    others = (
        *(keys.HEAD, keys.commit(1), keys.measurements("d/vllm_ascend/v", "a")),
        *(keys.snapshot_manifest("1-a"), keys.plan("small", 1), keys.wave("small", "a")),
        *(keys.shard("small", "s1"), keys.source("small", "a"), keys.nodes("small")),
        *(".probe/x", "x"),
    )
    for key in others:
        owner.put(key, b"theirs")
        for write in (worker.put, worker.create):
            with pytest.raises(StoreRefused):
                write(key, b"mine")
        with pytest.raises(StoreRefused):
            worker.delete(key)
        with pytest.raises(StoreRefused):
            worker.copy(mine, key)
        assert owner.get(key) == b"theirs"
    with pytest.raises(StoreRefused):
        worker.delete(mine)
    for key in (keys.HEAD, keys.commit(1)):
        with pytest.raises(StoreRefused):
            worker.get(key)


def test_probe_needs_only_the_rights_of_a_worker(owner: Store, capsys: pytest.CaptureFixture[str]):
    stack_command(backend="cpu", root=owner.url)
    printed = capsys.readouterr()
    assert json.loads(printed.out)["device"].startswith("CPU_") and owner.url in printed.err
    assert list(owner.list("")) == []


@pytest.mark.torch
@pytest.mark.slow
def test_pod_with_worker_credentials_commits_its_shards(
    owner: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    state = read_state(campaign_from_text(CAMPAIGN, path="c.yaml", base=tmp_path), owner)
    plan = next_plan(state, lambda: CREATE, RunOptions(), lambda line: None).plan
    shards = tuple(shard.shard_id for shard in plan.shards[:1])
    wave = Wave("small", 1, plan.plan_hash, 0, (shards,))
    owner.create(keys.wave("small", wave.wave_hash), wave_to_json(wave))
    (tmp_path / "work").mkdir()
    reported = {
        "OPMETER_ROOT": owner.url,
        "OPMETER_CAMPAIGN": "small",
        "OPMETER_WAVE": wave.wave_hash,
        "OPMETER_PLAN_HASH": plan.plan_hash,
        "JOB_COMPLETION_INDEX": "0",
        "TMPDIR": str(tmp_path / "work"),
    }
    assert work(task_of(reported), threading.Event()) == End(ExitCode.DONE)
    assert all(read_shard_commit(owner, "small", shard) is not None for shard in shards)
    written = {info.key.split("/")[2] for info in owner.list("campaigns/small/")}
    assert {"attempts", "committed"} <= written
    assert list(owner.list("db/")) == []
