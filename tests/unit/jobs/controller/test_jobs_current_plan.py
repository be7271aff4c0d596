"""Which plan a controller works on when inputs, stacks, images and damage change: the real
controller on a simulated cluster and a real store."""

from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.database.commits import find_head
from collector.database.query import case_results, held_shards
from collector.database.snapshot import load_state
from collector.model import keys
from collector.model.plan import read_shard
from jobs.campaign.campaign_file import RunOptions
from jobs.controller.performer import Performer
from jobs.controller.remembered import KnownPlan, Memory
from jobs.decide.actions import Finish
from jobs.decide.observed import Observed
from jobs.objects.applied_campaign import SELECTOR, applied_from, rerun_annotations
from jobs.objects.gangs import check_gangs, wide_gangs
from jobs.objects.site import load_site
from jobs.planning import lifecycle
from jobs.planning.stored_plans import committed_shards, read_plans
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    commit_shard,
)
from tests.unit.jobs.controller.played_campaign import (
    MAP,
    STACK,
    Play,
    everything_is_held,
    merges,
    rot,
)
from tests.unit.jobs.fake_cluster import RUNS
from tests.unit.jobs.plans import plan_of, shards_of
from tests.unit.jobs.printed import missing

few_trees = pytest.mark.usefixtures("few_trees")


def gang_of(ranks, backend="npu", devices=8):
    plan = plan_of((replace(shards_of(1.0)[0], ranks=ranks),), backend=backend)
    return replace(plan, devices=devices)


def test_gang_that_fits_into_a_pod_is_accepted():
    node = load_site("a2-800t", {"shape": "node"})
    check_gangs(gang_of(8), node)
    check_gangs(gang_of(1), load_site("a2-800t"))
    check_gangs(gang_of(2), load_site("a2-800t", {"shape": "pair"}))
    check_gangs(gang_of(64, backend="cpu"), load_site("cpu"))


def test_gang_wider_than_a_pod_uses_several():
    node, cpu = load_site("a2-800t", {"shape": "node"}), load_site("cpu", {"ranks_per_pod": "2"})
    assert wide_gangs(gang_of(16, devices=16), node) == {"s0": 2}
    assert wide_gangs(gang_of(8), node) == {}
    assert wide_gangs(gang_of(6, backend="cpu"), cpu) == {"s0": 3}
    check_gangs(gang_of(16, devices=16), node)


@pytest.mark.parametrize(
    ("ranks", "changes", "devices", "data"),
    [
        (8, {}, 8, ["1 device", "device"]),
        (4, {"shape": "pair"}, 8, ["2 devices", "pair"]),
        (17, {"shape": "node"}, 32, ["3 pods"]),
        (16, {"shape": "node"}, 8, ["2 pods", "1"]),
    ],
)
def test_gang_that_does_not_fit_is_refused_with_the_reason(ranks, changes, devices, data):
    with pytest.raises(BadInput) as refused:
        check_gangs(gang_of(ranks, devices=devices), load_site("a2-800t", changes))
    assert missing(str(refused.value), [f"{ranks} ranks", "a2-800t", *data]) == []


def test_ranks_per_pod_is_accepted_only_for_cpus():
    with pytest.raises(BadInput, match="ranks_per_pod: "):
        load_site("a2-800t", {"ranks_per_pod": "2"})


def test_unspecified_stack_is_read_by_a_probe_pod():
    play = Play(target="target: here")
    play.cluster.stack = STACK
    play.play().check_complete()
    assert play.plan.stack == STACK
    assert sum(name.startswith("opmeter-probe-") for name in play.cluster.created) == 1


def test_probe_completes_the_stack_of_a_named_processor():
    """Without flags, threads and allocator every worker would refuse the plan."""
    found = replace(STACK, details=(("flags", "avx2"), ("threads", "2")))
    play = Play(target="target: {device: CPU_test_2t, torch: 2.13.0+cpu}")
    play.cluster.stack = found
    play.play().check_complete()
    assert play.plan.stack == found


def test_another_processor_than_that_of_the_campaign_is_refused():
    play = Play(target="target: {device: CPU_other_8t, torch: 2.13.0+cpu}")
    play.cluster.stack = STACK
    play.rounds(6)
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "BadInput"]
    assert "CPU_other_8t" in event["message"] and "CPU_test_2t" in event["message"]
    assert not play.cluster.worker_jobs()


