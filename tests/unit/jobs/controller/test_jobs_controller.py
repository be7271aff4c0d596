"""The real controller on a played cluster and a real store: whole campaigns, whatever happens."""

import copy
import itertools
from dataclasses import replace

import pytest

from collector import keys
from collector.database.commits import find_head, history
from collector.database.query import answers, held_shards
from collector.database.snapshot import load_state
from collector.shard import read_shard
from jobs.campaign.run_options import RunOptions
from jobs.controller import controller
from jobs.controller.performer import Performer
from jobs.decide.actions import Remember
from jobs.decide.observed import Observed
from jobs.kube.errors import cluster_error
from jobs.objects.applied_campaign import (
    ALLOW_MISSING,
    MERGED,
    PAUSED,
    applied_from,
    config_map,
    config_map_name,
)
from jobs.objects.reruns import rerun_annotations
from jobs.objects.strikes import Strike, Strikes, strikes_from_json, strikes_to_json
from jobs.planning.situation import survey
from jobs.planning.stored_plans import committed_shards, read_plans
from jobs.publishing import due_merges
from tests.unit.collector.database.campaign_maker import add_record
from tests.unit.jobs.controller.played_campaign import (
    DEPLOYMENT,
    MAP,
    STACK,
    Play,
    everything_is_held,
    merges,
    rot,
)
from tests.unit.jobs.fake_cluster import COMPONENT, RUNS

pytestmark = pytest.mark.fast


def test_a_campaign_is_planned_measured_merged_and_said_to_be():
    play = Play(cases=24).play()
    play.check_complete()
    assert len(play.plan.shards) > 6
    assert play.cluster.maps[MAP]["metadata"]["annotations"][MERGED]
    assert {"Planned", "WaveCreated", "Merged"} == set(play.cluster.reasons())
    assert play.cluster.most <= 4


def test_what_is_merged_is_not_looked_at_again_by_anyone():
    play = Play().play()
    before = play.store.calls
    assert play.new_controller().look() == {"small": True}
    assert play.store.calls == before
    assert play.new_controller().follow("small") == {"small": True}
    play.cases += 2
    play.apply()
    assert play.controller.follow("small") == {"small": False}
    play.play()
    assert play.plan.number == 2 and len(list(history(play.store))) == 2


def test_where_the_stack_is_left_open_a_pod_of_the_site_is_asked():
    play = Play(target="target: here")
    play.cluster.stack = STACK
    play.play().check_complete()
    assert play.plan.stack == STACK
    assert sum(name.startswith("opmeter-probe-") for name in play.cluster.created) == 1


def test_of_a_processor_that_is_named_the_probe_says_the_rest():
    """Without flags, threads and allocator every worker would refuse the plan."""
    found = replace(STACK, details=(("flags", "avx2"), ("threads", "2")))
    play = Play(target="target: {device: CPU_test_2t, torch: 2.13.0+cpu}")
    play.cluster.stack = found
    play.play().check_complete()
    assert play.plan.stack == found


def test_another_processor_than_the_campaign_names_is_refused():
    play = Play(target="target: {device: CPU_other_8t, torch: 2.13.0+cpu}")
    play.cluster.stack = STACK
    play.rounds(6)
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "BadInput"]
    assert "CPU_other_8t" in event["message"] and "CPU_test_2t" in event["message"]
    assert not play.cluster.worker_jobs()


def test_a_damaged_database_is_announced_as_such_and_says_what_to_do():
    play = Play().play()
    play.store.delete(keys.commit(1))
    play.cases += 1  # which makes the next plan
    play.apply()
    play.rounds(2)
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "Damaged"]
    assert keys.commit(1) in event["message"] and "from a backup" in event["message"]
    assert "BadInput" not in play.cluster.reasons()


