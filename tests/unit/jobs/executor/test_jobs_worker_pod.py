"""A worker pod: from its environment to its exit code, which depends on what is committed."""

import json
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from collector.codec.errors import BadInput, HostFault, StoreUnavailable
from collector.database.merge import CREATE
from collector.database.shard_commits import read_shard_commit
from collector.host.npus import Npu
from collector.host.stack import local_stack
from collector.model import keys
from collector.model.measurement import Outcome
from collector.model.plan import plan_to_json
from collector.store import open_store
from collector.store.file import FileStore
from collector.worker.assignment import Assignment, abandon
from collector.worker.exit_codes import ExitCode
from jobs.campaign.campaign_file import RunOptions, campaign_from_text
from jobs.executor import worker_pod
from jobs.executor.local_run import LocalRunFailed
from jobs.executor.worker_pod import End, task_of, work, write_termination_message
from jobs.objects.waves import Wave, wave_to_json
from jobs.planning.lifecycle import next_plan, read_state
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    write_campaign,
)
from tests.unit.jobs.printed import missing, numbers
from tests.waiting import wait_for


@pytest.fixture
def store(tmp_path):
    return FileStore(tmp_path / "store")


@pytest.fixture
def plan(store):
    shards = [MadeShard(f"s{n}", [add_record(n)], is_committed=False) for n in (1, 2, 3)]
    return write_campaign(store, MadePlan(shards))


def wave_of(store, plan, indexes=(("s1", "s2"), ("s3",)), plan_hash=None):
    wave = Wave("made", 1, plan_hash or plan.plan_hash, 0, indexes)
    store.create(keys.wave("made", wave.wave_hash), wave_to_json(wave))
    return wave


def environment(store, plan, wave, **more):
    return {
        "OPMETER_ROOT": store.url,
        "OPMETER_CAMPAIGN": "made",
        "OPMETER_WAVE": wave.wave_hash,
        "OPMETER_PLAN_HASH": plan.plan_hash,
        "JOB_COMPLETION_INDEX": "0",
        "POD_UID": "12345678-aaaa",
        **more,
    }


def commit(run, shard):
    assignment = Assignment("made", 1, run.plan.plan_hash, shard, f"{run.prefix}x")
    abandon(run.store, assignment, Outcome.FAILED, "played")


def commits_all(run, shards):
    for shard in shards:
        commit(run, shard)


def ended(store, plan, measure=commits_all, stop=None, wave=None, reach=open_store, **more):
    wave = wave or wave_of(store, plan)
    task = task_of(environment(store, plan, wave, **more))
    return work(task, stop or threading.Event(), measure, reach)


def fails(code, first=commits_all, shards=0):
    """Commits the first shards, then reports that the next one failed."""

    def measure(run, todo):
        first(run, todo[:shards])
        raise LocalRunFailed("its last words", code, todo[shards % len(todo)])

    return measure


@pytest.mark.fast
def test_index_with_committed_shards_is_done(store, plan):
    seen = []

    def measure(run, shards):
        seen.append((list(run.devices), run.prefix, list(shards), run.gives_up))
        commits_all(run, shards)

    assert ended(store, plan, measure) == End(ExitCode.DONE)
    assert seen == [([0], "12345678-0-", ["s1", "s2"], False)]


@pytest.mark.fast
def test_shard_committed_by_another_worker_is_not_measured_again(store, plan):
    wave = wave_of(store, plan)
    assert ended(store, plan, wave=wave).code == ExitCode.DONE
    assert ended(store, plan, fails(ExitCode.NODE), wave=wave).code == ExitCode.DONE


@pytest.mark.fast
def test_worker_that_failed_after_the_last_commit_is_done(store, plan):
    assert ended(store, plan, fails(ExitCode.NODE, shards=2)) == End(ExitCode.DONE)


@pytest.mark.fast
@pytest.mark.parametrize(("shards", "end"), [(1, End(44, "its last words", "s2")), (2, End(0))])
def test_example_of_a_failing_worker(store, plan, shards, end):
    assert ended(store, plan, fails(44, shards=shards)) == end


