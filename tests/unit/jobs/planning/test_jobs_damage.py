"""Damage in a store is reported by run, plan, merge and status alike, or by none of them."""

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from collector.database.commits import find_head
from collector.database.merge import CREATE
from collector.database.plans import Damage
from collector.database.verify import find_problems
from collector.model import keys
from collector.model.plan import Plan, read_shard
from collector.store.base import Store
from collector.store.file import FileStore
from jobs.campaign.campaign_file import Campaign, RunOptions, load_campaign
from jobs.cli.database import merge_command
from jobs.cli.plan import plan_command
from jobs.cli.status import status_command
from jobs.executor import local_campaign
from jobs.planning.damage import DamageReport
from jobs.planning.lifecycle import next_plan, read_head_results, read_state
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    answered,
    commit_shard,
)
from tests.unit.jobs.planning.test_jobs_next_plan import HEADER, ROW, ROWS, TARGET
from tests.unit.jobs.printed import missing, numbers

pytestmark = pytest.mark.fast


@dataclass
class Here:
    """A campaign of several shards and its store, and the output of each command about them."""

    folder: Path
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def __post_init__(self) -> None:
        (self.folder / "tree").mkdir()
        rows = [ROW.replace("1,64", f"{n},64") for n in range(1, ROWS + 1)]
        (self.folder / "tree" / "Add.csv").write_text(HEADER + "".join(rows))
        self.path = self.folder / "c.yaml"
        text = f"campaign: made\nsources: [{{tree: tree}}]\nbackend: npu\n{TARGET}\n"
        self.path.write_text(text + "shards: {target_s: 0.001, session_s: 1}\n")
        self.store = FileStore(self.folder / "store")
        self.monkeypatch.setattr(local_campaign, "check_here", lambda state: None)
        self.monkeypatch.setattr(local_campaign, "device_locks", lambda backend: [])
        self.monkeypatch.setattr(local_campaign, "LocalRun", self._workers)

    @property
    def campaign(self) -> Campaign:
        return load_campaign(self.path)

    def planned(self) -> Plan:
        state = read_state(self.campaign, self.store)
        return next_plan(state, lambda: CREATE, RunOptions(), lambda line: None).plan

    def measured(self, plan: Plan, shards: slice = slice(None)) -> None:
        """The objects that workers leave of some shards of a plan, or all."""
        for shard in plan.shards[shards]:
            table = read_shard(self.store.get(keys.shard("made", shard.shard_id)))
            records = [case.record for case in table]
            made = MadeShard(shard.shard_id, records, [answered(records, 7.0)])
            reported = MadePlan([made], number=plan.number, stack=plan.stack)
            reported = replace(reported, head_commit=plan.head_commit)
            commit_shard(self.store, reported, plan, made)

    def _workers(self, *, plan: Plan, **_: object) -> SimpleNamespace:
        return SimpleNamespace(measure=lambda shards: self.measured(plan))

    def run(self) -> tuple[int, list[str]]:
        message: list[str] = []
        view = View(message)
        stop = threading.Event()
        planned = local_campaign.run_campaign(
            self.campaign, self.store, self.store, lambda: CREATE, RunOptions(), view, stop
        )
        message += planned.damage.advice(planned.plan)
        return int(bool(planned.damage.needed)), message

    def merge(self) -> tuple[int, list[str]]:
        code = merge_command("made", root=self.store.url, allow_missing=True, single_writer=True)
        return code, self._message()

    def plan(self) -> list[str]:
        plan_command(str(self.path), root=self.store.url, dry_run=True)
        return self._message()

    def status(self) -> list[str]:
        status_command(str(self.path), root=self.store.url)
        return self._message()

    def status_of_all(self) -> list[str]:
        status_command(root=self.store.url)
        return self._message()

    def _message(self) -> list[str]:
        reported = self.capsys.readouterr()
        return [*reported.out.splitlines(), *reported.err.splitlines()]


class View:
    def __init__(self, message: list[str]):
        self._message = message

    def say(self, line: str) -> None:
        self._message.append(line)

    def measure(self, done: int, cases: int) -> None:
        """Progress is not displayed."""


@pytest.fixture
def here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Here:
    return Here(tmp_path, capsys, monkeypatch)


def label(line: str) -> str:
    """Return the first column of a line."""
    return line[:12].strip()


