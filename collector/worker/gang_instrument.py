"""The instrument of a gang: one session is a bench of several ranks on this machine.

The raw record is what the ranks recorded of every call; the certificate of a case is derived from
it. Cases that cannot share a start of the ranks are measured in another session.
"""

import csv
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from collector import environment
from collector.codec.errors import BadInput, PeersAway
from collector.codec.table import table_rows
from collector.comm import gang
from collector.comm.bench_plan import BenchPlan, Mode
from collector.comm.gang import GangFailed, GangWork, PeerLeft, StartRanks, Tick
from collector.comm.kernels import OTHER_TENSORS, weakest_proof
from collector.comm.measured import collective_settings, group_timings
from collector.comm.moe.benching import moe_work
from collector.comm.moe.moe_plan import MoeCase, MoePlan, modes_of
from collector.comm.rank_files import TOO_LARGE, CaseSeen, have_met, read_rank_results, wrong_result
from collector.comm.timing import (
    CollectiveTiming,
    RankTimes,
    call_durations_us,
    over_all,
    relative_spread,
)
from collector.host.cores import CoreTime
from collector.measuring.batches import RawRecords, SessionResults, Unmeasured
from collector.measuring.instrument import Keep, OnProgress, SessionSettings, case_limit_s
from collector.model.case import Case
from collector.model.manifest import NO_USAGE, Usage
from collector.model.measurement import Measurement, Outcome, Provenance
from collector.model.plan import Limits, MeasureSettings, ShardCase
from collector.model.record import CaseRecord
from collector.model.stack import Stack
from collector.ops.floor import lower_bound_us
from collector.quality.disturbances import gang_disturbance
from collector.quality.gates import (
    implausible,
    no_duration,
    no_single_duration,
    timing_warnings,
)
from collector.quality.statistics import summarise
from collector.ranks.collective import collective_case_of, is_collective
from collector.ranks.distribution import DISTRIBUTE_KERNELS
from collector.ranks.experts import imbalance_of
from collector.ranks.gangs import ROUNDS, routed_call
from collector.replay.seal import SealedRecords, foreign_records, seal

# From the records that the ranks of a gang made of each case to its certificate. Pure.

Groups = tuple[tuple[int, ...], ...]
Facts = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class GangSession:
    """A bench and the plan's data of its cases, in the order of the bench: the groups of ranks that
    work in each case, and further known facts by name."""

    records: tuple[CaseRecord, ...]
    groups: tuple[Groups, ...]
    facts: tuple[Facts, ...]
    provenance: Provenance
    stack: Stack
    limits: Limits
    started_at: str
    ended_at: str
    disturbed: str = ""  # the warning of a session next to other programs


def gang_measurements(
    session: GangSession,
    seen: Sequence[CaseSeen],
    environment: Mapping[str, str] = os.environ,
) -> tuple[Measurement, ...]:
    """Return a measurement of each case that has records of at least one round."""
    rounds: dict[int, list[CaseSeen]] = {}
    for one in seen:
        rounds.setdefault(one.case, []).append(one)
    return tuple(_certificate(session, at, found, environment) for at, found in rounds.items())


