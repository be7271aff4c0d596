"""After an upgrade a sample of each kernel is measured, and equal kernels are reused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import opmeter
from collector.codec.errors import BadInput
from collector.database.merge import CREATE, merge_plans
from collector.database.reuse import read_reuses
from collector.model import keys
from collector.model.plan import UpgradeFrom, plan_from_json, plan_to_json, read_shard
from collector.store.file import FileStore
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import RunOptions, SamplingSettings, campaign_from_text
from jobs.cli.plan import plan_command
from jobs.planning.gaps import describe_forecast
from jobs.planning.lifecycle import next_plan, read_state
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    commit_shard,
    write_campaign,
)
from tests.unit.jobs.printed import raises_naming

pytestmark = [pytest.mark.fast, pytest.mark.thorough]

OLD_CANN, NEW_CANN = "8.5.0", "9.0.0"
CASES, CHANGED, LATER = 80, 1.08, 1.002
KERNELS = ("Add", "Mul", "Sub")
HEADER = (
    "OP State,Accelerator Core,Input Shapes,Input Data Types,Input Formats,"
    "Output Shapes,Output Data Types,Output Formats\n"
)
RECORDS = {k: [add_record(rows, kernel=k) for rows in range(1, CASES + 1)] for k in KERNELS}
FACTORS = {"Add": LATER, "Mul": CHANGED, "Sub": LATER}
OF_OLD = {"Add": CASES, "Mul": CASES, "Sub": 5}  # the older stack has measured few cases of Sub


def text_of(cann):
    return (
        "campaign: made\nsources: [{tree: tree}]\nbackend: npu\ntarget: {device: A3, vllm: 0.18.0, "
        f"torch: 2.9.0, cann: '{cann}', driver: '25.5', firmware: '7.8', torch_npu: 2.9.0}}\n"
    )


@pytest.fixture
def folder(tmp_path: Path):
    (tmp_path / "tree").mkdir()
    for kernel, records in RECORDS.items():
        rows = [
            ",".join('"' + c.replace('"', '""') + '"' for c in r.cells.values()) for r in records
        ]
        (tmp_path / "tree" / f"{kernel}.csv").write_text(HEADER + "\n".join(rows) + "\n")
    return tmp_path


def campaign_on(cann, folder):
    return campaign_from_text(text_of(cann), path="c.yaml", base=folder)


def numbers_of(line):
    return [float(text) for text in re.findall(r"[0-9.]+", line)]


def duration_us(record):
    return 5.0 + record.case.inputs[0].shape[0] / 10


def measure(store, stack, plan, factors, *, campaign="made"):
    """Measure every case of every shard of a plan."""
    for shard in plan.shards:
        table = read_shard(store.get(keys.shard(campaign, shard.shard_id)))
        records = [case.record for case in table]
        tried = {r.case_id: Tried(duration_us(r) * factors[r.kernel_type]) for r in records}
        made = MadeShard(shard.shard_id, records, [tried])
        reported = MadePlan([made], number=plan.number, stack=stack, head_commit=plan.head_commit)
        commit_shard(store, replace(reported, campaign=campaign), plan, made)


def publish_old(store, stack):
    """Publish the measurements of a campaign of the older stack: each case in two sessions."""
    records = [record for kernel, count in OF_OLD.items() for record in RECORDS[kernel][:count]]
    tried = {record.case_id: Tried(duration_us(record)) for record in records}
    shards = [MadeShard(name, records, [tried]) for name in ("one", "two")]
    write_campaign(store, MadePlan(shards, campaign="old", stack=stack))
    merge_plans(store, [("old", 1)], guard=CREATE, author="a")


@pytest.fixture
def upgraded(folder):
    store = FileStore(folder / "store")
    old = read_state(campaign_on(OLD_CANN, folder), store).stack
    publish_old(store, old)
    return store, campaign_on(NEW_CANN, folder), UpgradeFrom(old.version_path, 0.05)


def advanced(campaign, store, wish):
    state = read_state(campaign, store)
    return next_plan(state, lambda: CREATE, wish, lambda line: None)


def planned(store, plan):
    """Return the kernel types of a plan's cases, each case once, by kernel."""
    found = {}
    for shard in plan.shards:
        for case in read_shard(store.get(keys.shard("made", shard.shard_id))):
            found.setdefault(case.record.kernel_type, set()).add(case.record.case_id)
    return {kernel: len(cases) for kernel, cases in found.items()}