def test_who_takes_over_a_campaign_that_runs_waits_for_no_other_pod():
    """Its own pods may hold every device."""
    play = Play(target="target: here")
    play.cluster.stack = STACK
    play.rounds(3)
    (probe,) = (name for name in play.cluster.created if name.startswith("opmeter-probe-"))
    assert len(play.cluster.worker_jobs()) == 1
    play.cluster.delete_job(probe)
    play.controller = play.new_controller()
    play.play().check_complete()
    assert play.cluster.created.count(probe) == 1


def test_two_controllers_at_once_do_no_more_than_one():
    play = Play(cases=20)
    others = itertools.cycle([play.new_controller(), play.controller])

    def each(play, number):
        play.controller = next(others)
        play.controller.look()

    play.play(each=each)
    play.check_complete()
    assert len(play.cluster.created) == len(set(play.cluster.created))
    assert play.cluster.most <= 4


def test_a_store_that_is_away_stops_nothing_that_runs_and_is_waited_for():
    play = Play(cases=20)
    play.rounds(2)
    play.store.away = True
    jobs = {job["metadata"]["name"] for job in play.cluster.worker_jobs()}
    for _ in range(5):
        assert not play.look()
    assert {job["metadata"]["name"] for job in play.cluster.worker_jobs()} == jobs
    assert not any(job["spec"]["suspend"] for job in play.cluster.worker_jobs())
    play.store.away = False
    play.play().check_complete()


def test_workers_that_gave_up_on_the_store_are_paused_until_it_is_back():
    play = Play(cases=20)
    play.look()
    play.cluster.worker = lambda shard, node: 45
    play.rounds(3)
    assert "StoreRefusesWorkers" in play.cluster.reasons()
    assert all(job["spec"]["suspend"] for job in play.cluster.worker_jobs())
    play.cluster.worker = lambda shard, node: 0
    play.look()
    assert all(job["spec"]["suspend"] for job in play.cluster.worker_jobs())
    play.look(after_s=1000.0)
    play.play().check_complete()


def test_where_the_controller_missed_the_store_too_jobs_go_on_when_it_is_back():
    play = Play(cases=20)
    play.look()
    play.look()
    play.cluster.worker = lambda shard, node: 45
    play.cluster.step()
    play.cluster.step()
    play.store.away = True
    play.look()
    assert all(job["spec"]["suspend"] for job in play.cluster.worker_jobs())
    play.store.away, play.cluster.worker = False, lambda shard, node: 0
    play.play().check_complete()


def test_a_campaign_that_is_deleted_half_way_and_applied_again_goes_on():
    play = Play(cases=24)
    play.rounds(2)
    half = len(play.store.commits)
    assert 0 < half < len(play.plan.shards)
    play.cluster.delete_config_map(MAP)
    assert not play.cluster.worker_jobs()
    assert play.controller.look() == {}
    play.apply()
    play.play().check_complete()
    tried = [shard for shard, _ in play.cluster.tried]
    assert len(tried) == len(set(tried))  # nothing was measured twice


def test_other_inputs_make_another_plan_and_retire_the_jobs_of_the_last():
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


def test_what_an_older_plan_committed_is_merged_by_a_job_before_the_next_is_made(monkeypatch):
    def merge_here(*arguments, **options):
        raise AssertionError("a controller merges nothing itself")

    monkeypatch.setattr(due_merges, "merge", merge_here)
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


def test_a_merge_of_older_plans_that_fails_is_told_and_tried_again():
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
    """A campaign that has committed something, and whose pods run on."""
    play = Play(cases=cases)
    play.cluster.grace = True
    play.rounds(2)
    play.cluster.worker = lambda shard, node: RUNS
    play.rounds(1)
    assert committed_shards(play.store, "small")
    return play


def test_what_is_committed_in_the_grace_of_a_retired_plan_is_published():
    play = with_pods_at_work()
    play.cases = 26
    play.apply()
    play.rounds(1)
    play.look()  # the next plan: the Job of the last is deleted, and its pods are asked to end
    assert play.plan.number == 2 and play.cluster.going
    before = committed_shards(play.store, "small")
    play.cluster.worker = lambda shard, node: 0
    play.cluster.step()
    first = {s.shard_id for s in read_plans(play.store, "small")[0].shards}
    assert (committed_shards(play.store, "small") - before) & first
    play.play()
    assert play.plan.number == 2 and everything_is_held(play)


