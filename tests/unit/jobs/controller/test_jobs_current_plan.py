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
from tests.unit.jobs.controller.simulated_campaign import (
    MAP,
    STACK,
    Simulation,
    everything_is_held,
    merges,
    rot,
)
from tests.unit.jobs.fake_cluster import RUNS
from tests.unit.jobs.plans import plan_of, shards_of
from tests.unit.jobs.printed import missing


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
    simulation = Simulation(target="target: here")
    simulation.cluster.stack = STACK
    simulation.run().check_complete()
    assert simulation.plan.stack == STACK
    assert sum(name.startswith("opmeter-probe-") for name in simulation.cluster.created) == 1


def test_probe_completes_the_stack_of_a_named_processor():
    """Without flags, threads and allocator every worker would refuse the plan."""
    found = replace(STACK, details=(("flags", "avx2"), ("threads", "2")))
    simulation = Simulation(target="target: {device: CPU_test_2t, torch: 2.13.0+cpu}")
    simulation.cluster.stack = found
    simulation.run().check_complete()
    assert simulation.plan.stack == found


def test_another_processor_than_that_of_the_campaign_is_refused():
    simulation = Simulation(target="target: {device: CPU_other_8t, torch: 2.13.0+cpu}")
    simulation.cluster.stack = STACK
    simulation.rounds(6)
    (event,) = [e for e in simulation.cluster.reported.values() if e["reason"] == "BadInput"]
    assert "CPU_other_8t" in event["message"] and "CPU_test_2t" in event["message"]
    assert not simulation.cluster.worker_jobs()


def test_changed_inputs_make_another_plan_and_delete_the_old_jobs():
    simulation = Simulation(cases=24)
    simulation.rounds(2)
    old = {job["metadata"]["name"] for job in simulation.cluster.worker_jobs()}
    simulation.cases = 26
    simulation.apply()
    simulation.run()
    assert simulation.plan.number == 2
    assert old and not old & set(simulation.cluster.live)
    head = load_state(simulation.store, find_head(simulation.store))
    expected = {("small", shard.shard_id) for shard in simulation.plan.shards}
    assert expected <= held_shards(head)


def test_commits_of_an_older_plan_are_merged_by_a_job_before_the_next_plan(monkeypatch):
    def merge_here(*arguments, **options):
        raise AssertionError("a controller merges nothing itself")

    monkeypatch.setattr(lifecycle, "merge_plans", merge_here)
    simulation = Simulation(cases=24)
    simulation.rounds(2)
    done = committed_shards(simulation.store, "small")
    simulation.cases = 26
    simulation.apply()
    simulation.cluster.merges_wait = True
    simulation.rounds(4)
    assert simulation.plan.number == 1 and find_head(simulation.store) is None
    [command] = merges(simulation)
    assert command[:6] == ["opmeter", "db", "merge", "small", "--plan", "1"]
    assert "--allow-missing" in command
    simulation.cluster.merges_wait = False
    simulation.run()
    assert simulation.plan.number == 2 and everything_is_held(simulation)
    tried = [shard for shard, _ in simulation.cluster.tried]
    assert done and len(tried) == len(set(tried))


def test_failing_merge_of_older_plans_is_announced_and_retried():
    simulation = Simulation(cases=24)
    simulation.rounds(2)
    simulation.cases = 26
    simulation.apply()
    simulation.cluster.merges_fail = "no space"
    simulation.rounds(6)
    assert simulation.plan.number == 1 and "MergeFailed" in simulation.cluster.reasons()
    [name] = [name for name in simulation.cluster.created if "-merge-" in name]
    simulation.cluster.merges_fail = ""
    del simulation.cluster.live[name]  # by its time to live
    simulation.run()
    assert simulation.plan.number == 2 and everything_is_held(simulation)


def with_pods_at_work(cases=24):
    """A campaign that has committed something, and whose pods continue to run."""
    simulation = Simulation(cases=cases)
    simulation.cluster.grace = True
    simulation.rounds(2)
    simulation.cluster.worker = lambda shard, node: RUNS
    simulation.rounds(1)
    assert committed_shards(simulation.store, "small")
    return simulation


def test_commit_in_the_grace_period_of_a_retired_plan_is_published():
    simulation = with_pods_at_work()
    simulation.cases = 26
    simulation.apply()
    simulation.rounds(1)
    simulation.reconcile()  # the next plan: the last Job is deleted, its pods end
    assert simulation.plan.number == 2 and simulation.cluster.going
    before = committed_shards(simulation.store, "small")
    simulation.cluster.worker = lambda shard, node: 0
    simulation.cluster.step()
    first = {s.shard_id for s in read_plans(simulation.store, "small")[0].shards}
    assert (committed_shards(simulation.store, "small") - before) & first
    simulation.run()
    assert simulation.plan.number == 2 and everything_is_held(simulation)


