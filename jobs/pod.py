"""`opmeter work`: what runs in a worker pod. Index to shards by the wave, shards to the workers of
this node's devices, and an exit code by what is committed in the end.

Every device of the pod has a worker. How many of them measure at once the site says
(OPMETER_MEASURE_CONCURRENCY): they wait for each other, session by session, and on A3 never have
two dies of one chip measure together while fewer may than there are dies.
"""

import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from collector import keys
from collector.errors import BadInput, NotFound, OpmeterError, StoreError
from collector.host.fault import HostFault
from collector.host.npus import npus, one_a_chip_first
from collector.plan import Plan
from collector.store import open_store
from collector.store.base import Store
from collector.store.patient import PatientStore
from collector.store.single_writer import SingleWriterStore
from collector.worker.exit_codes import ExitCode
from jobs.local import LocalRun, LocalRunFailed, Progress
from jobs.podtask import PodTask, task_of
from jobs.rounds import read_plan
from jobs.waves import Wave, wave_from_json

logger = logging.getLogger(__name__)

_TERMINATION_LOG = Path("/dev/termination-log")
_PATIENCE_S = 600.0
_PROGRESS_S = 30.0  # a thousand pods write to one store
_LONGEST_REASON = 1000

Measure = Callable[[LocalRun, Sequence[str]], None]


@dataclass(frozen=True, slots=True)
class End:
    """How a pod ends: its exit code, why, and the shard that it is about."""

    code: int
    reason: str = ""
    shard: str = ""


def work_in_pod() -> int:
    """Everything, from the environment to the exit code."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        task = task_of(os.environ)
        for folder in (task.scratch, Path(os.environ.get("HOME") or task.scratch)):
            folder.mkdir(parents=True, exist_ok=True)
    except OpmeterError as error:
        return last_words(End(ExitCode.IMAGE, str(error)))
    except OSError as error:
        return last_words(End(ExitCode.SPACE, str(error)))
    end = work(task, stop)
    if end.code in (ExitCode.NODE, ExitCode.HANG):
        # A broken node that lets go at once would be given the whole queue. (Whoever met the
        # deadline has kept its place long enough: `stop` is set then.)
        stop.wait(task.hold_s)
    return last_words(end)


def work(task: PodTask, stop: threading.Event, measure: Measure = LocalRun.measure) -> End:
    """Have the shards of this index committed, and tell how far that came. What is committed
    counts, by whomever: not what a worker says of itself.

    At the task's deadline `stop` is set. That is no stop that is nobody's fault: who is told to
    stop is started again, and an index without progress would go on for ever.
    """
    with _deadline(task.deadline_s, stop) as late:
        return _work(task, stop, late, measure)


def _work(task: PodTask, stop: threading.Event, late: threading.Event, measure: Measure) -> End:
    try:
        store: Store = open_store(task.root)
        if task.single_writer:
            store = SingleWriterStore(store)
        patient = PatientStore(store, _PATIENCE_S, wait_for_refusals=True, stop=stop)
        wave = _read_wave(patient, task)
        failure = None
        if shards := _uncommitted(patient, task, wave):
            failure = _failure(lambda: _measure(patient, store, task, wave, shards, stop, measure))
        left = _uncommitted(patient, task, wave) if shards else []
    except (BadInput, NotFound) as error:
        return End(ExitCode.IMAGE, str(error))
    except StoreError as error:
        told = stop.is_set() and not late.is_set()
        return End(ExitCode.TEMPORARY if told else ExitCode.STORE, str(error))
    except (OpmeterError, OSError) as error:
        return End(ExitCode.NODE, str(error))
    if not left:
        return End(ExitCode.DONE)
    if late.is_set():
        reason = f"its deadline, {task.deadline_s:g} s, is past; {len(left)} shards are left"
        return End(ExitCode.HANG, reason, left[0])
    if stop.is_set():
        return End(ExitCode.TEMPORARY, f"stopped; {len(left)} shards are left")
    if failure is None:
        return End(ExitCode.TEMPORARY, f"{len(left)} shards are left")
    return End(_code_of(failure.code), str(failure), failure.shard)


@contextmanager
def _deadline(after_s: float | None, stop: threading.Event) -> Iterator[threading.Event]:
    """Sets `stop` when so many seconds are over, and the event that it gives, which tells that
    from being told to stop."""
    late = threading.Event()

    def ring() -> None:
        if not stop.is_set():
            late.set()
            stop.set()

    timer = threading.Timer(after_s or 0.0, ring)
    timer.daemon = True
    if after_s is not None:
        timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def _failure(measure: Callable[[], None]) -> LocalRunFailed | None:
    try:
        measure()
    except LocalRunFailed as error:
        return error
    return None


def _read_wave(store: Store, task: PodTask) -> Wave:
    key = keys.wave(task.campaign, task.wave)
    wave = wave_from_json(store.get(key), key=key)
    if wave.plan_hash != task.plan_hash:
        raise BadInput(f"{key} is of plan {wave.plan_hash}, and this pod is for {task.plan_hash}")
    if not 0 <= task.index < len(wave.indexes):
        raise BadInput(f"{key} has {len(wave.indexes)} indexes, and this pod is for {task.index}")
    return wave


def _uncommitted(store: Store, task: PodTask, wave: Wave) -> list[str]:
    """This index's shards that nobody has committed."""
    return [s for s in wave.indexes[task.index] if not _exists(store, task.campaign, s)]


