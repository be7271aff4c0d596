"""The real controller on a played cluster and a real store: whole campaigns, whatever happens."""

import copy
import itertools
from contextlib import nullcontext, suppress
from dataclasses import replace

import pytest

from collector import keys
from collector.canonical import sha256_hex
from collector.database.commits import find_head, history
from collector.database.merge import CREATE
from collector.database.query import held_shards
from collector.database.snapshot import load_state
from collector.errors import StoreUnavailable
from collector.record import write_table
from collector.stack import Stack
from collector.store.memory import MemoryStore
from collector.store.probe import Probe
from jobs import controller
from jobs.actions import Remember
from jobs.advancing import Wish
from jobs.applied import (
    ALLOW_MISSING,
    MERGED,
    PAUSED,
    applied_from,
    config_map,
    config_map_name,
)
from jobs.cluster_errors import cluster_error
from jobs.controller import Controller
from jobs.deployment import Deployment
from jobs.nodes import Strike, Strikes, strikes_from_json, strikes_to_json
from jobs.observed import Observed
from jobs.performing import Performer
from jobs.preparing import survey
from jobs.rounds import committed_shards, read_plans
from jobs.waves import wave_from_json
from jobs.wishes import wishes
from tests.unit.collector.database.campaign_maker import add_record
from tests.unit.jobs.fake_cluster import COMPONENT, FakeCluster, Killed

pytestmark = pytest.mark.fast

DEPLOYMENT = Deployment("bench", "here/collector:1", "here/controller:1", "memory:")
MAP = config_map_name("small")
STACK = Stack(device="CPU_test_2t", torch="2.13.0+cpu")


class WatchedStore(MemoryStore):
    """Counts the commits of shards; goes away, or kills who calls, when it is told to."""

    def __init__(self):
        super().__init__()
        self.calls, self.away = 0, False
        self.before = self.after = lambda number: None
        self.commits = []

    def _seen(self, call, *arguments):
        self.calls += 1
        number = self.calls
        self.before(number)
        if self.away:
            raise StoreUnavailable("memory: away")
        answer = call(*arguments)
        self.after(number)
        return answer

    def get(self, key):
        return self._seen(super().get, key)

    def put(self, key, data):
        self._seen(super().put, key, data)

    def create(self, key, data):
        def create():
            super(WatchedStore, self).create(key, data)
            if "/committed/" in key:
                self.commits.append(key)

        self._seen(create)

    def list(self, prefix):
        return self._seen(super().list, prefix)


def campaign_text(sha256, devices=4, target="target: {device: CPU_test_2t, torch: 2.13.0+cpu}"):
    return (
        f"campaign: small\nsources: [{{cases: {sha256}}}]\nbackend: cpu\ndevices: {devices}\n"
        f"{target}\nshards: {{target_s: 0.01, session_s: 1}}\n"
    )


class Play:
    """A campaign on a cluster, and controllers that come and go."""

    def __init__(self, cases=12, site=(), nodes=("n1", "n2"), **text):
        self.store = WatchedStore()
        self.cluster = FakeCluster(self.store, nodes)
        self.cases, self.now = cases, 0.0
        self.site, self.text = dict(site), text
        self.apply()
        self.controller = self.new_controller()

    def apply(self, **changes):
        table = write_table([add_record(64 * n) for n in range(1, self.cases + 1)])
        digest = sha256_hex(table)
        self.store.put(keys.source("small", digest), table)
        text = campaign_text(digest, **self.text)
        deployment = replace(DEPLOYMENT, **changes)
        self.cluster.apply(config_map("small", text, {"site": "cpu", **self.site}, deployment))

    def new_controller(self, **more):
        given = {"ask_store": lambda store: Probe(True, (), "honest"), **more}
        given |= {"clock": lambda: self.now}
        guard = lambda applied: nullcontext(CREATE)  # noqa: E731
        return Controller(self.cluster, lambda applied: self.store, guard, **given)

    def annotate(self, **notes):
        self.cluster.annotate_config_map(MAP, {f"opmeter.io/{k}": v for k, v in notes.items()})

    def look(self, after_s=5.0):
        self.now += after_s
        return self.controller.look().get("small", False)

    def rounds(self, number):
        for _ in range(number):
            self.look()
            self.cluster.step()

    def play(self, most=300, each=lambda play, number: None):
        for number in range(most):
            each(self, number)
            if self.look():
                return self
            self.cluster.step()
        raise AssertionError(f"it does not end: {self.cluster.reasons()}")

    @property
    def plan(self):
        return read_plans(self.store, "small")[-1]

    def waves(self):
        return [
            wave_from_json(self.store.get(info.key), key=info.key)
            for info in self.store.list(keys.waves("small"))
        ]

    def check_complete(self):
        """Every shard is committed once, and the head holds all of them by one merge."""
        wanted = {shard.shard_id for shard in self.plan.shards}
        assert wanted == set(committed_shards(self.store, "small"))
        assert len(self.store.commits) == len(set(self.store.commits)) == len(wanted)
        head = find_head(self.store)
        assert {("small", shard) for shard in wanted} <= held_shards(load_state(self.store, head))
        assert len(list(history(self.store))) == 1
        assert not self.cluster.worker_jobs()


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


