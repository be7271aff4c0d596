"""A store with an example of everything in it, and the next commands of users and machines.

Two campaigns share a database. One has published a plan and is in the middle of the next: a shard
is committed, one was left by a killed worker, one was never begun. Every duration follows from its
case, so that a wrong duration is recognised anywhere.
"""

import csv
import io
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from collector.codec.errors import OpmeterError
from collector.database.commits import find_head
from collector.database.manifest import read_file, read_manifest, tree_files
from collector.database.merge import CREATE, merge_plans
from collector.database.verify import find_problems
from collector.measuring.batches import RawRecords, SessionResults
from collector.measuring.instrument import Keep
from collector.model.manifest import Usage
from collector.model.measurement import Measurement, Outcome, Provenance, Timing
from collector.model.plan import Plan, ShardCase
from collector.model.stack import Stack
from collector.ops.own import OperatorFile
from collector.store.base import Store
from collector.store.in_memory import MemoryStore
from collector.worker.assignment import LOG, Assignment, work_on_shard
from collector.worker.attempt import Attempt
from jobs.campaign.campaign_file import Campaign, RunOptions, campaign_from_text
from jobs.planning.lifecycle import NextPlan, next_plan, read_state
from jobs.planning.stored_plans import campaigns, plan_numbers
from jobs.status.follower import Follower
from tests.attack.damage import DamagedStore

T = TypeVar("T")
STACK = Stack("CPU_test_2t", "2.13.0", details=(("flags", "avx2"), ("threads", "2")))
_CASES = 9
_ROUNDS = 4  # of plan, work and merge, after which a campaign must have finished
_HEADER = (
    "OP State,Accelerator Core,Input Shapes,Input Data Types,Input Formats,"
    "Output Shapes,Output Data Types,Output Formats\n"
)
_AVERAGE, _SHAPES = "Average Duration(us)", "Input Shapes"

Say = Callable[[str], None]
Shown = Mapping[str, str]  # input shapes -> the duration that the head's CSVs show


@dataclass
class Scene:
    """Write the campaigns of the users, and files that a profiler could have left."""

    folder: Path

    def __post_init__(self) -> None:
        self.summary = self.folder / "op_summary.csv"
        self.summary.write_text("Op Name,Task Duration(us)\nAdd,1.0\n")
        (self.folder / LOG).write_text("measured\n")
        self.journal = self.folder / "journal.jsonl"
        self.journal.write_text("{}\n")
        self.shapes = [f'"{n},64;{n},64"' for n in range(1, 2 * _CASES + 1)]
        self.alpha = self._campaign("alpha", first=1)
        self.beta = self._campaign("beta", first=_CASES + 1)

    def _campaign(self, name: str, first: int) -> Campaign:
        tree = self.folder / name
        tree.mkdir()
        rows = [_row(size) for size in range(first, first + _CASES)]
        (tree / "Add.csv").write_text(_HEADER + "".join(rows))
        text = (
            f"campaign: {name}\nsources: [{{tree: {name}}}]\nbackend: cpu\ndevices: 3\n"
            "update: missing-only\nshards: {target_s: 0.07, session_s: 0.000001}\n"
            "target: {device: CPU_test_2t, torch: 2.13.0}\n"
        )
        return campaign_from_text(text, path="campaign.yaml", base=self.folder)


@dataclass
class SimulatedMachine:
    """A machine with the stack of any plan, which ends after a number of sessions."""

    scene: Scene
    sessions: int
    node: str = "node-1"

    def free_bytes(self, folder: Path) -> int:
        return 1 << 40

    def stack(self, plan: Plan) -> Stack:
        return plan.stack

    def serial(self, plan: Plan, device: int) -> str | None:
        return None

    def rehearse(self, attempt: Attempt, scratch: Path) -> None:
        """The software of the victim is this process's."""

    def instrument(
        self,
        plan: Plan,
        device: int,
        scratch: Path,
        stop: threading.Event,
        on_progress: Callable[[int, str], None],
        keep: Keep,
        operators: tuple[OperatorFile, ...],
    ) -> "Truthful":
        return Truthful(self.scene, self.sessions)


@dataclass
class Truthful:
    """An instrument that measures durations that follow from the shapes, and dies with its worker
    after `sessions`."""

    scene: Scene
    sessions: int = 100

    def measure(self, cases: Sequence[ShardCase], provenance: Provenance) -> SessionResults:
        if self.sessions == 0:
            raise Killed
        self.sessions -= 1
        found = tuple(_measured(case, provenance) for case in cases)
        raw = (RawRecords(self.scene.summary, self.scene.journal),)
        return SessionResults(found, raw, Usage(1.0, 1.0, 1.0, 0.1), began=True, reason="")


class Killed(BaseException):
    """Ends a worker at once: no handler of the product catches it."""