def _exists(store: Store, campaign: str, shard: str) -> bool:
    try:
        store.get(keys.committed(campaign, shard))
    except NotFound:
        return False
    return True


def _measure(
    patient: Store,
    store: Store,
    task: PodTask,
    wave: Wave,
    shards: Sequence[str],
    stop: threading.Event,
    measure: Measure,
) -> None:
    plan = _read_plan(patient, task, wave)
    run = LocalRun(
        store=patient,
        watched=store,
        plan=plan,
        scratch=task.scratch,
        devices=_devices(plan.backend, task.devices),
        stop=stop,
        on_progress=_log_progress,
        on_finished=lambda shard: logger.info("shard %s is committed", shard),
        single_writer=task.single_writer,
        gives_up=task.gives_up,
        tries_all=True,
        prefix=f"{task.pod}-{task.index}-",
        progress_s=_PROGRESS_S,
    )
    measure(run, shards)


def _devices(backend: str, count: int) -> list[int]:
    """The pod's devices in the order in which they get shards: where there are fewer shards than
    dies, no chip shall have two while another has none."""
    order: list[int] = []
    if backend == "npu" and count > 1:
        # A driver that does not answer: the workers say so, each for its device.
        with suppress(HostFault):
            order = [index for index in one_a_chip_first(npus()) if index < count]
    return [*order, *(index for index in range(count) if index not in order)]


def _read_plan(store: Store, task: PodTask, wave: Wave) -> Plan:
    plan = read_plan(store, task.campaign, wave.plan)
    if (found := plan.plan_hash) != task.plan_hash:
        raise BadInput(f"plan {wave.plan} is {found}, {task.plan_hash} is wanted")
    return plan


def _log_progress(progress: Progress) -> None:
    logger.debug("shard %s: %d of %d", progress.shard, progress.done, progress.cases)


def _code_of(code: int) -> int:
    """What a worker's end means for the pod: one that was killed may have run out of memory."""
    if code == -signal.SIGKILL:
        return ExitCode.SPACE
    known = code in set(ExitCode)
    return code if known else ExitCode.NODE


def last_words(end: End, log: Path = _TERMINATION_LOG) -> int:
    """Leave one line where `kubectl describe` shows it, and give the exit code."""
    if end.reason:
        logger.error("%s", end.reason)
    said = {"code": int(end.code), "reason": end.reason[:_LONGEST_REASON]}
    line = json.dumps(said | ({"shard": end.shard} if end.shard else {}))
    try:
        if log.exists():
            log.write_text(line + "\n")
    except OSError as error:
        logger.info("no last words: %s", error)
    return int(end.code)