def test_campaign_waits_for_pods_of_deleted_jobs_before_it_ends():
    """The next plan has nothing to measure, and a worker of the last plan still commits."""
    simulation = with_pods_at_work()
    done = {
        case.record.cells["Input Shapes"]
        for shard in committed_shards(simulation.store, "small")
        for case in read_shard(simulation.store.get(keys.shard("small", shard)))
    }
    simulation.chosen = [
        n for n in range(1, 25) if add_record(64 * n).cells["Input Shapes"] in done
    ]
    simulation.apply()
    simulation.rounds(1)
    simulation.reconcile()
    assert simulation.plan.number == 2 and not simulation.plan.shards
    assert not simulation.reconcile() and not simulation.reconcile() and simulation.cluster.going
    simulation.cluster.worker = lambda shard, node: 0
    simulation.run()
    assert everything_is_held(simulation)


def test_pod_that_never_ends_does_not_block_a_campaign():
    simulation = with_pods_at_work()
    simulation.cases = 26
    simulation.apply()
    simulation.rounds(1)
    simulation.reconcile()
    simulation.cluster.running += [pod for _, pod in simulation.cluster.going]  # of a lost node
    simulation.cluster.going = []
    stuck = [pod["metadata"]["name"] for pod in simulation.cluster.running]
    simulation.cluster.worker = lambda shard, node: 0
    for _ in range(100):
        finished = simulation.reconcile(after_s=60.0)
        pods = simulation.cluster.running
        simulation.cluster.running = [p for p in pods if p["metadata"]["name"] not in stuck]
        simulation.cluster.step()
        simulation.cluster.running += [p for p in pods if p["metadata"]["name"] in stuck]
        if finished:
            break
    assert finished and everything_is_held(simulation)


def test_damaged_shard_is_announced_and_measured_by_the_next_plan():
    simulation = Simulation(cases=24)
    simulation.rounds(2)
    bad = rot(simulation)
    cases = {s.shard_id: s.cases for s in simulation.plan.shards}
    simulation.run()
    assert simulation.plan.number == 2 and simulation.plan.round == "2m1"
    assert sum(shard.cases for shard in simulation.plan.shards) == cases[bad]
    [event] = [e for e in simulation.cluster.reported.values() if e["reason"] == "Damaged"]
    assert bad in event["message"] and "part-" in event["message"] and event["warning"]
    state = load_state(simulation.store, find_head(simulation.store))
    held = {name for _, name in held_shards(state)}
    assert held == committed_shards(simulation.store, "small") - {bad}
    assert len(case_results(state, STACK.version_path)) == simulation.cases
    assert simulation.new_controller().reconcile() == {"small": True}


def test_shard_of_an_older_plan_that_a_merge_finds_damaged_is_measured_again():
    """The database was lost, and then a shard of an older plan is damaged."""
    simulation = Simulation(cases=24)
    simulation.run()
    first = {shard.shard_id for shard in simulation.plan.shards}
    simulation.cases = 26
    simulation.apply()
    simulation.run()
    assert simulation.plan.number == 2 and not first & {
        shard.shard_id for shard in simulation.plan.shards
    }
    for info in list(simulation.store.list("db/")):
        simulation.store.delete(info.key)
    simulation.cluster.live.clear()  # by their time to live
    order = sorted(committed_shards(simulation.store, "small"))
    bad = rot(simulation, next(at for at, shard in enumerate(order) if shard in first))
    simulation.annotate(merged=None)
    simulation.controller = simulation.new_controller()
    simulation.run()
    assert (simulation.plan.number, simulation.plan.round) == (3, "3m1")
    state = load_state(simulation.store, find_head(simulation.store))
    assert len(case_results(state, STACK.version_path)) == 26
    assert bad not in {name for _, name in held_shards(state)}
    assert simulation.new_controller().reconcile() == {"small": True}


CURVE = {"cases": 400, "target_s": 2, "more": "sampling: {tolerance: 50%, share: 50%}\n"}


def measures(simulation):
    """Workers that measure: the duration of a case is its size plus a launch."""

    def worker(shard, node):
        plan = simulation.plan
        records = [
            case.record for case in read_shard(simulation.store.get(keys.shard("small", shard)))
        ]
        tried = {r.case_id: Tried(5 + r.case.inputs[0].numel / 1e4) for r in records}
        made = MadePlan((), "small", plan.number, plan.head_commit, STACK, attempt=f"of-{shard}")
        commit_shard(simulation.store, made, plan, MadeShard(shard, records, [tried]))
        return 0

    simulation.cluster.worker = worker


def test_rounds_continue_until_the_surface_is_known():
    """The results of one round decide the next; a new leader continues from what is stored."""
    simulation = Simulation(**CURVE)
    measures(simulation)

    def each(simulation, number):
        if number % 4 == 3:
            simulation.controller = simulation.new_controller()

    simulation.run(each=each)
    forecasts = [plan.forecast for plan in read_plans(simulation.store, "small")]
    assert [f.learning for f in forecasts] == [150, 0]
    assert [f.left_out for f in forecasts] == [250, 250] and forecasts[-1].unsure <= 12
    state = load_state(simulation.store, find_head(simulation.store))
    assert len(case_results(state, STACK.version_path)) == 150 and everything_is_held(simulation)
    assert simulation.new_controller().reconcile() == {"small": True}