def test_who_ends_a_campaign_waits_for_pods_whose_job_is_gone():
    """The next plan has nothing to measure, and a worker of the last still commits."""
    play = with_pods_at_work()
    done = {
        case.record.cells["Input Shapes"]
        for shard in committed_shards(play.store, "small")
        for case in read_shard(play.store.get(keys.shard("small", shard)))
    }
    play.chosen = [n for n in range(1, 25) if add_record(64 * n).cells["Input Shapes"] in done]
    play.apply()
    play.rounds(1)
    play.look()
    assert play.plan.number == 2 and not play.plan.shards
    assert not play.look() and not play.look() and play.cluster.going
    play.cluster.worker = lambda shard, node: 0
    play.play()
    assert everything_is_held(play)


def test_a_pod_that_never_ends_holds_no_campaign_up():
    play = with_pods_at_work()
    play.cases = 26
    play.apply()
    play.rounds(1)
    play.look()
    play.cluster.running += [pod for _, pod in play.cluster.going]  # of a lost node
    play.cluster.going = []
    stuck = [pod["metadata"]["name"] for pod in play.cluster.running]
    play.cluster.worker = lambda shard, node: 0
    for _ in range(100):
        finished = play.look(after_s=60.0)
        pods = play.cluster.running
        play.cluster.running = [p for p in pods if p["metadata"]["name"] not in stuck]
        play.cluster.step()
        play.cluster.running += [p for p in pods if p["metadata"]["name"] in stuck]
        if finished:
            break
    assert finished and everything_is_held(play)


def test_what_is_damaged_is_named_and_measured_anew_by_the_next_plan():
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
    assert len(answers(state, STACK.version_path)) == play.cases
    assert play.new_controller().look() == {"small": True}


def test_a_store_that_damages_everything_ends_with_a_word_and_not_never():
    play = Play(cases=4)

    def each(play, number):
        for info in play.store.list("campaigns/small/attempts/"):
            if "/part-" in info.key:
                play.store.put(info.key, b"rot")

    play.play(each=each)
    assert play.plan.number == 4 and find_head(play.store) is None
    assert "Damaged" in play.cluster.reasons()


@pytest.mark.parametrize("what", ["waves", "nodes", "committed", "plans"])
def test_rot_in_what_a_controller_reads_does_not_stop_a_campaign(what):
    play = Play(cases=24, nodes=("n1", "n2", "n3"))
    play.cluster.worker = lambda shard, node: 44 if node == "n1" else 0
    play.rounds(3)
    there = [info.key for info in play.store.list("campaigns/small/") if f"/{what}" in info.key]
    assert there
    play.store.put(there[0], b"[" * 10_000)
    play.controller = play.new_controller()
    play.play()
    state = load_state(play.store, find_head(play.store))
    assert len(answers(state, STACK.version_path)) == play.cases


def test_another_image_is_taken_up_by_the_same_plan():
    play = Play(cases=24)
    play.cluster.worker = lambda shard, node: 43
    play.rounds(3)
    assert "WrongImage" in play.cluster.reasons()
    made = len(play.cluster.created)
    play.rounds(3)
    assert len(play.cluster.created) == made  # nothing is begun with the wrong image
    play.cluster.worker = lambda shard, node: 0
    play.apply(image="here/collector:2")
    play.play().check_complete()
    assert play.plan.number == 1


def test_a_campaign_that_is_launched_again_gets_past_a_wrong_image():
    play = Play(cases=24)
    play.annotate(launched="monday")
    play.cluster.worker = lambda shard, node: 43
    play.rounds(3)
    assert "WrongImage" in play.cluster.reasons()
    play.cluster.worker = lambda shard, node: 0  # the tag names another image now
    play.rounds(3)
    assert not play.store.commits
    play.annotate(launched="tuesday")
    play.play().check_complete()
    assert play.plan.number == 1


