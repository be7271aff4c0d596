"""The instrument of a gang: its session is a bench of several ranks on this machine.

What the ranks saw of every call is the raw record; the certificate of a case is made of it. Cases
that cannot share a start of the ranks are another session's.
"""

import csv
import json
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from collector import surroundings
from collector.comm.gang import GangFailed, PeerLeft, StartRanks, start_here
from collector.comm.hang import stacks_kept
from collector.comm.rank_files import CaseSeen, have_met, read_results
from collector.errors import BadInput, PeersAway
from collector.gang_case import ROUNDS
from collector.manifest import NO_USAGE, Usage
from collector.measurement import Measurement, Outcome, Provenance
from collector.measuring.answers import RawRecords, SessionAnswers, Unmeasured
from collector.measuring.instrument import OnProgress, SessionSettings, case_limit_s
from collector.shard import ShardCase
from collector.worker.gang_bench import GangBench, bench_of, impossible, start_of
from collector.worker.gang_certificates import GangSession, certificates

_RAW_COLUMNS = ("case", "round", "rank", "call", "start_us", "duration_us")


class GangInstrument:
    """Measures cases of `ranks` ranks; whatever ended a session, what was measured is answered."""

    def __init__(
        self,
        settings: SessionSettings,
        ranks: int,
        scratch: Path,
        stop: threading.Event,
        on_progress: OnProgress,
        start: StartRanks = start_here,
    ):
        self._settings, self._ranks, self._scratch = settings, ranks, scratch
        self._stop, self._on_progress, self._start = stop, on_progress, start

    def measure(self, cases: Sequence[ShardCase], provenance: Provenance) -> SessionAnswers:
        """One start of the ranks, for the cases that can share it with the first one. Those that no
        ranks could run are answered alone, without a start. Raises PeersAway where another node
        left before anything was measured."""
        if refused := self._refused(cases, provenance):
            return SessionAnswers(refused, (), NO_USAGE, began=True, reason="")
        start = start_of(cases[0].record.case)
        shared = [case for case in cases if start_of(case.record.case) == start]
        settings = self._settings
        bench = bench_of(
            [case.record.case for case in shared], settings.backend, self._ranks, settings.measure
        )
        folder = self._scratch / f"gang_{provenance.session}"
        folder.mkdir(parents=True)
        began_s, began_at = surroundings.monotonic(), surroundings.utc_now().isoformat()
        reason, peer_left = self._run(bench, shared, folder)
        seen = read_results(folder)
        if reason:  # as with any session: what is not whole is measured again
            rounds = Counter(one.case for one in seen)
            seen = [one for one in seen if rounds[one.case] == ROUNDS]
        session = GangSession(
            tuple(case.record for case in shared),
            bench.groups,
            bench.facts,
            ROUNDS,
            provenance,
            settings.stack,
            settings.limits,
            began_at,
            surroundings.utc_now().isoformat(),
        )
        measurements = certificates(session, seen)
        if peer_left and not measurements:
            raise PeersAway(reason)
        return SessionAnswers(
            measurements,
            (_raw_records(folder, seen, session),) if measurements or reason else (),
            _usage(seen, measurements, surroundings.monotonic() - began_s),
            began=bool(seen) or have_met(folder),
            reason=reason,
        )

    def _refused(
        self, cases: Sequence[ShardCase], provenance: Provenance
    ) -> tuple[Measurement, ...]:
        told = ((case.record, impossible(case.record.case)) for case in cases)
        cache, without_raw = self._settings.measure.cache, replace(provenance, raw_key=None)
        return tuple(
            Unmeasured(record, Outcome.REJECTED, reason).certificate(without_raw, cache)
            for record, reason in told
            if reason
        )

    def _run(self, bench: GangBench, cases: Sequence[ShardCase], folder: Path) -> tuple[str, bool]:
        """Why the ranks ended before their time, empty where they did not; and whether another node
        had left."""

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


def _usage(seen: Sequence[CaseSeen], measured: Sequence[Measurement], wall_s: float) -> Usage:
    """The ranks' time in calls, by the longest of each; what it takes to start them is not told
    apart."""
    spent_us = [[sum(rank.durations_us) for rank in one.ranks] for one in seen]
    busy_us = sum(max(ranks, default=0.0) for ranks in spent_us)
    useful_us = sum(m.timing.mean_us * m.n_accepted for m in measured if m.timing is not None)
    return Usage(busy_us, min(useful_us, busy_us), wall_s, 0.0)


def _raw_records(folder: Path, seen: Sequence[CaseSeen], session: GangSession) -> RawRecords:
    """What the ranks saw as a table, a row a call; and what they and torchrun said, with
    the stacks of ranks that hung."""
    summary, journal = folder / "op_summary.csv", folder / "journal.jsonl"
    with summary.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(_RAW_COLUMNS)
        for one in seen:
            case_id = session.records[one.case].case_id
            for rank in one.ranks:
                calls = zip(rank.starts_us, rank.durations_us, strict=True)
                for at, (start_us, duration_us) in enumerate(calls):
                    rows.writerow([case_id, one.round, rank.rank, at, start_us, duration_us])
    with journal.open("w") as out:
        said = [*folder.glob("rank-*.jsonl"), *folder.glob("torchrun.log")]
        for path in sorted(said):
            for line in path.read_text(errors="replace").splitlines():
                print(json.dumps({"file": path.name, "line": line}), file=out)
        for name, stack in stacks_kept(folder):
            for line in stack.splitlines():
                print(json.dumps({"file": name, "line": line}), file=out)
    return RawRecords(summary, journal)
