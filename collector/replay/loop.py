"""Loop of a session over its cases. It is the first module that imports torch: the session
imports it when the process is safe."""

import importlib
import logging
import re
import threading
import time
from dataclasses import asdict
from pathlib import Path

import torch

from collector.codec.errors import CaseRejected
from collector.host.rate_limit import RateLimited
from collector.model.measurement import CONTEXT, Outcome
from collector.replay.calls import NoOperator
from collector.replay.cases import CaseReplay
from collector.replay.certificates import measure_of
from collector.replay.journal import CHECKING, LAUNCHING, MEASURED, JournalWriter, time_now
from collector.replay.memory_limits import NotEnoughMemory
from collector.replay.recording import Marks, open_recorded_device, sacrifice
from collector.replay.spec import SessionCase, SessionSpec

logger = logging.getLogger(__name__)

_ANSWER_S = 30.0  # two queries of npu-smi of at most 10 s each

# Allocators that raise a plain RuntimeError: torch's on a CPU, and torch_npu's for workspaces and
# in releases that lack torch's own class.
_NO_MEMORY = re.compile(r"can't allocate memory|\bout of memory\b", re.IGNORECASE)


class Loop:
    """All cases of one session. `run` may be called once."""

    def __init__(
        self,
        spec: SessionSpec,
        directory: Path,
        journal: JournalWriter,
        answered: threading.Event | None = None,
    ):
        """`answered` is set when a query to the supervisor has its answer in the journal."""
        self._spec = spec
        self._answered = answered
        self._journal = journal
        self._queries = RateLimited(self._query)
        self._device, self._recorder = open_recorded_device(spec, directory, journal)
        cold = spec.measure.cache == "cold"
        self._find = importlib.import_module(spec.catalog).find_operator
        self._replay = CaseReplay(
            self._device,
            Marks(self._device, len(spec.cases), cold=cold),
            spec.limits.memory_gb,
            self._find,
        )

    def run(self, import_s: float, stop: threading.Event) -> None:
        """Replay every case, or those before `stop` was set; then close the recorder."""
        self._open(import_s)
        for ordinal, case in enumerate(self._spec.cases):
            if stop.is_set():
                break
            op = self._find(case.record.kernel_type)
            self._recorder.before_case(is_pass=op is not None and op.is_pass)
            self._case(ordinal, case)
            self._recorder.after_case()
        self._recorder.close()
        self._device.synchronize()
        self._journal.write("finish")

    def _open(self, import_s: float) -> None:
        profiler_start_s = self._recorder.start()
        started = time.perf_counter()
        sacrifice(self._device)
        self._journal.write(
            "ready",
            import_s=import_s,
            profiler_start_s=profiler_start_s,
            sacrifice_s=time.perf_counter() - started,
            runtime=self._device.runtime,
        )
        self._read_condition()

    def _case(self, ordinal: int, case: SessionCase) -> None:
        record, journal = case.record, self._journal
        journal.write("begin", ordinal=ordinal, case=record.case_id, time=time_now())
        is_in_context = self._spec.measure.cache == CONTEXT
        seed = int(record.case_id[:12], 16) ^ self._spec.seed
        try:
            with torch.no_grad():
                replayed = self._replay.replay(
                    ordinal,
                    record.case,
                    seed,
                    measure_of(case, self._spec.measure),
                    # Alone, as a canary does in every session, or behind its context.
                    record.before if is_in_context and not case.place else None,
                    lambda phase: self._phase(ordinal, phase),
                )
        except Exception as error:  # any exception of an operator is the outcome of its case
            outcome, reason = judge_error(error)
        else:
            self._recorder.measured(ordinal, record, replayed.before)
            facts = {"outcome": MEASURED, **replayed.facts}
            journal.write("end", ordinal=ordinal, **facts, time=time_now())
            return
        # An error that a GPU does not recover from is raised here, and ends the session.
        self._device.synchronize()
        logger.info("%s: %s: %s", record.case.describe(), outcome, reason)
        journal.write("end", ordinal=ordinal, outcome=outcome.value, reason=reason, time=time_now())

    def _phase(self, ordinal: int, phase: str) -> None:
        """Record the next phase of a case. The condition of the device is read before and after
        the launches, never between them."""
        if phase == LAUNCHING:
            self._read_condition()
        self._journal.write("phase", ordinal=ordinal, phase=phase)
        if phase == CHECKING:
            self._read_condition()

    def _read_condition(self) -> None:
        if self._spec.backend == "npu":
            self._queries.read()
        elif (condition := self._device.condition()) is not None:
            self._journal.write("condition", **asdict(condition))

    def _query(self) -> None:
        """Have the supervisor write the condition of an NPU. npu-smi is a process, and CANN's
        documents warn of fork and posix_spawn next to AscendCL ("may fail or hang", CANN 8.5,
        aclcppdevg_000238)."""
        if self._answered is not None:
            self._answered.clear()
            self._journal.write("query")
            self._answered.wait(_ANSWER_S)


def judge_error(error: Exception) -> tuple[Outcome, str]:
    """Return the outcome of an exception, and its reason in one line."""
    reason = " ".join(str(error).split())[:500] or type(error).__name__
    if isinstance(error, NoOperator):
        return Outcome.UNSUPPORTED, reason
    if isinstance(error, CaseRejected):
        return Outcome.REJECTED, reason
    of_memory = isinstance(error, NotEnoughMemory | MemoryError | torch.OutOfMemoryError)
    if of_memory or _NO_MEMORY.search(reason):
        return Outcome.OOM, reason
    return Outcome.FAILED, f"{type(error).__name__}: {reason}"