def test_changed_inputs_make_another_plan_and_delete_the_old_jobs():
    play = Play(cases=24)
    play.rounds(2)
    old = {job["metadata"]["name"] for job in play.cluster.worker_jobs()}
    play.cases = 26
    play.apply()
    play.play()
    assert play.plan.number == 2
    assert old and not old & set(play.cluster.live)
    head = load_state(play.store, find_head(play.store))
    wanted = {("small", shard.shard_id) for shard in play.plan.shards}
    assert wanted <= held_shards(head)


def test_a_plan_of_a_cluster_is_made_for_pods(monkeypatch):
    made, usual = [], lifecycle.make_next

    def make_next(state, *more):
        made.append(state.in_pods)
        return usual(state, *more)

    monkeypatch.setattr(lifecycle, "make_next", make_next)
    Play(cases=3).rounds(2)
    assert made and all(made)


def test_commits_of_an_older_plan_are_merged_by_a_job_before_the_next_plan(monkeypatch):
    def merge_here(*arguments, **options):
        raise AssertionError("a controller merges nothing itself")

    monkeypatch.setattr(lifecycle, "merge_plans", merge_here)
    play = Play(cases=24)
    play.rounds(2)
    done = committed_shards(play.store, "small")
    play.cases = 26
    play.apply()
    play.cluster.merges_wait = True
    play.rounds(4)
    assert play.plan.number == 1 and find_head(play.store) is None
    [command] = merges(play)
    assert command[:5] == ["opmeter", "merge", "small", "--plan", "1"]
    assert "--allow-missing" in command
    play.cluster.merges_wait = False
    play.play()
    assert play.plan.number == 2 and everything_is_held(play)
    tried = [shard for shard, _ in play.cluster.tried]
    assert done and len(tried) == len(set(tried))


def test_failing_merge_of_older_plans_is_announced_and_retried():
    play = Play(cases=24)
    play.rounds(2)
    play.cases = 26
    play.apply()
    play.cluster.merges_fail = "no space"
    play.rounds(6)
    assert play.plan.number == 1 and "MergeFailed" in play.cluster.reasons()
    [name] = [name for name in play.cluster.created if "-merge-" in name]
    play.cluster.merges_fail = ""
    del play.cluster.live[name]  # by its time to live
    play.play()
    assert play.plan.number == 2 and everything_is_held(play)


def with_pods_at_work(cases=24):
    """A campaign that has committed something, and whose pods continue to run."""
    play = Play(cases=cases)
    play.cluster.grace = True
    play.rounds(2)
    play.cluster.worker = lambda shard, node: RUNS
    play.rounds(1)
    assert committed_shards(play.store, "small")
    return play


def test_commit_in_the_grace_period_of_a_retired_plan_is_published():
    play = with_pods_at_work()
    play.cases = 26
    play.apply()
    play.rounds(1)
    play.reconcile()  # the next plan: the Job of the last is deleted, and its pods are asked to end
    assert play.plan.number == 2 and play.cluster.going
    before = committed_shards(play.store, "small")
    play.cluster.worker = lambda shard, node: 0
    play.cluster.step()
    first = {s.shard_id for s in read_plans(play.store, "small")[0].shards}
    assert (committed_shards(play.store, "small") - before) & first
    play.play()
    assert play.plan.number == 2 and everything_is_held(play)


def test_campaign_waits_for_pods_of_deleted_jobs_before_it_ends():
    """The next plan has nothing to measure, and a worker of the last plan still commits."""
    play = with_pods_at_work()
    done = {
        case.record.cells["Input Shapes"]
        for shard in committed_shards(play.store, "small")
        for case in read_shard(play.store.get(keys.shard("small", shard)))
    }
    play.chosen = [n for n in range(1, 25) if add_record(64 * n).cells["Input Shapes"] in done]
    play.apply()
    play.rounds(1)
    play.reconcile()
    assert play.plan.number == 2 and not play.plan.shards
    assert not play.reconcile() and not play.reconcile() and play.cluster.going
    play.cluster.worker = lambda shard, node: 0
    play.play()
    assert everything_is_held(play)