def _certificate(
    session: GangSession, at: int, seen: Sequence[CaseSeen], environment: Mapping[str, str]
) -> Measurement:
    record = session.records[at]
    made = Measurement(
        record.case_id,
        record.case.kernel_type,
        Outcome.OK,
        "",
        session.provenance,
        started_at=session.started_at,
        ended_at=session.ended_at,
    )
    timed = [one for one in seen if not one.left_out]
    if not timed:
        reason = seen[0].left_out
        outcomes = {TOO_LARGE: Outcome.OOM, OTHER_TENSORS: Outcome.SUBSTITUTED}
        named = (outcome for begin, outcome in outcomes.items() if reason.startswith(begin))
        return replace(made, outcome=next(named, Outcome.PROFILER_LOST), reason=reason)
    groups = session.groups[at]
    calls_us = [us for one in timed for us in _calls_us(one, groups)]
    made = replace(made, n_expected=len(calls_us), n_observed=len(calls_us))
    limit_us = session.limits.case_s * 1e6
    if fault := next(filter(None, (no_duration(us, limit_us) for us in calls_us)), ""):
        return replace(made, outcome=Outcome.IMPLAUSIBLE, reason=fault)
    found = summarise(calls_us)
    least_us = lower_bound_us(record.case, session.stack)
    fault = implausible(found.timing.mean_us, lowest_us=least_us, limit_us=limit_us)
    refused = wrong_result(seen)
    # The row of a collective has the median, whatever the modes.
    if not (refused or session.disturbed or is_collective(record.case.kernel_type)):
        refused = no_single_duration(found.timing, len(found.accepted_us))
    outcome = Outcome.IMPLAUSIBLE if fault else Outcome.GATED if refused else Outcome.OK
    return replace(
        made,
        outcome=outcome,
        reason=fault or refused,
        identity=weakest_proof(one.identity for one in timed),
        n_accepted=len(found.accepted_us),
        timing=found.timing,
        counters=(
            *_counters(
                [group_timings(groups, one) for one in timed],
                [us for one in timed for us in _calls_us(one, groups, slowest=True)],
            ),
            *session.facts[at],
        ),
        warnings=(
            *timing_warnings(found.timing, len(found.accepted_us)),
            *([f"{len(timed)} of {ROUNDS} rounds"] if len(timed) < ROUNDS else []),
            *(f"set where it ran: {one}" for one in collective_settings(environment)),
            *([session.disturbed] if session.disturbed else []),
        ),
    )


def _calls_us(seen: CaseSeen, groups: Groups, *, slowest: bool = False) -> list[float]:
    """Return the duration of each call. If several groups run at once, it is the median over them,
    or that of the slowest group."""
    by_rank = {one.rank: one for one in seen.ranks}
    own = np.array([call_durations_us([by_rank[rank] for rank in ranks]) for ranks in groups])
    return [float(us) for us in (own.max(axis=0) if slowest else np.median(own, axis=0))]


_EXTREMES = ("max_us", "rank_min_us", "rank_max_us", "skew_us")


def _counters(
    rounds: Sequence[tuple[CollectiveTiming, ...]], slowest_us: Sequence[float]
) -> tuple[tuple[str, float], ...]:
    """Return the further values of a collective's row, by the columns of its file."""
    timing = over_all([group for groups in rounds for group in groups])
    medians_us = [median(group.duration_us for group in groups) for groups in rounds]
    return (
        ("rounds", float(len(rounds))),
        ("round_spread", relative_spread(medians_us)),
        *((name, getattr(timing, name)) for name in _EXTREMES),
        ("concurrent_groups", float(len(rounds[0]))),
        ("concurrent_slowest_us", median(slowest_us)),
    )


# The bench that the ranks of a gang are started with, for cases that can share a start.
#
# Collectives share the placement of ranks, mode and environment; calls of mixtures of experts share
# the family of their kernels, in addition to their ranks.

_SEED = 0  # of routings: the same in every session, so that a case always has the same routing


@dataclass(frozen=True, slots=True)
class GangBench:
    """A bench of cases in a fixed order, each with its groups of ranks and its known facts. `work`
    returns the work of its ranks for a patience and a tick."""

    plan: BenchPlan | MoePlan
    groups: tuple[Groups, ...]
    facts: tuple[Facts, ...]
    work: Callable[[float, Tick], GangWork]

    def run(self, start: StartRanks, folder: Path, patience_s: float, tick: Tick) -> None:
        """Let the ranks measure in an empty folder. Raises GangFailed and BadInput."""
        start(self.work(patience_s, tick), self.plan.world, folder)


def start_of(case: Case) -> tuple[object, ...]:
    """Return the properties that cases of one start share."""
    if not is_collective(case.kernel_type):
        return ("distributed" if case.kernel_type in DISTRIBUTE_KERNELS else "fused",)
    reported = collective_case_of(case)
    return (reported.grid, reported.mode, reported.environment)


