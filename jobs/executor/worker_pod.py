"""`opmeter work`: a worker pod commits the shards of its index; its exit code reports the result.

It reads the wave, assigns the uncommitted shards to the workers of its devices, one each, and then
reads the commits again: the commits count, not the reports of workers. The site sets how many of
the workers measure concurrently (OPMETER_MEASURE_CONCURRENCY); they take turns, session by session.
On an A3 two dies of one chip measure concurrently only if all dies may.
"""

import json
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from collector import environment
from collector.codec.errors import BadInput, HostFault, NotFound, OpmeterError
from collector.codec.text import counted
from collector.comm.gang import GangFailed, PeerLeft
from collector.comm.meeting import GATHER_S, MeetingAddress, Unreached, address_from_json, follow
from collector.comm.rank_files import have_met
from collector.database.plans import assigned_plan
from collector.host.machine import this_node
from collector.host.network import interface_address
from collector.host.npus import list_npus, one_a_chip_first
from collector.model import keys
from collector.model.plan import Plan
from collector.store import open_store
from collector.store.base import Store
from collector.store.waiting import PatientStore, SingleWriterStore
from collector.worker.assignment import check_stack
from collector.worker.attempt import is_committed
from collector.worker.blame import exit_code, seen_by_all
from collector.worker.exit_codes import ExitCode
from collector.worker.machine import ThisMachine
from jobs.executor.local_run import FirstPod, LocalRun, LocalRunFailed
from jobs.objects.waves import Wave, wave_from_json

# Every pod of a gang except the first: it runs its ranks for the leading pod until everything is
# committed.
#
# The first pod has the shard: it measures, uploads and commits like any worker, and writes its
# address to the store for the others. They hold only their ranks: a pod that is lost, killed or
# evicted is created again by its Job, and the gang meets again.

logger = logging.getLogger(__name__)

_POLL_S = 3.0  # between two reads of the leading pod's address

Follow = Callable[[MeetingAddress, int, str, Path, Callable[[int], None]], None]


def follow_gang(
    store: Store,
    wave: Wave,
    index: int,
    scratch: Path,
    stop: threading.Event,
    uncommitted: Callable[[], Sequence[str]],
    follow: Follow = follow,
) -> None:
    """Run the ranks of one pod, meeting after meeting.

    End when nothing is `uncommitted` or `stop` is set.

    Raises:
        LocalRunFailed: with exit 44 if the ranks of this node do not start at all (another node may
            succeed); with exit 47 if the leading pod was unreachable for as long as nodes wait for
            each other. Errors of the store are passed on."""
    over: str = ""  # the token of the last completed meeting
    unreached_s: float | None = None  # since when the leading pod has not responded

    def tick(measured: int) -> None:
        if stop.is_set():
            raise PeerLeft("the pod received a request to stop")

    while not stop.is_set() and (left := uncommitted()):
        address = _last_address(store, wave)
        if address is None or address.token == over:
            environment.wait(stop, _POLL_S)
            continue
        folder = scratch / f"gang-{environment.token(12)}"
        folder.mkdir(parents=True)
        try:
            follow(address, index, this_node(), folder, tick)
            over, unreached_s = address.token, None
        except PeerLeft as error:
            logger.info("%s", error)
            now_s = environment.monotonic()
            unreached_s = (unreached_s or now_s) if isinstance(error, Unreached) else None
            if unreached_s is not None and now_s - unreached_s > GATHER_S:
                reason = f"from {this_node()}, for {GATHER_S:g} s: {error}"
                raise LocalRunFailed(reason, ExitCode.PEERS, left[0]) from error
            environment.wait(stop, _POLL_S)
        except (GangFailed, BadInput) as error:
            over, unreached_s = address.token, None
            logger.warning("%s", error)
            if not stop.is_set() and not have_met(folder):
                raise LocalRunFailed(str(error), ExitCode.NODE, left[0]) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _last_address(store: Store, wave: Wave) -> MeetingAddress | None:
    """Return the last address that the first pod wrote; None if there is none yet."""
    key = keys.meeting(wave.campaign, wave.wave_hash)
    try:
        return address_from_json(store.get(key), key=key)
    except NotFound:
        return None
    except BadInput as error:
        logger.warning("%s", error)
        return None