@pytest.mark.fast
@pytest.mark.parametrize(
    ("code", "found"),
    [
        (ExitCode.IMAGE, ExitCode.IMAGE),
        (ExitCode.NODE, ExitCode.NODE),
        (ExitCode.STORE, ExitCode.STORE),
        (ExitCode.HANG, ExitCode.HANG),
        (ExitCode.SPACE, ExitCode.SPACE),
        (-signal.SIGKILL, ExitCode.SPACE),  # like a process that ran out of memory
        (-signal.SIGSEGV, ExitCode.FAILED),
        (1, ExitCode.FAILED),
    ],
)
def test_failure_is_reported_with_its_shard(store, plan, code, found):
    assert ended(store, plan, fails(code, shards=1)) == End(found, "its last words", "s2")


@pytest.mark.fast
def test_stopped_pod_exits_as_temporary_and_blames_no_shard(store, plan):
    stop = threading.Event()

    def measure(run, shards):
        commit(run, shards[0])
        stop.set()
        raise LocalRunFailed("it was stopped", ExitCode.HANG)

    end = ended(store, plan, measure, stop)
    assert end.code == ExitCode.TEMPORARY and numbers(end.reason) == ["1"]


def dies(count):
    return tuple(Npu(i, i, i // 2, i % 2, "Ascend910", 64) for i in range(count))


def no_driver():
    raise HostFault("npu-smi does not answer")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("backend", "found", "order"),
    [
        ("npu", lambda: dies(4), [0, 2, 1, 3]),
        ("npu", lambda: dies(3), [0, 2, 1, 3]),  # one is missing: its worker reports so
        ("npu", lambda: dies(8), [0, 2, 1, 3]),
        ("npu", no_driver, [0, 1, 2, 3]),
        ("cpu", no_driver, [0, 1, 2, 3]),
    ],
)
def test_shards_are_dealt_out_over_all_chips_first(store, plan, monkeypatch, backend, found, order):
    seen = []

    def measure(run, shards):
        seen.extend(run.devices)
        commits_all(run, shards)

    plan = replace(plan, backend=backend)
    store.put(keys.plan("made", plan.number), plan_to_json(plan))
    monkeypatch.setattr(worker_pod, "list_npus", found)
    assert ended(store, plan, measure, OPMETER_DEVICES="4") == End(ExitCode.DONE)
    assert seen == order


def at_its_deadline(store, plan, measure, stop=None, **more):
    task = task_of(environment(store, plan, wave_of(store, plan), OPMETER_DEADLINE_S="3600"))
    assert task.deadline_s == 3600.0
    return work(replace(task, deadline_s=0.05), stop or threading.Event(), measure, **more)


@pytest.mark.fast
def test_unfinished_pod_at_its_deadline_is_a_hang(store, plan):
    def measure(run, shards):
        commit(run, shards[0])
        assert run.stop.wait(30)

    end = at_its_deadline(store, plan, measure)
    assert (end.code, end.shard) == (ExitCode.HANG, "s2")
    assert numbers(end.reason) == ["0.05", "1"]  # the deadline in seconds, and shards left


@pytest.mark.fast
def test_pod_that_lends_ranks_blames_no_node_at_its_deadline(store):
    shard = MadeShard("s1", [add_record(1)], is_committed=False)
    plan = write_campaign(store, MadePlan([shard], stack=local_stack("cpu", "")))
    end = lent(store, plan, OPMETER_DEADLINE_S="1")
    assert end.code == ExitCode.FAILED and numbers(end.reason) == ["1", "1"]


@pytest.mark.fast
def test_pod_of_another_device_lends_no_ranks(store, plan):
    end = lent(store, plan)
    assert end.code == ExitCode.NODE
    assert "'CPU_test_2t'" in end.reason


def lent(store, plan, **more):
    """How the second pod of a gang ends."""
    wave = replace(wave_of(store, plan, (("s1",), ("s1",))), pods=2)
    store.put(keys.wave(plan.campaign, wave.wave_hash), wave_to_json(wave))
    reported = environment(store, plan, wave, JOB_COMPLETION_INDEX="1", **more)
    return work(task_of(reported), threading.Event())


@pytest.mark.fast
def test_pod_stopped_before_its_deadline_is_not_a_hang(store, plan):
    stop = threading.Event()

    def measure(run, shards):
        stop.set()
        wait_for(lambda: "deadline" not in {thread.name for thread in threading.enumerate()})

    assert at_its_deadline(store, plan, measure, stop).code == ExitCode.TEMPORARY


@pytest.mark.fast
def test_finished_pod_at_its_deadline_is_done(store, plan):
    def measure(run, shards):
        assert run.stop.wait(30)
        commits_all(run, shards)

    assert at_its_deadline(store, plan, measure) == End(ExitCode.DONE)


@pytest.mark.fast
def test_unavailable_store_until_the_deadline_is_not_a_hang(store, plan, monkeypatch):
    class Away(FileStore):
        def get(self, key):
            raise StoreUnavailable("no route")

    monkeypatch.setattr(worker_pod, "_PATIENCE_S", 30.0)
    assert at_its_deadline(store, plan, commits_all, reach=Away) == End(ExitCode.STORE, "no route")


@pytest.mark.fast
def test_deadline_is_optional(store, plan):
    reported = environment(store, plan, wave_of(store, plan))
    assert task_of(reported).deadline_s is None


@pytest.mark.fast
def test_every_device_has_a_worker_under_a_concurrency_limit(store, plan):
    seen = []

    def measure(run, shards):
        seen.append(len(run.devices))
        commits_all(run, shards)

    more = {"OPMETER_DEVICES": "16", "OPMETER_MEASURE_CONCURRENCY": "8"}
    ended(store, plan, measure, **more)
    assert seen == [16]


@pytest.mark.fast
def test_index_outside_of_the_wave_blames_the_image(store, plan):
    end = ended(store, plan, JOB_COMPLETION_INDEX="7")
    assert end.code == ExitCode.IMAGE and missing(end.reason, ["2", "7"]) == []


@pytest.mark.fast
def test_another_plan_blames_the_image(store, plan):
    end = ended(store, plan, OPMETER_PLAN_HASH="0000")
    assert end.code == ExitCode.IMAGE and "0000" in end.reason
    wave = wave_of(store, plan, plan_hash="feed")
    end = ended(store, plan, wave=wave, OPMETER_PLAN_HASH="feed")
    assert end.code == ExitCode.IMAGE and "feed" in end.reason


@pytest.mark.fast
def test_missing_wave_blames_the_image(store, plan):
    wave = Wave("made", 1, plan.plan_hash, 5, (("s1",),))
    assert ended(store, plan, wave=wave).code == ExitCode.IMAGE


@pytest.mark.fast
@pytest.mark.parametrize(
    ("reported", "code"), [(True, ExitCode.TEMPORARY), (False, ExitCode.STORE)]
)
def test_unavailable_store_is_retried_and_blames_nothing(store, plan, monkeypatch, reported, code):
    class Away(FileStore):
        def get(self, key):
            raise StoreUnavailable("no route")

    wave, stop = wave_of(store, plan), threading.Event()
    monkeypatch.setattr(worker_pod, "_PATIENCE_S", 0.0)
    if reported:
        stop.set()
    assert ended(store, plan, stop=stop, wave=wave, reach=Away) == End(code, "no route")


@pytest.mark.fast
@pytest.mark.parametrize("missing", ["OPMETER_ROOT", "OPMETER_WAVE", "JOB_COMPLETION_INDEX"])
def test_pod_without_its_environment_is_refused_with_the_missing_variable(store, plan, missing):
    reported = environment(store, plan, Wave("made", 1, "h", 0, (("s1",),)))
    del reported[missing]
    with pytest.raises(BadInput, match=missing):
        task_of(reported)


@pytest.mark.fast
def test_nonnumeric_index_is_refused(store, plan):
    reported = environment(
        store, plan, Wave("made", 1, "h", 0, (("s1",),)), JOB_COMPLETION_INDEX="x"
    )
    with pytest.raises(BadInput, match="JOB_COMPLETION_INDEX.*'x'"):
        task_of(reported)


@pytest.mark.fast
def test_termination_message_is_one_json_line(tmp_path):
    log = tmp_path / "termination-log"
    assert write_termination_message(End(44, "bad\nnode", "s1"), log) == 44
    assert not log.exists()  # it belongs to the kubelet
    log.touch()
    write_termination_message(End(44, "bad\nnode", "s1"), log)
    (line,) = log.read_text().splitlines()
    assert json.loads(line) == {"code": 44, "reason": "bad\nnode", "shard": "s1"}


@pytest.mark.torch
@pytest.mark.slow
def test_two_pods_measure_a_gang_and_the_first_commits(tmp_path, monkeypatch):
    """Each with its own folders, as on two nodes, connected only by the store and TCP."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    store = FileStore(tmp_path / "store")
    text = (
        "campaign: small\nbackend: cpu\ndevices: 2\nsources:\n- collectives: {operations: "
        "[all_reduce], bytes: [4096], dtype: float32, groups: [2], ranks: 2, grid: [2], "
        "mode: event}\nmeasure: {budget_s: 0.01, repeats: [3, 3]}\nlimits: {memory_gb: 2}\n"
    )
    campaign = campaign_from_text(text, path="c.yaml", base=tmp_path)
    plan = next_plan(
        read_state(campaign, store), lambda: CREATE, RunOptions(), lambda line: None
    ).plan
    ((shard,),) = [[shard.shard_id for shard in plan.shards]]
    wave = Wave("small", 1, plan.plan_hash, 0, ((shard,),) * 2, pods=2)
    store.create(keys.wave("small", wave.wave_hash), wave_to_json(wave))

    def pod(index):
        scratch = tmp_path / f"pod-{index}"
        scratch.mkdir()
        reported = {"OPMETER_CAMPAIGN": "small", "TMPDIR": str(scratch), "POD_IP": "127.0.0.1"}
        reported["JOB_COMPLETION_INDEX"] = str(index)
        return work(task_of(environment(store, plan, wave, **reported)), threading.Event())

    with ThreadPoolExecutor(2) as pods:
        assert list(pods.map(pod, range(2))) == [End(ExitCode.DONE)] * 2
    commit_of_it = read_shard_commit(store, "small", shard)
    assert commit_of_it is not None and commit_of_it.attempt.startswith("12345678-0-")
    state = [info.key for info in store.list("campaigns/small/attempts/")]
    assert not [key for key in state if "/12345678-1-" in key], "the other pod writes nothing"


def test_a_pod_measures_its_index_with_real_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    store = FileStore(tmp_path / "store")
    text = (
        "campaign: small\nsources: [{bundled: quickstart}]\noperators: [Sub]\nbackend: cpu\n"
        "measure: {budget_s: 0.01, repeats: [3, 3]}\nlimits: {memory_gb: 2}\n"
    )
    campaign = campaign_from_text(text, path="c.yaml", base=tmp_path)
    state = read_state(campaign, store)
    plan = next_plan(state, lambda: CREATE, RunOptions(), lambda line: None).plan
    (shard, *_) = [shard.shard_id for shard in plan.shards]
    wave = Wave("small", 1, plan.plan_hash, 0, ((shard,),))
    store.create(keys.wave("small", wave.wave_hash), wave_to_json(wave))
    reported = environment(
        store, plan, wave, OPMETER_CAMPAIGN="small", TMPDIR=str(tmp_path / "work")
    )
    (tmp_path / "work").mkdir()
    assert work(task_of(reported), threading.Event()) == End(ExitCode.DONE)
    commit_of_it = read_shard_commit(store, "small", shard)
    assert commit_of_it is not None and commit_of_it.attempt.startswith("12345678-0-")