_DAMAGE = Damage("c", 1, "s", "k: x")
DAMAGED, IGNORED = label(str(_DAMAGE)), label(next(DamageReport.of([_DAMAGE], 2).lines()))
TO_DO = label(next(DamageReport.of([_DAMAGE], 1).advice()))


def about(lines: list[str], *labels: str) -> list[str]:
    return [line for line in lines if label(line) in (labels or (DAMAGED, IGNORED, TO_DO))]


def begins(message: list[str], plan: int) -> bool:
    """Whether some line names that plan."""
    return any(re.search(rf"\bplan {plan}\b", line) for line in message)


def part_of(here: Here, plan: Plan) -> str:
    return keys.part("made", plan.shards[0].shard_id, "attempt-1", 0)


@pytest.mark.thorough
def test_needed_damaged_shard_is_reported_by_all_commands_with_its_key(here: Here) -> None:
    plan = here.planned()
    here.measured(plan)
    here.store.put(key := part_of(here, plan), b"rot")
    reported = here.status()
    [damaged, to_do] = about(reported)
    assert label(damaged) == DAMAGED and label(to_do) == TO_DO
    assert missing(damaged, [plan.shards[0].shard_id, "plan 1", key]) == []
    assert "opmeter run" in to_do and "--again" not in to_do
    assert sorted(about(here.plan())) == sorted([damaged, to_do])
    code, message = here.merge()
    assert code == 1 and about(message) == [damaged, to_do]
    assert about(here.status()) == [damaged, to_do]
    code, message = here.run()
    assert code == 0 and about(message, DAMAGED, TO_DO) == [damaged]
    assert any(numbers(line) == ["2", "1"] for line in message if "plan" in line)


@pytest.mark.thorough
def test_damaged_shard_measured_by_later_plans_is_ignored_in_one_line(here: Here) -> None:
    first = here.planned()
    here.measured(first)
    here.store.put(key := part_of(here, first), b"rot")
    here.run()
    for code, message in (here.run(), here.merge(), (0, here.plan()), (0, here.status())):
        assert code == 0
        [line] = about(message)
        assert label(line) == IGNORED
        assert missing(line, [first.shards[0].shard_id, "plan 1", key]) == []


@pytest.mark.parametrize("order", ["merged first", "open"])
def test_cases_without_a_later_measurement_are_measured_again(here: Here, order: str) -> None:
    """The database was lost, and then a shard of an older plan is damaged: the newest plan was made
    when the database had its cases, and does not measure them."""
    first = here.planned()
    here.measured(first)
    here.run()
    with (here.folder / "tree" / "Add.csv").open("a") as file:
        file.write(ROW.replace("1,64", f"{ROWS + 1},64"))
    second = here.planned()
    assert (second.number, len(second.shards)) == (2, 1)
    if order == "merged first":
        assert here.run()[0] == 0
    for info in list(here.store.list("db/")):
        here.store.delete(info.key)
    rotten_part(here.store, first)
    assert here.run()[0] == 0
    state = read_state(here.campaign, here.store)
    required = {record.case_id for source in state.sources for record in source.records}
    assert len(required) == ROWS + 1 and set(read_head_results(state)) == required
    code, message = here.run()
    assert (code, read_state(here.campaign, here.store).stored.last) == (0, 3)
    assert label(about(message)[0]) == IGNORED


def rotten_part(store: Store, plan: Plan) -> str:
    store.put(key := keys.part("made", plan.shards[0].shard_id, "attempt-1", 0), b"rot")
    return key


def lost_commit(store: Store, plan: Plan) -> str:
    store.put(keys.committed("made", plan.shards[0].shard_id), b"")
    return keys.committed("made", plan.shards[0].shard_id)


def edited_plan(store: Store, plan: Plan) -> str:
    """Change one digit."""
    key = keys.plan("made", plan.number)
    message = json.loads(store.get(key))
    message["forecast"]["wall_s"] += 1
    store.put(key, json.dumps(message).encode())
    return key


def edited_hash(store: Store, plan: Plan) -> str:
    key = keys.plan("made", plan.number)
    sha256 = plan.shards[0].sha256
    other = ("1" if sha256[0] == "0" else "0") + sha256[1:]
    store.put(key, store.get(key).replace(sha256.encode(), other.encode()))
    return key


