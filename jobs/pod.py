"""`opmeter work`: what runs in a worker pod. Index to shards by the wave, shards to the workers of
this node's devices, and an exit code by what is committed in the end."""

import json
import logging
import os
import signal
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from collector import keys
from collector.errors import BadInput, NotFound, OpmeterError, StoreError
from collector.store import open_store
from collector.store.base import Store
from collector.store.patient import PatientStore
from collector.store.single_writer import SingleWriterStore
from collector.worker.exit_codes import ExitCode
from jobs.local import LocalRun, LocalRunFailed, Progress
from jobs.rounds import read_plan
from jobs.waves import Wave, wave_from_json

logger = logging.getLogger(__name__)

_TERMINATION_LOG = Path("/dev/termination-log")
_HOLD_S = 120.0
_PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class PodTask:
    """What a pod was told by its environment."""

    root: str
    campaign: str
    wave: str
    plan_hash: str
    index: int
    devices: int
    single_writer: bool
    pod: str
    scratch: Path
    hold_s: float


def task_of(environment: Mapping[str, str]) -> PodTask:
    """The task in a pod's environment. Raises BadInput, naming the variable, where it has none."""

    def said(name: str) -> str:
        text = environment.get(name, "")
        if not text:
            raise BadInput(f"{name} is not set: `opmeter work` runs in a pod that a wave started")
        return text

    return PodTask(
        root=said("OPMETER_ROOT"),
        campaign=said("OPMETER_CAMPAIGN"),
        wave=said("OPMETER_WAVE"),
        plan_hash=said("OPMETER_PLAN_HASH"),
        index=int(said("JOB_COMPLETION_INDEX")),
        devices=int(environment.get("OPMETER_DEVICES") or 1),
        single_writer=bool(environment.get("OPMETER_SINGLE_WRITER")),
        pod=(environment.get("POD_UID") or "local")[:8],
        scratch=Path(environment.get("TMPDIR") or "/tmp"),
        hold_s=float(environment.get("OPMETER_HOLD_S") or _HOLD_S),
    )


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
    except (OpmeterError, OSError) as error:
        return _last_words(ExitCode.IMAGE, str(error))
    code, reason = work(task, stop)
    if code in (ExitCode.NODE, ExitCode.HANG):
        # A broken node that lets go at once would be given the whole queue.
        stop.wait(task.hold_s)
    return _last_words(code, reason)


def work(task: PodTask, stop: threading.Event) -> tuple[int, str]:
    """Have the shards of this index committed: the exit code that says how far it came, and why."""
    try:
        store: Store = open_store(task.root)
        if task.single_writer:
            store = SingleWriterStore(store)
        patient = PatientStore(store, _PATIENCE_S, wait_for_refusals=True, stop=stop)
        wave = _read_wave(patient, task)
        shards = _uncommitted(patient, task, wave)
        if shards:
            _measure(patient, store, task, wave, shards, stop)
        left = _uncommitted(patient, task, wave)
    except LocalRunFailed as error:
        return _code_of(error.code), str(error)
    except (BadInput, NotFound) as error:
        return ExitCode.IMAGE, str(error)
    except StoreError as error:
        return (ExitCode.TEMPORARY if stop.is_set() else ExitCode.STORE), str(error)
    except (OpmeterError, OSError) as error:
        return ExitCode.NODE, str(error)
    if not left:
        return ExitCode.DONE, ""
    return ExitCode.TEMPORARY, f"stopped; {len(left)} shards are left"


def _read_wave(store: Store, task: PodTask) -> Wave:
    key = keys.wave(task.campaign, task.wave)
    wave = wave_from_json(store.get(key), key=key)
    if wave.plan_hash != task.plan_hash or task.index >= len(wave.indexes):
        raise BadInput(f"{key} is of plan {wave.plan_hash}, and this pod is for {task.plan_hash}")
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
    shards: list[str],
    stop: threading.Event,
) -> None:
    plan = read_plan(patient, task.campaign, wave.plan)
    if plan.plan_hash != task.plan_hash:
        raise BadInput(f"plan {wave.plan} is {plan.plan_hash}, {task.plan_hash} is wanted")
    run = LocalRun(
        store=patient,
        watched=store,
        plan=plan,
        scratch=task.scratch,
        devices=range(task.devices),
        stop=stop,
        on_progress=_log_progress,
        on_finished=lambda shard: logger.info("shard %s is committed", shard),
        single_writer=task.single_writer,
        gives_up=False,
        prefix=f"{task.pod}-",
    )
    run.measure(shards)


def _log_progress(progress: Progress) -> None:
    logger.debug("shard %s: %d of %d", progress.shard, progress.done, progress.cases)


def _code_of(code: int) -> int:
    """What a worker's end means for the pod: one that was killed may have run out of memory."""
    if code == -signal.SIGKILL:
        return ExitCode.SPACE
    return ExitCode.NODE if code < 0 else code


def _last_words(code: int, reason: str) -> int:
    """Leave one line where `kubectl describe` shows it."""
    if reason:
        logger.error("%s", reason)
    line = json.dumps({"code": int(code), "reason": reason[:1000]})
    if _TERMINATION_LOG.exists():
        _TERMINATION_LOG.write_text(line + "\n")
    return int(code)
