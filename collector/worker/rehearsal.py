"""The rehearsal before an attempt's first session: everything that storing its results needs, with
the records of a session that did not run.

It runs the product's own code, from the records of a profiler to a committed part, on a store in
memory. What fails there would fail after each session, with the device time spent.
"""

import logging
import threading
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from collector.codec.errors import OpmeterError
from collector.host.faults import describe_fault
from collector.measuring.batches import RawRecords
from collector.measuring.instrument import (
    REPLAY,
    ReplayedPass,
    ReplayInstrument,
    SessionSettings,
)
from collector.model.measurement import Provenance
from collector.model.plan import Plan, ShardCase
from collector.model.vocabulary import INPUT_SHAPES
from collector.ops.references import canary_records
from collector.quality.reconcile import SENTINEL_TYPE, Mark, Sentinel
from collector.replay.journal import JOURNAL, MEASURED, JournalWriter
from collector.replay.msprof import SummaryRow, write_summary
from collector.replay.results import SUMMARY, gather
from collector.replay.seal import seal
from collector.replay.spec import SessionCase, SessionSpec, spec_texts
from collector.replay.supervisor import Ending, SessionReport
from collector.store.in_memory import MemoryStore
from collector.worker.answers import ShardResults
from collector.worker.attempt import Attempt
from collector.worker.blame import WrongImage

logger = logging.getLogger(__name__)

_REPEATS = 8
_REPEAT_NS = 1_000_000
_LIMIT_S = 60.0


def rehearse(attempt: Attempt, scratch: Path) -> None:
    """Read, attribute, store and commit a made-up session, without the device and without the
    store.

    Raises WrongImage, in one line with its fix, if the software cannot do that. An OSError, for
    example of a full disk, is passed on."""
    try:
        _store_made_up_session(attempt, scratch)
    except OSError:
        raise
    except Exception as error:  # whatever it is, it would end every session of this image
        fault = str(error) if isinstance(error, OpmeterError) else describe_fault(error)
        raise WrongImage(
            f"nothing was measured, because results cannot be stored here: {fault}"
        ) from error


def _store_made_up_session(attempt: Attempt, scratch: Path) -> None:
    store, case = MemoryStore(), ShardCase(canary_records("cpu")[0], 1.0)
    within = replace(attempt, store=store, log=None, unsent=None)

    def results_of(name: str) -> ShardResults:
        return ShardResults(replace(within, attempt=name), [case])

    with TemporaryDirectory(prefix="rehearsal-", dir=scratch) as folder:
        measured = results_of("measured")
        provenance = measured.next_session([case])
        measured.keep(provenance.session, _made_up(attempt.plan, case, provenance, Path(folder)))
        plan = attempt.plan
        settings = SessionSettings("cpu", plan.stack, plan.measure, plan.limits)
        instrument = ReplayInstrument(
            settings, Path(folder), threading.Event(), lambda ended, case: None
        )
        stored = results_of("stored")
        stored.load()
        stored.reread(instrument)
        stored.commit()
        committed = results_of("committed")
        committed.load()
    if committed.without_result() or not committed.is_closed():
        raise WrongImage("the result of a made-up session was not read as it was stored")


def _made_up(plan: Plan, case: ShardCase, provenance: Provenance, folder: Path) -> RawRecords:
    """Write the records of a session that measured one case."""
    spec = SessionSpec(
        "cpu",
        0,
        (SessionCase(case.record, case.predicted_s, _LIMIT_S),),
        plan.measure,
        plan.limits,
        stack=plan.stack,
    )
    opened, closed = (Sentinel(mark, 0).shape for mark in (Mark.OPEN, Mark.CLOSE))
    own = (case.record.kernel_type, case.record.cells)
    launched = [
        (SENTINEL_TYPE, {INPUT_SHAPES: ",".join(map(str, opened))}),
        *([own] * _REPEATS),
        (SENTINEL_TYPE, {INPUT_SHAPES: ",".join(map(str, closed))}),
    ]
    rows = [
        SummaryRow(kernel, kernel, cells, (1 + at) * 2 * _REPEAT_NS, _REPEAT_NS + at)
        for at, (kernel, cells) in enumerate(launched)
    ]
    piece = folder / "slice-000.op_summary.csv"
    sha256 = write_summary(rows, piece)
    journal = JournalWriter(folder / JOURNAL)
    journal.write("ready", runtime=plan.stack.runtime)
    journal.write("begin", ordinal=0, case=case.record.case_id, time="")
    journal.write("end", ordinal=0, outcome=MEASURED, repeats=_REPEATS, time="")
    journal.write("window", slice=piece.name, sha256=sha256, ordinals=[0])
    journal.write("finish")
    journal.close()
    gather(spec, folder)
    session = ReplayedPass(*spec_texts(spec), SessionReport(Ending.COMPLETE, "", None, 1.0, ""))
    return RawRecords(
        folder / SUMMARY,
        seal(folder / SUMMARY, folder / JOURNAL, REPLAY, provenance, session),
    )