def test_equal_kernels_are_reused_and_changed_ones_measured(upgraded):
    store, campaign, old = upgraded
    wish = RunOptions(upgrade_from=old)
    sample = advanced(campaign, store, wish)
    counts = planned(store, sample.plan)
    assert counts["Sub"] == CASES  # five known cases decide nothing
    assert 6 <= counts["Add"] == counts["Mul"] <= CASES // 3
    forecast = sample.plan.forecast
    assert forecast.learning == 2 * counts["Add"] <= forecast.repeats
    assert forecast.left_out == forecast.unsure == 2 * CASES - forecast.learning
    assert sample.reuse is None
    assert {one.kernel_type: len(one.waiting) for one in sample.samples} == {
        kernel: CASES - counts[kernel] for kernel in ("Add", "Mul")
    }
    assert advanced(campaign, store, wish).plan == sample.plan  # it is continued

    measure(store, sample.plan.stack, sample.plan, FACTORS)
    rest = advanced(campaign, store, RunOptions())  # as `run` does: the plan continues
    assert planned(store, rest.plan) == {"Mul": CASES - counts["Mul"]}
    assert (rest.plan.forecast.learning, rest.plan.forecast.unsure) == (0, 0)
    assert rest.plan.forecast.left_out == CASES - counts["Add"]
    (reuse,) = read_reuses(store, rest.plan.stack.version_path)
    assert reuse == rest.reuse and reuse.of == old.version_path
    (kernel,) = reuse.kernels
    assert kernel.kernel_type == "Add" and kernel.ratio.ratio == pytest.approx(LATER)
    assert kernel.ratio.cases == counts["Add"]
    measured = {record.case_id for record in RECORDS["Add"]} - set(kernel.cases)
    assert len(measured) == counts["Add"] and len(kernel.cases) == CASES - counts["Add"]

    measure(store, rest.plan.stack, rest.plan, FACTORS)
    check_answers(store, rest.plan, kernel)
    done = advanced(campaign, store, wish)
    assert done.is_finished and done.plan == rest.plan
    assert advanced(campaign, store, RunOptions(again=True)).plan.upgrade_from is None


def check_answers(store, plan, kernel):
    """Check that reused durations are returned on request only, and are never written to a tree."""
    merge_plans(store, [("made", n) for n in (1, 2)], guard=CREATE, author="a")
    path = plan.stack.version_path
    db = opmeter.open(store.url)
    plain, reused = db.directory(path), db.directory(path, reused=True)
    assert plain.rows == reused.rows == 3 * CASES - len(kernel.cases)
    exact, between = ("measured", "pooled"), ("interpolated", "miss")
    for record in RECORDS["Add"]:
        shapes = [(record.case.inputs[0].shape[0], 64)] * 2
        usual, answer = (one.query("Add", shapes, "bf16") for one in (plain, reused))
        if record.case_id not in kernel.cases:
            assert usual == answer and answer.channel in exact
            continue
        assert usual.channel in between and answer.channel == "reused"
        expected = duration_us(record) * LATER
        assert answer.value_us == pytest.approx(expected)
        old = db.directory(kernel_path(reused)).query("Add", shapes, "bf16")
        assert answer.low_us < expected < answer.high_us
        assert answer.high_us / answer.value_us > 1.01 and answer.support == old.support == 2
        assert old.channel == "pooled" and "x1.002" in answer.warnings[-1]
    assert reused.query("Add", [(9999, 64)] * 2, "bf16").reason == "outside"
    rows = next(r.case.inputs[0].shape[0] for r in RECORDS["Add"] if r.case_id in kernel.cases)
    found = reused.explain("Add", [(rows, 64)] * 2, "bf16")
    assert found.answer == reused.query("Add", [(rows, 64)] * 2, "bf16")
    assert found.rows[0].inputs == ((rows, 64), (rows, 64)) and found.widest is None
    table = {
        "kernel_type": ["Add"] * CASES,
        "Input Shapes": [f"{n},64;{n},64" for n in range(1, 81)],
    }
    many = reused.query_many(table)
    assert (many["channel"] == "reused").sum() == len(kernel.cases)
    assert not {"reused"} & set(plain.query_many(table)["channel"])