def bench_of(
    cases: Sequence[Case], backend: str, ranks: int, measure: MeasureSettings
) -> GangBench:
    """Return the bench of cases that share a start."""
    budget_s, calls = measure.budget_s / ROUNDS, calls_a_round(measure)
    if is_collective(cases[0].kernel_type):
        reported = [collective_case_of(case) for case in cases]
        grid, mode = reported[0].grid, Mode(reported[0].mode)
        collectives = tuple(one.collective for one in reported)
        plan = BenchPlan(backend, grid, ranks, mode, ROUNDS, budget_s, calls, collectives)
        settings = dict(one.split("=", 1) for one in reported[0].environment.split())
        return GangBench(
            plan,
            tuple(map(plan.groups, collectives)),
            ((),) * len(collectives),
            lambda patience_s, tick: GangWork(plan, gang.RANK, patience_s, tick, settings),
        )
    routed = tuple(map(_routed, cases))
    experts = MoePlan(backend, ranks, ROUNDS, budget_s, routed, calls, modes_of(backend)[0])
    groups = ((tuple(range(ranks)),),) * len(cases)
    facts = tuple(_facts(case, experts.mode) for case in routed)
    return GangBench(experts, groups, facts, partial(moe_work, experts))


def _facts(case: MoeCase, mode: Mode) -> Facts:
    """Return how uneven the drawn loads are, of experts and of ranks, and whether the times come
    from a profiler's rows or from events, which include the launch."""
    drawn = case.routing()
    return (
        ("imbalance", drawn.imbalance),
        ("rank_imbalance", drawn.rank_imbalance(case.call.ep_size)),
        ("timed_by_kernels", float(mode is Mode.KERNEL)),
    )


def impossible(case: Case) -> str:
    """Return why no routing can satisfy a case; an empty text if one can."""
    if is_collective(case.kernel_type):
        return ""
    try:
        _routed(case).routing()
    except BadInput as error:
        return str(error)
    return ""


def _routed(case: Case) -> MoeCase:
    return MoeCase(routed_call(case), _SEED, imbalance_of(case))