@pytest.mark.thorough
@pytest.mark.parametrize("harm", [rotten_part, lost_commit, edited_plan, edited_hash])
def test_damage_of_merged_shards_is_reported_only_by_verify(
    here: Here, harm: Callable[[Store, Plan], str]
) -> None:
    plan = here.planned()
    here.measured(plan)
    here.run()
    key = harm(here.store, plan)
    before = find_head(here.store)
    for code, message in ((0, here.status()), (0, here.plan()), here.merge(), here.run()):
        assert code == 0 and about(message) == [], message
    assert find_head(here.store) == before
    assert any(key in problem.text for problem in find_problems(here.store))


@pytest.mark.thorough
def test_plan_changed_after_its_merge_publishes_nothing_more(
    here: Here,
) -> None:
    plan = here.planned()
    here.measured(plan, slice(1))
    here.merge()
    here.measured(plan, slice(1, None))
    key = edited_plan(here.store, plan)
    before = find_head(here.store)
    for message in (here.status(), here.plan(), here.merge()[1]):
        [damaged, *_] = about(message)
        assert missing(damaged, ["plan 1", key]) == []
        assert len(about(message, DAMAGED)) == 1
    assert find_head(here.store) == before
    code, message = here.run()
    assert code == 0 and begins(message, 2) and len(about(message, DAMAGED)) == 1
    assert about(here.status()) == about(here.merge()[1]) == about(here.plan())
    assert label(about(here.status())[0]) == IGNORED


@pytest.mark.thorough
def test_restarted_campaign_reuses_no_merged_plan_number(here: Here) -> None:
    here.measured(here.planned())
    here.run()
    for info in list(here.store.list("campaigns/")):
        here.store.delete(info.key)
    here.path.write_text(here.path.read_text() + "update: all\n")
    code, message = here.run()
    assert code == 0 and begins(message, 2) and about(message) == []
    head = find_head(here.store)
    assert head is not None and head.number == 2
    for message in (here.merge()[1], here.status(), here.plan()):
        assert about(message) == []


def test_plan_changed_before_its_merge_is_blamed_once(here: Here) -> None:
    plan = here.planned()
    here.measured(plan)
    key = edited_plan(here.store, plan)
    for message in (here.status(), here.plan(), here.merge()[1]):
        [damaged] = about(message, DAMAGED)
        assert str(len(plan.shards) - 1) in numbers(damaged)
        assert key in damaged
    here.merge()
    assert find_head(here.store) is None


@pytest.mark.thorough
def test_unreadable_plan_is_reported_until_there_is_another(here: Here) -> None:
    plan = here.planned()
    here.measured(plan)
    here.store.put(key := keys.plan("made", 1), b"{")
    lines = [about(message) for message in (here.status(), here.merge()[1])]
    assert lines[0] == lines[1] and label(lines[0][0]) == DAMAGED
    assert missing(lines[0][0], ["plan 1", key]) == []
    assert label(lines[0][1]) == TO_DO and "--again" in lines[0][1]
    assert about(here.plan(), DAMAGED) == lines[0][:1]
    code, message = here.run()
    assert code == 0 and about(message, DAMAGED) == lines[0][:1]
    assert len(about(here.status())) == len(about(here.merge()[1])) == 1
    assert about(here.status())[0] == about(here.merge()[1])[0]
    assert here.merge()[0] == 0


@pytest.mark.thorough
@pytest.mark.parametrize("lost", [1, 2])
def test_damaged_log_is_reported_by_status_in_one_line(here: Here, lost: int) -> None:
    here.measured(here.planned())
    here.run()
    here.path.write_text(here.path.read_text() + "limits: {case_s: 59}\nupdate: all\n")
    here.run()
    here.store.delete(keys.commit(lost))
    for message in (here.status(), here.status_of_all()):
        [warning] = [line for line in message if line.startswith("warning")]
        assert keys.commit(lost) in warning and "opmeter db verify" in warning


def test_shard_of_two_plans_is_reported_once_and_a_long_list_is_cut() -> None:
    found = [Damage("c", 1, "s", "a: x"), Damage("c", 2, "s", "a: x")]
    found += [Damage("c", 2, f"t{n}", f"k{n}: x") for n in range(40)]
    lines = list(DamageReport.of(found, 2).lines())
    assert len(lines) == 26 and numbers(lines[-1]) == ["16"]
    assert not [line for line in lines if "plan 1" in line]