def kernel_path(version):
    return version.path.replace(NEW_CANN, OLD_CANN)


def test_another_margin_makes_another_plan(upgraded):
    store, campaign, old = upgraded
    first = advanced(campaign, store, RunOptions(upgrade_from=old))
    other = advanced(campaign, store, RunOptions(upgrade_from=replace(old, margin=0.2)))
    assert other.plan.number == first.plan.number + 1
    assert other.plan.upgrade_from.margin == 0.2
    assert plan_from_json(plan_to_json(other.plan)) == other.plan
    none = advanced(campaign, store, RunOptions(upgrade_from=replace(old, margin=0.001)))
    assert none.plan.forecast.left_out == 0  # no sample could show such a small difference
    assert planned(store, none.plan) == dict.fromkeys(KERNELS, CASES)
    (line,) = [line for line in describe_forecast(none.plan) if line.startswith("upgrade")]
    assert old.version_path in line


def test_plan_after_a_failed_sample_measures_the_remaining_cases(upgraded):
    store, campaign, old = upgraded
    sample = advanced(campaign, store, RunOptions(upgrade_from=old))
    for shard in sample.plan.shards:
        table = read_shard(store.get(keys.shard("made", shard.shard_id)))
        records = [case.record for case in table]
        made = MadeShard(shard.shard_id, records, [{r.case_id: Tried() for r in records}])
        reported = MadePlan([made], stack=sample.plan.stack, head_commit=sample.plan.head_commit)
        commit_shard(store, reported, sample.plan, made)
    rest = advanced(campaign, store, RunOptions())
    assert rest.plan.forecast.learning == 0 and rest.reuse is None
    left = CASES - sample.plan.forecast.learning // 2
    assert planned(store, rest.plan) == {"Add": left, "Mul": left}


def test_a_version_directory_that_cannot_be_reused_is_refused(upgraded, folder):
    store, campaign, old = upgraded
    own = read_state(campaign, store).stack.version_path
    for path in (own, "A2/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5.0", "nothing"):
        with raises_naming(BadInput, old.version_path, path):
            advanced(campaign, store, RunOptions(upgrade_from=replace(old, version_path=path)))
    learning = replace(campaign, sampling=SamplingSettings(0.05))
    for wrong, name in ((learning, "sampling"), (replace(campaign, update="all"), "update")):
        with raises_naming(BadInput, name):
            advanced(wrong, store, RunOptions(upgrade_from=old))
    with raises_naming(BadInput, old.version_path):
        advanced(campaign, MemoryStore(), RunOptions(upgrade_from=old))


def test_the_command_names_the_reused_kernels(upgraded, folder, capsys):
    store, campaign, old = upgraded
    (folder / "c.yaml").write_text(text_of(NEW_CANN))
    where = {"root": str(folder / "store")}
    plan_command(str(folder / "c.yaml"), **where, upgrade_from=old.version_path)
    printed = capsys.readouterr().out
    assert "wait for a sample" in printed
    samples = [line for line in printed.splitlines() if line.startswith("sample")]
    assert len(samples) == 2 and all(0.05 < numbers_of(line)[-1] / 100 < 1 for line in samples)
    sample = advanced(campaign, store, RunOptions())
    measure(store, sample.plan.stack, sample.plan, FACTORS)
    merge_plans(store, [("made", 1)], guard=CREATE, author="a")
    plan_command(
        str(folder / "c.yaml"), **where, upgrade_from=old.version_path, dry_run=True, as_json=True
    )
    found = json.loads(capsys.readouterr().out)
    assert found["upgrade_from"]["version_path"] == old.version_path and found["samples"] == []
    assert [one["kernel_type"] for one in found["reuse"]["kernels"]] == ["Add"]
    plan_command(str(folder / "c.yaml"), **where, upgrade_from=old.version_path)
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("reused")]
    assert "Add" in line and "x1.002" in line
    for options, name in (
        ({"margin": "10%"}, "--upgrade-from"),
        ({"upgrade_from": old.version_path, "margin": "200%"}, "--margin"),
        ({"upgrade_from": old.version_path, "again": True}, "--again"),
    ):
        with raises_naming(BadInput, name):
            plan_command(str(folder / "c.yaml"), **where, **options)