def test_pod_that_never_ends_does_not_block_a_campaign():
    play = with_pods_at_work()
    play.cases = 26
    play.apply()
    play.rounds(1)
    play.reconcile()
    play.cluster.running += [pod for _, pod in play.cluster.going]  # of a lost node
    play.cluster.going = []
    stuck = [pod["metadata"]["name"] for pod in play.cluster.running]
    play.cluster.worker = lambda shard, node: 0
    for _ in range(100):
        finished = play.reconcile(after_s=60.0)
        pods = play.cluster.running
        play.cluster.running = [p for p in pods if p["metadata"]["name"] not in stuck]
        play.cluster.step()
        play.cluster.running += [p for p in pods if p["metadata"]["name"] in stuck]
        if finished:
            break
    assert finished and everything_is_held(play)


def test_damaged_shard_is_announced_and_measured_by_the_next_plan():
    play = Play(cases=24)
    play.rounds(2)
    bad = rot(play)
    cases = {s.shard_id: s.cases for s in play.plan.shards}
    play.play()
    assert play.plan.number == 2 and play.plan.round == "2m1"
    assert sum(shard.cases for shard in play.plan.shards) == cases[bad]
    [event] = [e for e in play.cluster.told.values() if e["reason"] == "Damaged"]
    assert bad in event["message"] and "part-" in event["message"] and event["warning"]
    state = load_state(play.store, find_head(play.store))
    held = {name for _, name in held_shards(state)}
    assert held == committed_shards(play.store, "small") - {bad}
    assert len(case_results(state, STACK.version_path)) == play.cases
    assert play.new_controller().reconcile() == {"small": True}


def test_shard_of_an_older_plan_that_a_merge_finds_damaged_is_measured_again():
    """The database was lost, and then a shard of an older plan is damaged."""
    play = Play(cases=24)
    play.play()
    first = {shard.shard_id for shard in play.plan.shards}
    play.cases = 26
    play.apply()
    play.play()
    assert play.plan.number == 2 and not first & {shard.shard_id for shard in play.plan.shards}
    for info in list(play.store.list("db/")):
        play.store.delete(info.key)
    play.cluster.live.clear()  # by their time to live
    order = sorted(committed_shards(play.store, "small"))
    bad = rot(play, next(at for at, shard in enumerate(order) if shard in first))
    play.annotate(merged=None)
    play.controller = play.new_controller()
    play.play()
    assert (play.plan.number, play.plan.round) == (3, "3m1")
    state = load_state(play.store, find_head(play.store))
    assert len(case_results(state, STACK.version_path)) == 26
    assert bad not in {name for _, name in held_shards(state)}
    assert play.new_controller().reconcile() == {"small": True}


CURVE = {"cases": 400, "target_s": 2, "more": "density: {tolerance: 50%, share: 50%}\n"}


def measures(play):
    """Workers that measure: the duration of a case is its size plus a launch."""

    def worker(shard, node):
        plan = play.plan
        records = [case.record for case in read_shard(play.store.get(keys.shard("small", shard)))]
        tried = {r.case_id: Tried(5 + r.case.inputs[0].numel / 1e4) for r in records}
        made = MadePlan((), "small", plan.number, plan.head_commit, STACK, attempt=f"of-{shard}")
        commit_shard(play.store, made, plan, MadeShard(shard, records, [tried]))
        return 0

    play.cluster.worker = worker


def test_rounds_continue_until_the_surface_is_known():
    """The results of one round decide the next; a new leader continues from what is stored."""
    play = Play(**CURVE)
    measures(play)

    def each(play, number):
        if number % 4 == 3:
            play.controller = play.new_controller()

    play.play(each=each)
    forecasts = [plan.forecast for plan in read_plans(play.store, "small")]
    assert [f.learning for f in forecasts] == [150, 0]
    assert [f.left_out for f in forecasts] == [250, 250] and forecasts[-1].unsure <= 12
    state = load_state(play.store, find_head(play.store))
    assert len(case_results(state, STACK.version_path)) == 150 and everything_is_held(play)
    assert play.new_controller().reconcile() == {"small": True}


@pytest.mark.parametrize(("learning", "told"), [(150, True), (0, False)])
def test_partial_end_announces_the_round_that_was_due(learning, told):
    play = Play(**CURVE)
    play.reconcile()
    forecast = replace(play.plan.forecast, learning=learning)
    known = KnownPlan(replace(play.plan, forecast=forecast))
    (applied,) = map(applied_from, play.cluster.config_maps(SELECTOR))
    performer = Performer(play.cluster, applied, known, play.store, Memory(lambda: 0.0))
    performer.perform(Finish(partial=True), Observed(frozenset(), ()))
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "Merged"]
    assert "plan 1" in event["message"]
    assert ("density" in event["message"]) is told


