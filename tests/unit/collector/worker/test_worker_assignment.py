"""A worker measures only the plan that it was given, on the machine that the plan is for."""

import platform
import threading
from dataclasses import replace

import pytest

from collector.database.merge import CREATE, merge_plans
from collector.database.shard_commits import read_shard_commit
from collector.host.machine import this_node
from collector.model import keys
from collector.model.manifest import manifest_from_json
from collector.model.measurement import Outcome
from collector.model.stack import Stack
from collector.store.in_memory import MemoryStore
from collector.worker.assignment import (
    Assignment,
    abandon,
    check_stack,
    work_on_shard,
)
from collector.worker.attempt import read_part
from collector.worker.blame import WrongImage, WrongNode
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    write_campaign,
)
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def assignment(store):
    shard = MadeShard("s1", [add_record(1), add_record(2)], is_committed=False)
    plan = write_campaign(store, MadePlan([shard]))
    return Assignment(plan.campaign, plan.number, plan.plan_hash, "s1", "a1")


def refused(store, assignment, tmp_path, *data):
    with pytest.raises(WrongImage, match=naming(*data)):
        work_on_shard(store, assignment, tmp_path, threading.Event(), watched=store)
    with pytest.raises(WrongImage, match=naming(*data)):
        abandon(store, assignment, Outcome.CRASHED, "")
    assert read_shard_commit(store, assignment.campaign, "s1") is None


def test_another_plan_than_the_assigned_one_is_refused(store, assignment, tmp_path):
    other = replace(assignment, plan_hash="0" * 16)
    refused(store, other, tmp_path, "plans/1.json:", "0" * 16, assignment.plan_hash)


@pytest.mark.parametrize("by", ["worker", "who gives up"])
@pytest.mark.parametrize("damage", [None, b"", b"\xff", b"other cases"])
def test_unreadable_shard_is_left_to_the_next_plan(store, assignment, tmp_path, damage, by):
    key = keys.shard(assignment.campaign, "s1")
    store.delete(key)
    if damage is not None:
        store.put(key, damage)
    if by == "worker":
        assert work_on_shard(store, assignment, tmp_path, threading.Event(), watched=store)
    else:
        abandon(store, assignment, Outcome.CRASHED, "")
    merged = merge_plans(store, [(assignment.campaign, 1)], guard=CREATE, author="test")
    assert merged.missing == () and merged.commit is None
    (damaged,) = merged.damaged
    assert key in str(damaged)


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"[]", b"\xff", None])
def test_unreadable_plan_is_refused(store, assignment, tmp_path, data):
    key = keys.plan(assignment.campaign, assignment.plan)
    store.delete(key)
    if data is not None:
        store.put(key, data)
    refused(store, assignment, tmp_path, "plans/1.json")


def test_shard_of_another_plan_is_refused(store, assignment, tmp_path):
    key = keys.shard(assignment.campaign, "s1")
    store.put(keys.shard(assignment.campaign, "s2"), store.get(key))
    refused(store, replace(assignment, shard="s2"), tmp_path, "plans/1.json:", "s2")


def test_another_machine_is_refused(store, assignment, tmp_path):
    with pytest.raises((WrongImage, WrongNode)):  # the first where torch is not installed
        work_on_shard(store, assignment, tmp_path, threading.Event(), watched=store)


def test_software_mismatch_blames_the_image_and_device_mismatch_the_node():
    stack = Stack("CPU_x_2t", "2.13.0", driver="1")
    check_stack(stack, stack)
    with pytest.raises(WrongImage, match=naming("torch", "'2.13.0'", "'2.12.0'")):
        check_stack(stack, replace(stack, torch="2.12.0"))
    with pytest.raises(WrongNode, match=naming("driver", "'1'", "'2'")):
        check_stack(stack, replace(stack, driver="2"))


def test_local_version_suffixes_are_ignored_and_cann_must_match_exactly():
    here = Stack(
        *("ATLAS_800_A3_752T_128G_DIE", "2.9.0+cpu", "25.5.2", "7.8.0"),
        *("8.5.0", "2.9.0.post1", "0.18.0rc1"),
    )
    check_stack(here, here)
    check_stack(replace(here, torch="2.9.0", torch_npu="2.9.0"), here)
    for expected in (
        replace(here, torch="2.9.1"),
        replace(here, cann="8.5"),  # another release of that line has other kernels
        replace(here, cann="8.5.0.1"),
        replace(here, vllm=""),
    ):
        with pytest.raises(WrongImage):
            check_stack(expected, here)
    with pytest.raises(WrongNode, match=naming("driver", "'25.5'", "'25.5.2'")):
        check_stack(replace(here, driver="25.5"), here)


def test_node_name_of_a_pod_is_recorded_instead_of_the_pod_name(store, assignment, monkeypatch):
    monkeypatch.setenv("NODE_NAME", "npu-node-7")
    abandon(store, assignment, Outcome.CRASHED, "played")
    commit = read_shard_commit(store, assignment.campaign, "s1")
    assert manifest_from_json(store.get(commit.manifest.key)).node == "npu-node-7"
    key = keys.part(assignment.campaign, "s1", assignment.attempt, 1)
    assert {m.provenance.node for m in read_part(store.get(key), key=key)} == {"npu-node-7"}
    assert this_node({}) == this_node({"NODE_NAME": ""}) == platform.node()