def calls_a_round(measure: MeasureSettings) -> tuple[int, int]:
    """Return the smallest and the largest number of calls of a case in one round, so that all
    rounds together have the number of the plan's settings."""
    fewest = measure.repeat_count or measure.min_repeats
    return -(-fewest // ROUNDS), -(-measure.most_repeats // ROUNDS)


GANG = "gang"


@dataclass(frozen=True, slots=True)
class SealedRound:
    """The records of a case in one round, without the calls of its ranks, which are rows of the raw
    record. `case` is its index in `GangPass.cases`."""

    round: int
    case: int
    ranks: tuple[int, ...]
    left_out: str
    wrong: tuple[int, ...]
    identity: str


@dataclass(frozen=True, slots=True)
class GangPass:
    """A session of a gang, as it is sealed: the ids of its cases, in the order of its bench, and
    what is not in the rows of its raw record."""

    cases: tuple[str, ...]
    rounds: tuple[SealedRound, ...]
    began_at: str
    ended_at: str
    disturbed: str
    wall_s: float
    reason: str
    settings: tuple[str, ...]  # of the environment that the ranks had


_RAW_COLUMNS = ("case", "round", "rank", "call", "start_us", "duration_us")


class GangInstrument:
    """Instrument of cases of `ranks` ranks. It returns the measurements of a session however the
    session ended."""

    def __init__(
        self,
        settings: SessionSettings,
        ranks: int,
        scratch: Path,
        stop: threading.Event,
        on_progress: OnProgress,
        start: StartRanks = gang.start_here,
        *,
        keep: Keep | None = None,
    ):
        self._settings, self._ranks, self._scratch = settings, ranks, scratch
        self._stop, self._on_progress, self._start = stop, on_progress, start
        self._keep = keep

    def measure(self, cases: Sequence[ShardCase], provenance: Provenance) -> SessionResults:
        """Start the ranks once, for the cases that can share the start with the first one. Cases
        that no ranks can run are returned alone, without a start. Raises PeersAway if another node
        left before anything was measured."""
        if refused := self._refused(cases, provenance):
            return SessionResults(refused, (), NO_USAGE, began=True, reason="")
        start = start_of(cases[0].record.case)
        shared = [case for case in cases if start_of(case.record.case) == start]
        bench = self._bench([case.record for case in shared])
        folder = self._scratch / f"gang_{provenance.session}"
        folder.mkdir(parents=True)
        began_s, began_at = environment.monotonic(), environment.utc_now().isoformat()
        core_time = CoreTime.now()
        reason, peer_left = self._run(bench, shared, folder)
        wall_s = environment.monotonic() - began_s
        seen = read_rank_results(folder)
        if reason:  # as in any session, an incomplete case is measured again
            rounds = Counter(one.case for one in seen)
            seen = [one for one in seen if rounds[one.case] == ROUNDS]
        if peer_left and not seen:
            raise PeersAway(reason)
        is_cpu = self._settings.backend == "cpu"
        ran = GangPass(
            tuple(case.record.case_id for case in shared),
            tuple(map(_sealed_round, seen)),
            began_at,
            environment.utc_now().isoformat(),
            _disturbance(core_time, wall_s) if is_cpu else "",
            wall_s,
            reason,
            tuple(collective_settings(os.environ)),
        )
        raw = _raw_records(folder, seen, ran, provenance)
        if seen and self._keep is not None:
            self._keep(provenance.session, raw)
        records = [case.record for case in shared]
        measurements = gang_measurements(self._session(records, bench, ran, provenance), seen)
        return SessionResults(
            measurements,
            (raw,) if measurements or reason else (),
            _usage(seen, measurements, wall_s),
            began=bool(seen) or have_met(folder),
            reason=reason,
        )

    def reread(
        self,
        cases: Sequence[ShardCase],
        records: Mapping[str, SealedRecords],
        provenance: Provenance,
    ) -> SessionResults:
        """Return the results of an earlier session from its stored records."""
        sealed = records[""]
        ran = sealed.seal.decoded(GANG, GangPass, sealed.key)
        known = {case.record.case_id: case.record for case in cases}
        if foreign := set(ran.cases) - known.keys():
            raise BadInput(f"expected cases of the shard, got {min(foreign)}", path=sealed.key)
        seen = _seen(sealed.summary, ran, sealed.key)
        shared = [known[case_id] for case_id in ran.cases]
        session = self._session(shared, self._bench(shared), ran, provenance)
        with foreign_records(sealed.key):
            measurements = gang_measurements(session, seen, _variables(ran.settings, sealed.key))
        usage = _usage(seen, measurements, ran.wall_s)
        return SessionResults(measurements, (), usage, began=True, reason=ran.reason)

    def _bench(self, records: Sequence[CaseRecord]) -> GangBench:
        settings, cases = self._settings, [record.case for record in records]
        return bench_of(cases, settings.backend, self._ranks, settings.measure)

    def _session(
        self,
        records: Sequence[CaseRecord],
        bench: GangBench,
        ran: GangPass,
        provenance: Provenance,
    ) -> GangSession:
        return GangSession(
            tuple(records),
            bench.groups,
            bench.facts,
            provenance,
            self._settings.stack,
            self._settings.limits,
            ran.began_at,
            ran.ended_at,
            ran.disturbed,
        )

    def _refused(
        self, cases: Sequence[ShardCase], provenance: Provenance
    ) -> tuple[Measurement, ...]:
        reported = ((case.record, impossible(case.record.case)) for case in cases)
        cache, without_raw = self._settings.measure.cache, replace(provenance, raw_key=None)
        return tuple(
            Unmeasured(record, Outcome.REJECTED, reason).certificate(without_raw, cache)
            for record, reason in reported
            if reason
        )

    def _run(self, bench: GangBench, cases: Sequence[ShardCase], folder: Path) -> tuple[str, bool]:
        """Return why the ranks ended early, empty if they did not, and whether another node had
        left."""

        def tick(measured: int) -> None:
            if self._stop.is_set():
                raise GangFailed("the gang received a request to stop")
            done = max(0, measured - (ROUNDS - 1) * len(cases))
            in_flight = cases[measured % len(cases)].record.case
            self._on_progress(min(done, len(cases)), in_flight.describe())

        longest_s = max(case.predicted_s for case in cases)
        try:
            bench.run(self._start, folder, case_limit_s(longest_s, self._settings.limits), tick)
        except (GangFailed, BadInput) as error:
            return str(error), isinstance(error, PeerLeft)
        return "", False


def _disturbance(before: CoreTime | None, wall_s: float) -> str:
    after = CoreTime.now()
    if before is None or after is None or wall_s <= 0:
        return ""
    return gang_disturbance(before.others_share(after, wall_s))


def _usage(seen: Sequence[CaseSeen], measured: Sequence[Measurement], wall_s: float) -> Usage:
    """Return the ranks' time in calls, the longest of the ranks for each case. The time to start
    the ranks is not reported separately."""
    spent_us = [[sum(rank.durations_us) for rank in one.ranks] for one in seen]
    busy_us = sum(max(ranks, default=0.0) for ranks in spent_us)
    useful_us = sum(m.timing.mean_us * m.n_accepted for m in measured if m.timing is not None)
    return Usage(busy_us, min(useful_us, busy_us), wall_s, 0.0)


def _variables(settings: Sequence[str], key: str) -> Mapping[str, str]:
    """Return the variables that `collective_settings` wrote. Raises BadInput for other texts."""
    pairs = [one.partition("=") for one in settings]
    if not all(equals for _, equals, _ in pairs):
        raise BadInput(f"settings: expected NAME=value, got {settings}", path=key)
    return {name: value for name, _, value in pairs}


def _sealed_round(seen: CaseSeen) -> SealedRound:
    ranks = tuple(rank.rank for rank in seen.ranks)
    return SealedRound(seen.round, seen.case, ranks, seen.left_out, seen.wrong, seen.identity)


def _seen(rows: bytes, ran: GangPass, key: str) -> list[CaseSeen]:
    """Return the records of the ranks from the rows of a raw record. Raises BadInput for rows that
    are not those of the sealed rounds."""
    calls: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for line, row in table_rows(rows, _RAW_COLUMNS, path=key):
        case_id, number, of_rank, _, *times = row
        try:
            start_us, duration_us = map(float, times)
        except ValueError as error:
            raise BadInput(f"expected two times, got {times}", path=key, line=line) from error
        calls.setdefault((case_id, number, of_rank), []).append((start_us, duration_us))
    found = []
    for one in ran.rounds:
        if not 0 <= one.case < len(ran.cases):
            raise BadInput(f"rounds: expected a case of the session, got {one.case}", path=key)
        ranks = []
        for rank in one.ranks:
            timed = calls.get((ran.cases[one.case], str(one.round), str(rank)), [])
            starts_us, durations_us = (tuple(us) for us in zip(*timed, strict=True) or ((), ()))
            ranks.append(RankTimes(rank, starts_us, durations_us))
        known = (one.left_out, one.wrong)
        found.append(CaseSeen(one.round, one.case, tuple(ranks), *known, identity=one.identity))
    return found


def _raw_records(
    folder: Path, seen: Sequence[CaseSeen], ran: GangPass, provenance: Provenance
) -> RawRecords:
    """Return the records of the ranks as a table with a row for each call, and a journal of the
    output of the ranks and of torchrun, with the stacks of ranks that hung, and with a seal."""
    summary, journal = folder / "op_summary.csv", folder / "journal.jsonl"
    with summary.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(_RAW_COLUMNS)
        for one in seen:
            case_id = ran.cases[one.case]
            for rank in one.ranks:
                calls = zip(rank.starts_us, rank.durations_us, strict=True)
                for at, (start_us, duration_us) in enumerate(calls):
                    rows.writerow([case_id, one.round, rank.rank, at, start_us, duration_us])
    with journal.open("w") as out:
        reported = [*folder.glob("rank-*.jsonl"), *folder.glob("torchrun.log")]
        for path in sorted(reported):
            for line in path.read_text(errors="replace").splitlines():
                print(json.dumps({"file": path.name, "line": line}), file=out)
        for name, stack in gang.stacks_kept(folder):
            for line in stack.splitlines():
                print(json.dumps({"file": name, "line": line}), file=out)
    if not seen:  # nothing to read later
        return RawRecords(summary, journal)
    return RawRecords(summary, seal(summary, journal, GANG, provenance, ran))