def test_a_node_on_which_all_fails_is_left_alone():
    play = Play(cases=24, nodes=("n1", "n2", "n3"))
    play.cluster.worker = lambda shard, node: 44 if node == "n1" else 0
    play.play().check_complete()
    assert "NodeQuarantined" in play.cluster.reasons()
    assert "ShardFailed" not in play.cluster.reasons()
    assert any(wave.avoid == ("n1",) for wave in play.waves())


def test_without_permission_to_list_nodes_there_is_no_quarantine():
    play = Play(cases=24, nodes=("n1", "n2", "n3"))
    play.cluster.forbidden = frozenset({"nodes"})
    play.cluster.worker = lambda shard, node: 44 if node == "n1" else 0
    play.play().check_complete()
    assert "NodeQuarantined" not in play.cluster.reasons()
    assert not any(wave.avoid for wave in play.waves())


def test_a_shard_that_kills_every_worker_is_given_up_with_a_word():
    play = Play(cases=12)
    play.rounds(1)
    bad = play.plan.shards[1].shard_id
    play = Play(cases=12)
    play.cluster.worker = lambda shard, node: 48 if shard == bad else 0
    play.play().check_complete()
    assert [e["message"] for e in play.cluster.told.values() if e["reason"] == "ShardFailed"][
        0
    ].startswith(bad)
    assert sum(shard == bad for shard, _ in play.cluster.tried) == 8  # two waves of four


def test_without_retries_of_an_index_a_bad_shard_still_ends():
    play = Play(cases=12)
    play.cluster.drops = frozenset({"backoffLimitPerIndex", "maxFailedIndexes"})
    play.rounds(1)
    (job,) = play.cluster.worker_jobs()
    assert "backoffLimitPerIndex" not in job["spec"]
    assert job["spec"]["backoffLimit"] == 3 * job["spec"]["completions"]
    env = job["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "OPMETER_GIVES_UP", "value": "1"} in env
    assert "Degraded" in play.cluster.reasons()
    bad = play.plan.shards[0].shard_id
    play.cluster.worker = lambda shard, node: 48 if shard == bad else 0
    play.play().check_complete()


def test_a_paused_campaign_stands_still_and_goes_on():
    play = Play(cases=24)
    play.rounds(2)
    play.annotate(paused="true")
    play.look()
    done = len(play.store.commits)
    play.rounds(4)
    assert len(play.store.commits) == done < len(play.plan.shards)
    play.annotate(paused=None)
    play.play().check_complete()


def test_a_merge_that_fails_is_told_once_and_tried_again_when_its_job_is_gone():
    play = Play(cases=6)
    play.cluster.merges_fail = "no space"
    play.rounds(12)
    merges = [name for name in play.cluster.created if "-merge-" in name]
    assert len(merges) == 1
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "MergeFailed"]
    assert "no space" in event["message"]
    play.cluster.merges_fail = ""
    del play.cluster.live[merges[0]]  # by its time to live
    play.play().check_complete()


def test_with_missing_shards_allowed_what_there_is_is_merged_once_nothing_moves():
    play = Play(cases=24)
    play.annotate(**{"allow-missing": "true"})
    play.rounds(2)
    assert find_head(play.store) is None  # while it moves, the rest is waited for
    play.annotate(paused="true")
    play.rounds(3)
    done = len(play.store.commits)
    held = held_shards(load_state(play.store, find_head(play.store)))
    assert len(held) == done < len(play.plan.shards)
    notes = play.cluster.maps[MAP]["metadata"]["annotations"]
    assert MERGED not in notes
    assert play.look(), "who watches is released: nothing runs until somebody acts"
    assert play.controller.follow("small") == {"small": True}
    play.annotate(paused=None)
    assert not play.look()
    assert play.controller.follow("small") == {"small": False}
    play.play()
    assert len(held_shards(load_state(play.store, find_head(play.store)))) == len(play.plan.shards)