def kill_once(thing, when, number):
    """Let the call of that number, or the next that succeeds, be the last of whoever makes it; the
    list tells whether it was made."""
    seen = []

    def die(at, *name):
        if at >= number and not seen:
            seen.append(at)
            raise Killed

    setattr(thing, when, die)
    return seen


def survive(play):
    """A killed controller is followed by another; killed pods are the Job controller's matter."""
    for _ in range(300):
        try:
            if play.look():
                return
        except Killed:
            play.controller = play.new_controller()
            continue
        with suppress(Killed):
            play.cluster.step()
    raise AssertionError(f"it does not end: {play.cluster.reasons()}")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("of", "step"), [("cluster", 1), ("store", 5)])
def test_whoever_is_killed_at_any_call_is_followed_by_another(of, step, when):
    for number in itertools.count(1, step):
        play = Play(cases=6)
        thing = getattr(play, of)
        first = play.store.calls if of == "store" else 0
        seen = kill_once(thing, when, first + number)
        survive(play)
        setattr(thing, when, lambda *call: None)
        play.check_complete()
        merges = [n for n in play.cluster.created if "-merge-" in n]
        assert len(merges) == 1 and len(set(play.cluster.created)) == len(play.cluster.created)
        if not seen:
            break
    assert number > 20  # calls of a whole campaign


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


def test_with_kueue_jobs_begin_suspended_and_stay_its_own():
    play = Play(cases=24, site={"site.kueue_queue": "team"})
    play.rounds(3)
    (job,) = play.cluster.worker_jobs()
    assert job["spec"]["suspend"] and not play.store.commits
    job["spec"]["suspend"] = False  # admitted
    play.rounds(2)
    play.cluster.patch_job(job["metadata"]["name"], {"suspend": True})  # pre-empted
    done = len(play.store.commits)
    play.rounds(3)
    assert job["spec"]["suspend"] and len(play.store.commits) == done > 0
    job["spec"]["suspend"] = False
    play.play().check_complete()


def test_with_kueue_a_full_cluster_does_not_narrow_a_wave():
    play = Play(cases=24, site={"site.kueue_queue": "team"}, devices=200)
    taken = [{"resources": {"requests": {"cpu": "2"}}}]
    play.cluster.foreign = [
        {
            "metadata": {"name": node, "namespace": "theirs"},
            "spec": {"nodeName": node, "containers": taken},
        }
        for node in ("n1", "n2")
    ]
    play.look()
    (job,) = play.cluster.worker_jobs()
    shards = len(play.plan.shards)
    assert job["spec"]["parallelism"] == shards > 6
    assert job["spec"]["completions"] == shards + 1  # and an empty one: no gang


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
    said = wishes(Wish(again=True), "monday")
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


def test_a_controller_killed_while_it_serves_a_wish_leaves_one_round():
    for number in itertools.count(1):
        play = Play(cases=4).play()
        play.annotate(again="monday")
        seen = kill_once(play.store, "after", play.store.calls + number)
        survive(play)
        play.store.after = lambda number: None
        assert play.plan.number == 2
        if not seen or number > 60:
            break


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
    other["metadata"] |= {"name": "a-broken-one", "labels": {"opmeter.io/campaign": "broken"}}
    other["data"]["campaign.yaml"] = other["data"]["campaign.yaml"].replace("small", "broken")
    play.cluster.apply(other)

    def survey_of(campaign, *more):
        assert campaign.name == "small", "nobody foresaw it"
        return survey(campaign, *more)

    monkeypatch.setattr(controller, "survey", survey_of)
    play.play().check_complete()
    (event,) = [e for e in play.cluster.told.values() if e["reason"] == "Mistake"]
    assert "nobody foresaw it" in event["message"]


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
