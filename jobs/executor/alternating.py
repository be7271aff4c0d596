"""`opmeter measure`: short sessions of given cases, on one side or on two that take turns.

A side is a list of cases in an environment. The sessions of two sides form pairs, in the order AB
BA AB BA: slow changes of the machine, and an advantage of the first session of a pair, are in both
sides alike. The number of sessions follows from the time that the first ones took, never
from their results, so that intervals keep their coverage.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import floor

from collector import environment
from collector.codec.canonical import sha256_hex, short_hash
from collector.codec.text import counted
from collector.database.merge import Guard
from collector.database.shard_commits import committed_manifest
from collector.model.measurement import Measurement
from collector.model.plan import Limits, MeasureSettings, Plan, ShardSettings
from collector.model.record import CaseRecord, write_table
from collector.model.stack import Stack
from collector.ops.own import OperatorFile
from collector.store.base import Store
from collector.worker.attempt import read_part
from jobs.campaign.campaign_file import Campaign, QualitySettings, RunOptions, RuntimeValues
from jobs.campaign.source_kinds import GivenSource
from jobs.executor.environments import MeasuredEnvironment
from jobs.executor.local_campaign import run_campaign
from jobs.executor.local_run import RunView
from jobs.planning.lifecycle import NextPlan

_CASE_S = 240.0  # there is no forecast that could be wrong for other cases
FEWEST_PAIRS, MOST_PAIRS = 4, 12  # of two sides
FEWEST_SESSIONS, MOST_SESSIONS = 2, 5  # of one


@dataclass(frozen=True, slots=True)
class Side:
    """Cases in an environment (None: that of this process), their stack, and where their results
    are stored. `place` is 0 or 1: two equal sides remain two campaigns."""

    name: str
    place: int
    records: tuple[CaseRecord, ...]
    backend: str
    stack: Stack
    measure: MeasureSettings
    environment: MeasuredEnvironment | None
    store: Store
    watched: Store
    operators: tuple[OperatorFile, ...] = ()

    @property
    def campaign(self) -> Campaign:
        """Return the campaign whose plans are the sessions of this side."""
        within = "" if self.environment is None else self.environment.name
        cases = sha256_hex(write_table(self.records))
        named = short_hash([cases, self.backend, self.measure.as_json(), within, self.place], 12)
        return Campaign(
            name=f"measure-{named}",
            sources=(GivenSource(self.records),),
            operators=None,
            update="all",
            target=None,
            backend=self.backend,
            devices=1,
            measure=self.measure,
            shards=ShardSettings(target_s=7200.0),  # each plan is one session
            limits=Limits(case_s=_CASE_S),
            quality=QualitySettings(repeat_share=0.0),
            sampling=None,
            runtime=RuntimeValues(),
            op_mapping=None,
            store=None,
            operator_files=self.operators,
        )


@dataclass(frozen=True, slots=True)
class Session:
    """One session of a side: what it measured, and the plan that it is in the database. `damage`
    are lines about what could not be read."""

    plan: Plan
    measurements: tuple[Measurement, ...]
    damage: tuple[str, ...] = ()

    def of(self, case: str) -> Measurement | None:
        """Return the last result of a case, also as another kernel that ran in its place; a good
        one if there is one."""
        own = [m for m in self.measurements if case in (m.case_id, m.asked)]
        own.sort(key=lambda m: (m.is_good, not m.is_filed))
        return own[-1] if own else None


@dataclass(frozen=True, slots=True)
class SessionCount:
    """How many sessions each side has: `given`, or as many as end within `time_s`, of one side or
    of a pair of sides."""

    is_paired: bool
    time_s: float
    given: int | None = None

    def after(self, round_s: float) -> int:
        """Return the number if one session of each side takes `round_s`. Pairs are an even number,
        so that each side is as often the first."""
        if self.given is not None:
            return self.given
        affordable = floor(self.time_s / round_s)
        if self.is_paired:
            return min(max(affordable - affordable % 2, FEWEST_PAIRS), MOST_PAIRS)
        return min(max(affordable, FEWEST_SESSIONS), MOST_SESSIONS)


def measure_sides(
    sides: Sequence[Side],
    count: SessionCount,
    guard: Callable[[Store], Guard],
    options: RunOptions,
    view: RunView,
    stop: threading.Event,
) -> list[list[Session]]:
    """Return the sessions of each side. Return early, with as many of each, once `stop` is set."""
    done: list[list[Session]] = [[] for _ in sides]
    began_s = environment.monotonic()
    rounds = 1
    total = len(sides) * (count.given or 1)
    while len(done[-1]) < rounds and not stop.is_set():
        turn = len(done[-1])
        order = list(enumerate(sides))
        for place, side in reversed(order) if turn % 2 else order:
            number = sum(map(len, done)) + 1
            shown = _OneSession(view, number, total)
            found = _session(side, guard, options, shown, stop)
            if found is None:
                return [own[:turn] for own in done]
            done[place].append(found)
        if turn == 0:
            round_s = max(environment.monotonic() - began_s, 0.1)
            rounds = count.after(round_s)
            total = rounds * len(sides)
            each_s = round_s / len(sides)
            left_s = (total - len(sides)) * each_s
            view.say(
                f"{counted(total, 'session')} of about {each_s:.0f} s each, {left_s:.0f} s to go"
            )
    return done


def _session(
    side: Side,
    guard: Callable[[Store], Guard],
    options: RunOptions,
    view: RunView,
    stop: threading.Event,
) -> Session | None:
    """Measure and merge one session; None if it was stopped."""
    made: NextPlan = run_campaign(
        side.campaign,
        side.store,
        side.watched,
        lambda: guard(side.store),
        options,
        view,
        stop,
        side.environment,
        side.stack,
    )
    if made.missing:
        return None
    damage = tuple(made.damage.lines())
    return Session(made.plan, tuple(_measurements(side.store, made.plan)), damage)


def _measurements(store: Store, plan: Plan) -> Iterator[Measurement]:
    for shard in plan.shards:
        manifest = committed_manifest(store, plan.campaign, shard.shard_id)
        for entry in manifest.parts if manifest else ():
            yield from read_part(store.get(entry.part.key), key=entry.part.key)


class _OneSession(RunView):
    """Shows the progress of one of several sessions, and nothing that is the same for each."""

    def __init__(self, view: RunView, number: int, total: int):
        self._view, self._number, self._total = view, number, total

    def __exit__(self, *failure: object) -> None:
        return None

    def say(self, text: str) -> None:
        return None

    def measure(self, done: int, cases: int) -> None:
        self._view.measure((self._number - 1) * cases + done, self._total * cases)