# The task of a worker pod, in the environment variables that its Job sets.

# A broken node fails a shard in seconds. With this pause between two failures it affects a few
# shards until it is quarantined, not the whole queue.
_HOLD_S = 120.0


@dataclass(frozen=True, slots=True)
class PodTask:
    root: str  # the URL of the store
    campaign: str
    wave: str  # its hash
    plan_hash: str
    index: int
    devices: int  # the number of devices of this pod: each gets a worker
    single_writer: bool
    gives_up: bool  # this pod commits a shard that repeatedly kills its workers
    pod: str  # the first characters of its uid
    address: str  # of a pod of a gang, if no interface is named; empty without a gang
    scratch: Path
    hold_s: float  # how long a broken node is kept from taking another shard
    deadline_s: float | None  # time by the local clock until the pod ends; None: no limit
    operators: tuple[str, ...] = ()  # hashes of the files of operators that sessions may execute


def task_of(environment: Mapping[str, str]) -> PodTask:
    """Return the task in a pod's environment.

    Raises:
        BadInput: a variable is missing; with its name."""

    def required(name: str) -> str:
        text = environment.get(name, "")
        if not text:
            raise BadInput(f"{name} is not set: `opmeter work` runs in a pod that a wave started")
        return text

    def number(name: str, text: str) -> int:
        if not text.isdigit():
            raise BadInput(f"{name}: expected a whole number, got {text!r}")
        return int(text)

    def counted(name: str) -> int:
        return max(1, number(name, environment.get(name) or "1"))

    return PodTask(
        root=required("OPMETER_ROOT"),
        campaign=required("OPMETER_CAMPAIGN"),
        wave=required("OPMETER_WAVE"),
        plan_hash=required("OPMETER_PLAN_HASH"),
        index=number("JOB_COMPLETION_INDEX", required("JOB_COMPLETION_INDEX")),
        devices=counted("OPMETER_DEVICES"),
        single_writer=bool(environment.get("OPMETER_SINGLE_WRITER")),
        gives_up=bool(environment.get("OPMETER_GIVES_UP")),
        pod=(environment.get("POD_UID") or "local")[:8],
        address=environment.get("POD_IP", ""),
        scratch=Path(environment.get("TMPDIR") or "/tmp"),
        hold_s=float(
            number("OPMETER_HOLD_S", environment.get("OPMETER_HOLD_S") or f"{_HOLD_S:.0f}")
        ),
        deadline_s=float(number("OPMETER_DEADLINE_S", environment.get("OPMETER_DEADLINE_S") or "0"))
        or None,
        operators=tuple(filter(None, environment.get("OPMETER_OPERATORS", "").split(","))),
    )


# The end of a worker pod: an exit code for the cause, and one line with the reason.

_TERMINATION_LOG = Path("/dev/termination-log")
# Kubernetes keeps 4096 bytes of a termination message; users read less.
_LONGEST_REASON_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class End:
    """The end of a pod."""

    code: int  # an ExitCode: the cause
    reason: str = ""  # one sentence for the user; empty if everything is committed
    shard: str = ""  # the failed shard


def code_of_worker(code: int) -> int:
    """Return the pod's exit code for a worker's exit code.

    A killed worker may have run out of memory (48); any other end without a report has no known
    cause (1)."""
    if code == -signal.SIGKILL:
        return ExitCode.SPACE
    known = code in set(ExitCode)
    return code if known else ExitCode.FAILED


def delayed_end(end: End, task: PodTask, stop: threading.Event) -> End:
    """Return the same end, after a pause if the node may be the cause.

    A broken node that ends at once would get every shard in turn. A pod that met its deadline has
    already occupied its place long enough: `stop` is then set, and there is no pause."""
    if end.code in (ExitCode.NODE, ExitCode.HANG, ExitCode.FAILED):
        environment.wait(stop, task.hold_s)
    return end