@pytest.mark.parametrize(("learning", "reported"), [(150, True), (0, False)])
def test_partial_end_announces_the_round_that_was_due(learning, reported):
    simulation = Simulation(**CURVE)
    simulation.reconcile()
    forecast = replace(simulation.plan.forecast, learning=learning)
    known = KnownPlan(replace(simulation.plan, forecast=forecast))
    (applied,) = map(applied_from, simulation.cluster.config_maps(SELECTOR))
    performer = Performer(simulation.cluster, applied, known, simulation.store, Memory(lambda: 0.0))
    performer.perform(Finish(partial=True), Observed(frozenset(), ()))
    (event,) = [e for e in simulation.cluster.reported.values() if e["reason"] == "Merged"]
    assert "plan 1" in event["message"]
    assert ("sampling" in event["message"]) is reported


def test_planner_that_lost_the_lease_publishes_no_plan():
    """The first request starts it; the plan is made between the first and the second."""
    simulation = Simulation(**CURVE)
    requested = []

    def leads_once():
        requested.append(True)
        return len(requested) == 1

    simulation.controller = simulation.new_controller(may_perform=leads_once)
    assert not simulation.reconcile()
    assert len(requested) == 2 and not read_plans(simulation.store, "small")
    assert not any(event["reason"] == "Planned" for event in simulation.cluster.reported.values())
    simulation.controller = simulation.new_controller()
    simulation.reconcile()
    assert read_plans(simulation.store, "small")


def test_damage_of_a_round_is_repaired_before_the_next():
    simulation = Simulation(**CURVE)
    measures(simulation)
    while not committed_shards(simulation.store, "small"):
        simulation.rounds(1)
    rot(simulation)
    simulation.run()
    assert [plan.round for plan in read_plans(simulation.store, "small")] == ["", "2m1", "3"]
    state = load_state(simulation.store, find_head(simulation.store))
    assert len(case_results(state, STACK.version_path)) == 150


def _damage_parts(simulation, number):
    for info in simulation.store.list("campaigns/small/attempts/"):
        if "/part-" in info.key:
            simulation.store.put(info.key, b"rot")


def test_rounds_end_on_a_store_that_damages_everything():
    simulation = Simulation(**CURVE)
    measures(simulation)

    simulation.run(each=_damage_parts)
    assert [plan.round for plan in read_plans(simulation.store, "small")] == [
        "",
        "2m1",
        "3m2",
        "4m3",
    ]


def test_rounds_end_if_their_results_are_invisible(monkeypatch):
    monkeypatch.setattr(lifecycle, "read_head_results", lambda *_, **__: {})
    simulation = Simulation(**CURVE)
    measures(simulation)
    simulation.run()
    assert [plan.forecast.learning for plan in read_plans(simulation.store, "small")] == [150, 0]
    assert simulation.new_controller().reconcile() == {"small": True}


def test_curve_without_measurable_points_is_requested_completely():
    simulation = Simulation(**CURVE).run()
    assert [plan.forecast.learning for plan in read_plans(simulation.store, "small")] == [
        150,
        50,
        200,
        0,
    ]
    state = load_state(simulation.store, find_head(simulation.store))
    assert len(case_results(state, STACK.version_path)) == 400


def test_campaign_on_a_store_that_damages_everything_ends_with_an_event():
    simulation = Simulation(cases=4)

    simulation.run(each=_damage_parts)
    assert simulation.plan.number == 4 and find_head(simulation.store) is None
    assert "Damaged" in simulation.cluster.reasons()


def test_same_plan_continues_with_another_image():
    simulation = Simulation(cases=24)
    simulation.cluster.worker = lambda shard, node: 43
    simulation.rounds(3)
    assert "WrongImage" in simulation.cluster.reasons()
    made = len(simulation.cluster.created)
    simulation.rounds(3)
    assert len(simulation.cluster.created) == made  # nothing starts with the wrong image
    simulation.cluster.worker = lambda shard, node: 0
    simulation.apply(image="here/collector:2")
    simulation.run().check_complete()
    assert simulation.plan.number == 1


def test_relaunched_campaign_retries_a_wrong_image():
    simulation = Simulation(cases=24)
    simulation.annotate(launched="monday")
    simulation.cluster.worker = lambda shard, node: 43
    simulation.rounds(3)
    assert "WrongImage" in simulation.cluster.reasons()
    simulation.cluster.worker = lambda shard, node: 0  # the tag refers to another image now
    simulation.rounds(3)
    assert not simulation.store.commits
    simulation.annotate(launched="tuesday")
    simulation.run().check_complete()
    assert simulation.plan.number == 1


def test_rerun_request_is_served_once_per_token():
    simulation = Simulation(cases=6).run()
    message = rerun_annotations(RunOptions(again=True), "monday")
    simulation.cluster.annotate_config_map(MAP, message)
    simulation.run()
    assert simulation.plan.number == 2 and simulation.plan.round == "2"
    assert simulation.new_controller().reconcile() == {"small": True}
    simulation.apply(image="here/collector:2")  # reports nothing new about the request
    simulation.run()
    assert simulation.plan.number == 2
    simulation.annotate(again="tuesday")
    simulation.run()
    assert simulation.plan.number == 3