def test_what_the_cluster_refuses_is_told_and_tried_again():
    play = Play(cases=6)
    play.cluster.forbidden = frozenset({"create"})
    play.rounds(4)
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "Refused"]
    assert "exceeded quota" in event["message"]
    assert len(play.waves()) == 1
    play.cluster.forbidden = frozenset()
    play.play().check_complete()


def test_a_probe_that_the_cluster_refuses_is_told_and_tried_again():
    play = Play(cases=6, target="target: here")
    play.cluster.stack = STACK
    play.cluster.forbidden = frozenset({"create"})
    play.rounds(3)
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "Refused"]
    assert "exceeded quota" in event["message"]
    play.cluster.forbidden = frozenset()
    play.play().check_complete()


def test_a_webhook_that_fails_is_told_though_the_server_calls_it_an_error_of_its_own():
    play = Play(cases=6)
    words = 'Internal error occurred: failed calling webhook "policy.example.com": EOF'

    def fail(number, name):
        if name == "create_or_adopt":
            raise cluster_error(500, words)

    play.cluster.before = fail
    play.rounds(3)
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "Refused"]
    assert words in event["message"]
    play.cluster.before = lambda number, name: None
    play.play().check_complete()


def test_strikes_that_another_leader_has_written_meanwhile_stay():
    play = Play(cases=24)
    play.rounds(2)
    key, memory = keys.nodes("small"), play.controller._memories["small"]
    theirs, ours = Strike("n9", "theirs"), Strike("n1", "ours")
    play.store.put(key, strikes_to_json(Strikes(frozenset({theirs}))))
    applied = applied_from(play.cluster.maps[MAP])
    performer = Performer(play.cluster, applied, memory.plan, play.store, memory)
    performer.perform(Remember(Strikes(frozenset({ours}))), Observed(frozenset(), ()))
    assert strikes_from_json(play.store.get(key), key=key).seen == {theirs, ours}


def test_the_same_news_are_told_once_by_a_controller():
    play = Play(cases=6)
    play.cluster.worker = lambda shard, node: 43
    play.rounds(3)
    play.cluster.told.clear()
    play.rounds(5)
    assert not play.cluster.told


def test_a_wish_for_another_round_is_served_once_a_token():
    play = Play(cases=6).play()
    said = rerun_annotations(RunOptions(again=True), "monday")
    play.cluster.annotate_config_map(MAP, said)
    play.play()
    assert play.plan.number == 2 and play.plan.round == "2"
    assert play.new_controller().look() == {"small": True}
    play.apply(image="here/collector:2")  # says nothing new of the wish
    play.play()
    assert play.plan.number == 2
    play.annotate(again="tuesday")
    play.play()
    assert play.plan.number == 3


def test_a_config_map_that_cannot_be_meant_is_told_and_harms_no_other():
    play = Play(cases=6)
    bad = config_map("other", "campaign: other\n", {"site": "cpu"}, DEPLOYMENT)
    play.cluster.apply(bad)
    play.play().check_complete()
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "BadInput"]
    assert "sources" in event["message"]


@pytest.mark.parametrize("namespace", ["theirs", "bench"])
def test_no_more_pods_are_wanted_than_others_leave_room_for(namespace):
    play = Play(cases=24, nodes=("n1", "n2", "n3"))
    taken = [{"resources": {"requests": {"cpu": "2"}}}]
    play.cluster.foreign = [
        {
            "metadata": {"name": "x", "namespace": namespace},
            "spec": {"nodeName": "n3", "containers": taken},
            "status": {"phase": "Running"},
        }
    ]
    play.look()
    (job,) = play.cluster.worker_jobs()
    assert job["spec"]["parallelism"] == 2
    play.play().check_complete()