def test_planner_that_lost_the_lease_publishes_no_plan():
    """The first request starts it; the plan is made between the first and the second."""
    play = Play(**CURVE)
    asked = []

    def leads_once():
        asked.append(True)
        return len(asked) == 1

    play.controller = play.new_controller(may_perform=leads_once)
    assert not play.reconcile()
    assert len(asked) == 2 and not read_plans(play.store, "small")
    assert not any(event["reason"] == "Planned" for event in play.cluster.told.values())
    play.controller = play.new_controller()
    play.reconcile()
    assert read_plans(play.store, "small")


@few_trees
def test_damage_of_a_round_is_repaired_before_the_next():
    play = Play(**CURVE)
    measures(play)
    while not committed_shards(play.store, "small"):
        play.rounds(1)
    rot(play)
    play.play()
    assert [plan.round for plan in read_plans(play.store, "small")] == ["", "2m1", "3"]
    state = load_state(play.store, find_head(play.store))
    assert len(case_results(state, STACK.version_path)) == 150


@few_trees
def test_rounds_end_on_a_store_that_damages_everything():
    play = Play(**CURVE)
    measures(play)

    def each(play, number):
        for info in play.store.list("campaigns/small/attempts/"):
            if "/part-" in info.key:
                play.store.put(info.key, b"rot")

    play.play(each=each)
    assert [plan.round for plan in read_plans(play.store, "small")] == ["", "2m1", "3m2", "4m3"]


@few_trees
def test_rounds_end_if_their_results_are_invisible(monkeypatch):
    monkeypatch.setattr(lifecycle, "read_head_results", lambda *_, **__: {})
    play = Play(**CURVE)
    measures(play)
    play.play()
    assert [plan.forecast.learning for plan in read_plans(play.store, "small")] == [150, 0]
    assert play.new_controller().reconcile() == {"small": True}


@few_trees
def test_curve_without_measurable_points_is_requested_completely():
    play = Play(**CURVE).play()
    assert [plan.forecast.learning for plan in read_plans(play.store, "small")] == [150, 50, 200, 0]
    state = load_state(play.store, find_head(play.store))
    assert len(case_results(state, STACK.version_path)) == 400


def test_campaign_on_a_store_that_damages_everything_ends_with_an_event():
    play = Play(cases=4)

    def each(play, number):
        for info in play.store.list("campaigns/small/attempts/"):
            if "/part-" in info.key:
                play.store.put(info.key, b"rot")

    play.play(each=each)
    assert play.plan.number == 4 and find_head(play.store) is None
    assert "Damaged" in play.cluster.reasons()


def test_same_plan_continues_with_another_image():
    play = Play(cases=24)
    play.cluster.worker = lambda shard, node: 43
    play.rounds(3)
    assert "WrongImage" in play.cluster.reasons()
    made = len(play.cluster.created)
    play.rounds(3)
    assert len(play.cluster.created) == made  # nothing starts with the wrong image
    play.cluster.worker = lambda shard, node: 0
    play.apply(image="here/collector:2")
    play.play().check_complete()
    assert play.plan.number == 1


def test_relaunched_campaign_retries_a_wrong_image():
    play = Play(cases=24)
    play.annotate(launched="monday")
    play.cluster.worker = lambda shard, node: 43
    play.rounds(3)
    assert "WrongImage" in play.cluster.reasons()
    play.cluster.worker = lambda shard, node: 0  # the tag refers to another image now
    play.rounds(3)
    assert not play.store.commits
    play.annotate(launched="tuesday")
    play.play().check_complete()
    assert play.plan.number == 1


def test_rerun_request_is_served_once_per_token():
    play = Play(cases=6).play()
    said = rerun_annotations(RunOptions(again=True), "monday")
    play.cluster.annotate_config_map(MAP, said)
    play.play()
    assert play.plan.number == 2 and play.plan.round == "2"
    assert play.new_controller().reconcile() == {"small": True}
    play.apply(image="here/collector:2")  # reports nothing new about the request
    play.play()
    assert play.plan.number == 2
    play.annotate(again="tuesday")
    play.play()
    assert play.plan.number == 3