@dataclass
class Aftermath:
    """`said` has every line printed for a user, `shown` the final contents of the database."""

    message: list[str] = field(default_factory=list)
    shown: Shown = field(default_factory=dict)

    def reported(self, act: Callable[[], T]) -> T | None:
        """Run something that may be refused in one line."""
        try:
            return act()
        except OpmeterError as error:
            self.message.append(str(error))
            return None


def true_duration_us(shapes: str) -> float:
    """Return the duration of `n,64;n,64` on every device here."""
    return 100.0 + int(shapes.strip('"').split(",")[0])


def build(scene: Scene) -> DamagedStore:
    """Return the store before anything happens."""
    store = DamagedStore({})
    for campaign in (scene.alpha, scene.beta):
        plan = _advanced(campaign, store, RunOptions(), print).plan
        for shard in plan.shards:
            _work(scene, store, plan, shard.shard_id, "first")
        _merge(store, campaign, print)
    plan = _advanced(scene.alpha, store, RunOptions(again=True), print).plan
    done, killed, _ = (shard.shard_id for shard in plan.shards)
    _work(scene, store, plan, done, "first")
    try:
        _work(scene, store, plan, killed, "first", sessions=1)
    except Killed:
        return store
    raise AssertionError("the worker was not killed in its second session")


def aftermath(scene: Scene, store: Store) -> Aftermath:
    """Run all further commands of a store until its campaigns are finished."""
    seen = Aftermath()
    with _listening(seen.message):
        seen.reported(lambda: _reconcile(store))
        for campaign in (scene.alpha, scene.beta):
            _finish(scene, store, campaign, seen)
        seen.reported(lambda: _reconcile(store))
        seen.reported(lambda: seen.message.extend(problem.text for problem in find_problems(store)))
        seen.shown = seen.reported(lambda: shown_by(store)) or {}
    return seen


def shown_by(store: Store) -> Shown:
    """Return the values in the CSVs of the head."""
    head = find_head(store)
    if head is None:
        return {}
    tree = tree_files(store, head, read_manifest(store, head))
    files = (read_file(store, file) for _, file in sorted(tree.items()))
    return {row[_SHAPES]: row[_AVERAGE] for file in files for row in _rows(file)}


def _rows(file: bytes) -> Iterator[dict[str, str]]:
    return csv.DictReader(io.StringIO(file.decode(), newline=""))


def _finish(scene: Scene, store: Store, campaign: Campaign, seen: Aftermath) -> None:
    """Repeat the steps of `opmeter run` until nothing is left: plan, work, merge."""
    for turn in range(_ROUNDS):
        next_up = seen.reported(
            partial(_advanced, campaign, store, RunOptions(), seen.message.append)
        )
        if next_up is None:
            seen.reported(partial(_merge, store, campaign, seen.message.append))
            continue
        plan = next_up.plan
        if next_up.is_finished:
            return
        for shard in plan.shards:
            seen.reported(partial(_work, scene, store, plan, shard.shard_id, f"again-{turn}"))
        seen.reported(partial(_merge, store, campaign, seen.message.append))


def _advanced(campaign: Campaign, store: Store, options: RunOptions, say: Say) -> NextPlan:
    return next_plan(read_state(campaign, store, STACK), lambda: CREATE, options, say)


def _merge(store: Store, campaign: Campaign, say: Say) -> None:
    result = merge_plans(
        store,
        [(campaign.name, number) for number in plan_numbers(store, campaign.name)],
        guard=CREATE,
        author="test",
        allow_missing=True,
    )
    for damage in result.damaged:
        say(str(damage))


def _work(
    scene: Scene, store: Store, plan: Plan, shard: str, attempt: str, sessions: int = 100
) -> None:
    assignment = Assignment(plan.campaign, plan.number, plan.plan_hash, shard, attempt)
    machine = SimulatedMachine(scene, sessions)
    unseen = MemoryStore()  # for progress that is not read
    work_on_shard(
        store, assignment, scene.folder, threading.Event(), watched=unseen, machine=machine
    )


def _reconcile(store: Store) -> None:
    for name in campaigns(store):
        Follower(store).read(name)


def _measured(case: ShardCase, provenance: Provenance) -> Measurement:
    record = case.record
    mean_us = true_duration_us(record.cells[_SHAPES])
    return Measurement(
        record.case_id,
        record.case.kernel_type,
        Outcome.OK,
        "",
        provenance,
        n_expected=3,
        n_observed=3,
        n_accepted=3,
        timing=Timing(*[mean_us] * 7, 0.0),
    )


def _row(size: int) -> str:
    slots = f'"""{size},64;{size},64"""'
    return f'dynamic,AI_VECTOR_CORE,{slots},FLOAT;FLOAT,ND;ND,"""{size},64""",FLOAT,ND\n'


class _Lines(logging.Handler):
    def __init__(self, message: list[str]):
        super().__init__(logging.WARNING)
        self._message = message

    def emit(self, record: logging.LogRecord) -> None:
        self._message.append(record.getMessage())


@contextmanager
def _listening(message: list[str]) -> Iterator[None]:
    handler = _Lines(message)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