def test_a_mistake_in_one_campaign_ends_no_other(monkeypatch):
    play = Play(cases=6)
    other = copy.deepcopy(play.cluster.maps[MAP])
    name = config_map_name("broken")
    other["metadata"] |= {"name": name, "labels": {"opmeter.io/campaign": "broken"}}
    other["data"]["campaign.yaml"] = other["data"]["campaign.yaml"].replace("small", "broken")
    play.cluster.apply(other)

    def survey_of(campaign, *more):
        assert campaign.name == "small", "nobody foresaw it"
        return survey(campaign, *more)

    monkeypatch.setattr(controller, "survey", survey_of)
    play.play().check_complete()
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "Mistake"]
    assert "nobody foresaw it" in event["message"]


def test_of_two_config_maps_of_one_campaign_only_the_one_of_its_name_counts():
    play = Play(cases=6)
    other = copy.deepcopy(play.cluster.maps[MAP])
    other["metadata"]["name"] = "the-other"
    other["data"]["image"] = "evil/collector:1"
    play.cluster.apply(other)
    play.play().check_complete()
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "BadInput"]
    assert f"the campaign 'small' is the ConfigMap {MAP}, and no other" in event["message"]


def test_a_follower_acts_in_nothing():
    play = Play(cases=6)
    follower = play.new_controller(may_act=lambda: False)
    assert follower.look() == {"small": False}
    acts = itertools.count()
    hasty = play.new_controller(may_act=lambda: next(acts) < 2)  # deposed in the middle
    hasty.look()
    assert len(play.cluster.created) <= 1
    play.play().check_complete()


def test_what_is_said_of_a_pod_that_is_being_made_is_passed_on():
    play = Play(cases=24, site={"site.kueue_queue": "team"})
    play.look()
    (job,) = play.cluster.worker_jobs()
    job["spec"]["suspend"] = False
    pod = play.cluster._pod(job["metadata"]["name"], job, 0)
    waiting = {"name": "worker", "state": {"waiting": {"reason": "ContainerCreating"}}}
    pod["status"] = {"phase": "Pending", "containerStatuses": [waiting]}
    play.cluster.running = [pod]
    words = 'MountVolume.SetUp failed for volume "store" : secret "opmeter-s3" not found'
    play.cluster.warnings[pod["metadata"]["name"]] = ["older", words]
    play.look()
    play.look(after_s=500.0)
    assert "NotStarting" not in play.cluster.reasons()
    play.look(after_s=200.0)
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "NotStarting"]
    assert words in event["message"] and "create that Secret" in event["message"]


def test_a_pod_of_a_lost_node_holds_nothing_up():
    play = Play(cases=24)
    play.look()
    play.cluster.names["n1"] = False
    play.cluster.step()
    clock = [0.0]
    play.controller = play.new_controller()
    play.look()
    memory = play.controller._memories["small"]
    memory.pods._clock = lambda: clock[0]
    job = play.cluster.worker_jobs()[0]
    stuck = play.cluster._pod(job["metadata"]["name"], job, 0)
    stuck["spec"]["nodeName"] = "n1"
    stuck["metadata"]["deletionTimestamp"] = "now"
    play.cluster.running = [
        p for p in play.cluster.running if p["metadata"]["labels"] != stuck["metadata"]["labels"]
    ] + [stuck]
    job["status"]["completedIndexes"] = ",".join(
        i for i in (job["status"].get("completedIndexes") or "").split(",") if i not in ("", "0")
    )
    memory.nodes.at = None
    play.look()
    clock[0] = 500.0
    play.play()
    assert "NodeLost" in play.cluster.reasons()
    assert set(committed_shards(play.store, "small")) == {s.shard_id for s in play.plan.shards}


def test_the_annotations_are_those_of_the_manual():
    assert (PAUSED, ALLOW_MISSING) == ("opmeter.io/paused", "opmeter.io/allow-missing")
    assert COMPONENT == "app.kubernetes.io/component"
