"""Leader election: two candidates whose clocks run at different speeds never lead at once."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.controller.loop import Changes, run_forever
from jobs.kube import leader_election
from jobs.kube.errors import ClusterAway
from jobs.kube.leader_election import DURATION_S, LEASE, Election
from tests.unit.jobs.fake_cluster import FakeCluster
from tests.waiting import wait_for

FASTEST = 1.2  # how much faster than another a clock may run


class Candidate:
    """Its clock runs `speed` times as fast as the true time; it may be disconnected."""

    def __init__(self, cluster, name, now, speed=1.0):
        self.election = Election(cluster, name, clock=lambda: now() * speed)

    def hold(self):
        return self.election.hold()

    @property
    def leads(self):
        return self.election.leads


class Time:
    """A clock that is set by hand, and counts how often it is read."""

    def __init__(self):
        self.now, self.reads = 0.0, 0

    def __call__(self):
        self.reads += 1
        return self.now


def candidates(*speeds):
    now, cluster = Time(), FakeCluster(None)
    return now, cluster, [Candidate(cluster, f"c{i}", now, s) for i, s in enumerate(speeds)]


def test_second_candidate_leads_after_the_first_falls_silent():
    now, _, (one, two) = candidates(1.0, 1.0)
    assert one.hold() and not two.hold()
    for _ in range(20):
        now.now += 6
        assert one.hold() and not two.hold()
    silent_at = now.now
    while not two.hold():
        now.now += 1
    assert not one.leads
    assert DURATION_S < now.now - silent_at <= DURATION_S + 6


def test_released_lease_is_taken_immediately():
    now, cluster, (one, two) = candidates(1.0, 1.0)
    one.hold()
    one.election.release()
    assert not one.leads and two.hold()
    assert cluster.leases[LEASE]["spec"]["leaseTransitions"] == 1
    now.now += 6
    assert not one.hold()


def test_leader_that_cannot_renew_stops_before_another_begins():
    now, cluster, (one, two) = candidates(1.0, 1.0)
    one.hold()
    two.hold()

    def away(number, name):
        raise ClusterAway("503")

    cluster.before = away
    now.now += DURATION_S * 0.7
    assert not one.hold()
    cluster.before = lambda number, name: None
    now.now += 6
    assert one.hold() and not two.hold()


def test_lost_reply_does_not_lose_the_lease():
    now, cluster, (one, _) = candidates(1.0, 1.0)
    one.hold()
    lost = []

    def lose(number, name):
        if name == "replace_lease" and not lost:
            lost.append(number)
            raise ClusterAway("reset")

    cluster.after = lose
    now.now += 6
    assert one.hold()  # by the last renewal
    now.now += 6
    assert one.hold()


def test_lease_is_not_requested_between_renewals():
    now, cluster, (one, _) = candidates(1.0, 1.0)
    one.hold()
    before = cluster.requests
    now.now += 1
    assert one.hold() and cluster.requests == before


@given(
    speeds=st.lists(st.floats(1.0, FASTEST), min_size=2, max_size=3),
    moves=st.lists(
        st.tuples(
            st.integers(0, 2), st.floats(0.1, 20.0), st.sampled_from(["", "", "lost", "cut"])
        ),
        min_size=5,
        max_size=60,
    ),
)
@settings(max_examples=150)
def test_two_candidates_never_lead_at_once_under_losses_and_clock_differences(speeds, moves):
    now, cluster, found = candidates(*speeds)
    for who, pause, fault in moves:
        now.now += pause

        def fail(number, name, fault=fault):
            raise ClusterAway(fault)

        cluster.before = fail if fault == "cut" else (lambda number, name: None)
        cluster.after = fail if fault == "lost" else (lambda number, name: None)
        found[who % len(found)].hold()
        assert sum(one.leads for one in found) <= 1


class Looks:
    """A controller that is only counted."""

    def __init__(self, results=()):
        self.results, self.reconciliations, self.reads = list(results), 0, 0

    def reconcile(self):
        self.reconciliations += 1
        return {"c": self.results.pop(0), "other": True} if self.results else {"other": False}

    def read_state(self, only):
        self.reads += 1
        return {only: self.reads > 1}


class StopAfter:
    """An event that is set after this many waits."""

    def __init__(self, waits):
        self.left = waits

    def is_set(self):
        return self.left <= 0

    def wait(self, seconds):
        self.left -= 1
        time.sleep(seconds)
        return self.is_set()


def test_loop_reconciles_until_the_campaign_is_finished():
    reconciliations = Looks([False, False, True])
    done = run_forever(reconciliations, lambda: True, StopAfter(99), until="c", interval_s=0)
    assert done and reconciliations.reconciliations == 3


def test_deleted_campaign_ends_the_loop():
    reconciliations = Looks([False])
    assert not run_forever(reconciliations, lambda: True, StopAfter(99), until="c", interval_s=0)
    assert reconciliations.reconciliations == 2


def test_follower_waits_for_the_leader_to_finish():
    reconciliations = Looks()
    assert run_forever(reconciliations, lambda: False, StopAfter(99), until="c", interval_s=0)
    assert reconciliations.reconciliations == 0 and reconciliations.reads == 2


def test_unavailable_api_server_does_not_end_the_loop():
    reconciliations = Looks()

    def leads():
        if reconciliations.reconciliations < 0:
            return True
        reconciliations.reconciliations -= 1
        raise ClusterAway("refused")

    reconciliations.reconcile = lambda: {"c": True}
    assert run_forever(reconciliations, leads, StopAfter(99), until="c", interval_s=0)


def test_change_wakes_the_loop_and_a_broken_watch_is_restarted():
    watches = []

    class Jobs:
        def watch_jobs(self, selector, seconds):
            watches.append(selector)
            if len(watches) == 2:
                raise ClusterAway("410")
            yield "a-job"

    changes = Changes(Jobs(), "x=y", pause_s=0.01).start()
    assert changes.wait(30) and changes.wait(30) and changes.wait(30)
    changes.stop()
    assert len(watches) > 2 and set(watches) == {"x=y"}


class LongReconciliation:
    """A controller whose reconciliation takes several Lease durations, while another candidate
    tries to take over."""

    def __init__(self, now, cluster, other):
        self.now, self.cluster, self.other, self.taken = now, cluster, other, False

    def reconcile(self):
        for _ in range(7):
            before = self.cluster.requests
            self.now.now += DURATION_S / 5
            wait_for(lambda before=before: self.cluster.requests >= before + 2)
            self.taken |= self.other.hold()
        return {"c": True}


@pytest.fixture
def reconciles_often(monkeypatch):
    """The keeper of a Lease renews it as soon as that is due."""
    monkeypatch.setattr(leader_election, "_POLL_S", 0.01)


@pytest.mark.usefixtures("reconciles_often")
def test_lease_is_renewed_during_a_long_reconciliation():
    now, cluster, (one, two) = candidates(1.0, 1.0)
    looking = LongReconciliation(now, cluster, two)
    with one.election.kept():
        wait_for(one.hold)
        assert run_forever(looking, one.hold, StopAfter(99), until="c", interval_s=0)
        assert one.leads and not looking.taken
    assert not one.leads
    now.now += DURATION_S / 5
    assert two.hold()


@pytest.mark.usefixtures("reconciles_often")
def test_stuck_leader_loses_the_lease():
    now, cluster, (one, two) = candidates(1.0, 1.0)
    with one.election.kept(stuck_s=DURATION_S):
        wait_for(one.hold)
        two.hold()
        now.now += DURATION_S + 1
        wait_for(lambda: not one.leads)
        reads = now.reads
        wait_for(lambda: now.reads >= reads + 2)  # its keeper has checked twice
        assert two.hold() and not one.leads