def termination_message(end: End) -> str:
    """Return the termination message that a controller reads."""
    required = {"code": int(end.code), "reason": end.reason[:_LONGEST_REASON_CHARACTERS]}
    return json.dumps(required | ({"shard": end.shard} if end.shard else {}))


def write_termination_message(end: End, log: Path = _TERMINATION_LOG) -> int:
    """Write one line that `kubectl describe` shows, and return the exit code."""
    if end.reason:
        logger.error("%s", end.reason)
    try:
        if log.exists():
            log.write_text(termination_message(end) + "\n")
    except OSError as error:
        logger.info("cannot write the termination message: %s", error)
    return int(end.code)


# Time that a pod waits for an unreachable store before it ends with exit 45: most stores are back
# within minutes, and the pod keeps its measurements.
_PATIENCE_S = 600.0
# Interval between two progress reports of a shard: a thousand pods write to one store.
_PROGRESS_S = 30.0

Measure = Callable[[LocalRun, Sequence[str]], None]
Lend = Callable[[Store, PodTask, Wave, Plan, threading.Event, Callable[[], Sequence[str]]], None]


def work_in_pod() -> int:
    """Run a pod from its environment to its exit code."""
    # Phase 1: the task of this pod and its folders. An error here is not caused by a shard.
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        task = task_of(os.environ)
        for folder in (task.scratch, Path(os.environ.get("HOME") or task.scratch)):
            folder.mkdir(parents=True, exist_ok=True)
    except OpmeterError as error:
        return write_termination_message(End(ExitCode.IMAGE, str(error)))
    except OSError as error:
        return write_termination_message(End(ExitCode.SPACE, str(error)))
    # Phase 2: the work. Phase 3: a broken node keeps its place for a while. Phase 4: report why.
    return write_termination_message(delayed_end(work(task, stop), task, stop))


def lend_ranks(
    store: Store,
    task: PodTask,
    wave: Wave,
    plan: Plan,
    stop: threading.Event,
    left: Callable[[], Sequence[str]],
) -> None:
    """Run ranks of a gang that another pod measures with, while shards are `left`."""
    with seen_by_all():
        here = ThisMachine().stack(plan)
    check_stack(plan.stack, here)
    follow_gang(store, wave, task.index, task.scratch, stop, left)


def work(
    task: PodTask,
    stop: threading.Event,
    measure: Measure = LocalRun.measure,
    reach: Callable[[str], Store] = open_store,
    lend: Lend = lend_ranks,
) -> End:
    """Measure and commit the shards of this index, and return the result.

    Commits count, whichever pod made them. `reach` opens the store of a URL.

    At the task's deadline `stop` is set, and the pod ends with exit 46 (hang). Its end differs from
    that of a pod that is requested to stop: such a pod is started again, so an index without
    progress would be retried forever.

    Example: an index has the shards s1 and s2. A worker commits s1 and ends with exit 44 in s2: the
    pod ends with exit 44, and names s2. If s2 is committed nevertheless, the pod ends with 0."""
    with _deadline(task.deadline_s, stop) as late:
        try:
            # Every pod of the image reads the same here: an error is not caused by a node.
            with seen_by_all():
                store: Store = reach(task.root)
            if task.single_writer:
                store = SingleWriterStore(store)
            patient = PatientStore(store, _PATIENCE_S, wait_for_refusals=True, stop=stop)
            with seen_by_all():
                wave = _read_wave(patient, task)
            failure = None
            if shards := _uncommitted(patient, task, wave):
                with seen_by_all():
                    plan = assigned_plan(patient, task.campaign, wave.plan, task.plan_hash)
                try:
                    if wave.is_gang and task.index:  # another pod measures with these ranks
                        left_of_index = partial(_uncommitted, patient, task, wave)
                        lend(patient, task, wave, plan, stop, left_of_index)
                    else:
                        measure(_local_run(patient, store, task, wave, plan, stop), shards)
                except LocalRunFailed as error:
                    failure = error
            left = _uncommitted(patient, task, wave) if shards else []
        except (OpmeterError, OSError) as error:
            code = exit_code(error)
            stop_requested = code is ExitCode.STORE and stop.is_set() and not late.is_set()
            return End(ExitCode.TEMPORARY if stop_requested else code, str(error))
        # From here on shards count: first whether any is left, then whether the cause is unknown,
        # and only then the worker's report.
        if not left:
            return End(ExitCode.DONE)
        if late.is_set():
            reason = f"exceeded its deadline of {task.deadline_s:g} s; {_left(left)}"
            # A pod that lends ranks to another pod waits for it: the deadline says nothing about
            # its own node.
            code = ExitCode.FAILED if wave.is_gang and task.index else ExitCode.HANG
            return End(code, reason, left[0])
        if stop.is_set():
            return End(ExitCode.TEMPORARY, f"stopped; {_left(left)}")
        if failure is None:
            return End(ExitCode.TEMPORARY, _left(left))
        return End(code_of_worker(failure.code), str(failure), failure.shard)


