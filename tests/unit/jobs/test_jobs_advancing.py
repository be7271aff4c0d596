"""What older plans have committed is merged before the next plan is made, by `run` and `plan`."""

from dataclasses import replace
from pathlib import Path

import pytest

from collector.database.merge import CREATE, merge
from collector.errors import BadInput
from collector.store.memory import MemoryStore
from jobs.advancing import Wish, advance, check_version
from jobs.campaign import campaign_from_text
from jobs.preparing import survey
from tests.unit.collector.database.campaign_maker import (
    STACK,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    write_campaign,
)

pytestmark = pytest.mark.fast

CASE = add_record(1)
TARGET = (
    "target: {device: A3, vllm: 0.18.0, torch: 2.9.0, cann: '8.5', driver: '25.5', "
    "firmware: '7.8', torch_npu: 2.9.0}"
)
HEADER = (
    "OP State,Accelerator Core,Input Shapes,Input Data Types,Input Formats,"
    "Output Shapes,Output Data Types,Output Formats\n"
)
ROW = ",".join(
    ["dynamic", "AI_VECTOR_CORE", '"""1,64;1,64"""', "DT_BF16;DT_BF16", "ND;ND"]
    + ['"""1,64"""', "DT_BF16", "ND\n"]
)
TRIED = MadeShard("s", [CASE], [{CASE.case_id: Tried(5.0)}])


@pytest.fixture
def campaign(tmp_path: Path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "Add.csv").write_text(HEADER + ROW)
    text = f"campaign: made\nsources: [{{tree: tree}}]\nbackend: npu\n{TARGET}\n"
    return campaign_from_text(text, path="c.yaml", base=tmp_path)


def advanced(campaign, store, wish=None):
    said: list[str] = []
    situation = survey(campaign, store)
    return advance(situation, store, lambda: CREATE, wish or Wish(), said.append), said


def test_what_an_older_plan_committed_is_merged_and_left_out(campaign):
    store = MemoryStore()
    stack = survey(campaign, store).stack
    write_campaign(store, MadePlan([TRIED], stack=stack))
    result, said = advanced(campaign, store)
    assert said == []
    assert result.plan.number == 2 and result.situation.head.number == 1
    assert result.plan.shards == ()  # its one case is answered at the head


def test_an_older_plan_of_another_stack_is_left_alone_and_named(campaign):
    store = MemoryStore()
    write_campaign(store, MadePlan([TRIED], stack=STACK))
    result, said = advanced(campaign, store)
    assert "plan 1 was measured on another stack" in said[0]
    assert result.situation.head is None and len(result.plan.shards) == 1


def test_the_next_plan_is_continued_until_it_is_merged(campaign):
    store = MemoryStore()
    first, _ = advanced(campaign, store)
    second, _ = advanced(campaign, store)
    assert first.plan == second.plan and second.news == "continuing plan 1"


def test_another_stack_in_the_version_is_refused_before_anything_is_measured(campaign):
    store = MemoryStore()
    stack = replace(survey(campaign, store).stack, driver="24.1")
    write_campaign(store, MadePlan([TRIED], campaign="other", stack=stack))
    merge(store, [("other", 1)], guard=CREATE, author="a", sleep=lambda s: None)
    with pytest.raises(BadInput, match="holds results of another stack .*driver"):
        advanced(campaign, store)
    check_version(survey(campaign, store), supersede_stack=True)