@contextmanager
def _deadline(after_s: float | None, stop: threading.Event) -> Iterator[threading.Event]:
    """Set `stop` after `after_s` seconds.

    The yielded event is also set then: it distinguishes the deadline from a request to stop."""
    late, ended = threading.Event(), threading.Event()

    def ring() -> None:
        if not environment.wait(ended, after_s) and not stop.is_set():
            late.set()
            stop.set()

    if after_s is not None:
        environment.begin(ring, "deadline")
    try:
        yield late
    finally:
        ended.set()


def _left(shards: Sequence[str]) -> str:
    return counted(len(shards), "shard is left", "shards are left")


def _read_wave(store: Store, task: PodTask) -> Wave:
    key = keys.wave(task.campaign, task.wave)
    wave = wave_from_json(store.get(key), key=key)
    if wave.plan_hash != task.plan_hash:
        raise BadInput(
            f"{key}: expected plan {task.plan_hash} as in this pod, got {wave.plan_hash}"
        )
    if not 0 <= task.index < len(wave.indexes):
        raise BadInput(
            f"{key} has {counted(len(wave.indexes), 'index', 'indexes')}, but this pod has index "
            f"{task.index}"
        )
    return wave


def _uncommitted(store: Store, task: PodTask, wave: Wave) -> list[str]:
    """Return this index's shards that no worker has committed."""
    return [s for s in wave.indexes[task.index] if not is_committed(store, task.campaign, s)]


def _local_run(
    patient: Store, store: Store, task: PodTask, wave: Wave, plan: Plan, stop: threading.Event
) -> LocalRun:
    return LocalRun(
        store=patient,
        watched=store,
        plan=plan,
        scratch=task.scratch,
        devices=_devices(plan.backend, task.devices),
        stop=stop,
        on_progress=lambda shard, done: logger.debug("shard %s: %d cases", shard, done),
        on_finished=lambda shard: logger.info("shard %s is committed", shard),
        single_writer=task.single_writer,
        waits_for_refusals=True,
        gives_up=task.gives_up,
        tries_all=True,
        prefix=f"{task.pod}-{task.index}-",
        progress_s=_PROGRESS_S,
        operators=task.operators,
        first_of=FirstPod(wave.pods, interface_address() or task.address, wave.wave_hash)
        if wave.is_gang
        else None,
    )


def _devices(backend: str, count: int) -> list[int]:
    """Return the pod's devices in the order in which they get shards.

    No chip gets a second shard while another has none."""
    order: list[int] = []
    if backend == "npu" and count > 1:
        # If the driver does not respond, the order does not matter: each worker will report it.
        with suppress(HostFault):
            order = [index for index in one_a_chip_first(list_npus()) if index < count]
    return [*order, *(index for index in range(count) if index not in order)]
