"""How a worker pod ends: an exit code that says who is to blame, and one line that says why."""

import json
import logging
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

from collector import surroundings
from collector.worker.exit_codes import ExitCode
from jobs.executor.pod_task import PodTask

logger = logging.getLogger(__name__)

_TERMINATION_LOG = Path("/dev/termination-log")
# Kubernetes keeps 4096 bytes of a termination message, and a person reads less.
_LONGEST_REASON_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class End:
    """How a pod ends."""

    code: int  # of ExitCode: who is to blame
    reason: str = ""  # one sentence for a person; empty where all is committed
    shard: str = ""  # the one that failed


def code_of_worker(code: int) -> int:
    """The pod's exit code for a worker's. A worker that was killed may have run out of memory (48);
    any other end without a word is nobody's proven fault (1)."""
    if code == -signal.SIGKILL:
        return ExitCode.SPACE
    known = code in set(ExitCode)
    return code if known else ExitCode.FAILED


def kept_place(end: End, task: PodTask, stop: threading.Event) -> End:
    """The same end, later where the node may be to blame: a broken node that lets go at once would
    be given every shard in turn. Whoever met its deadline has kept its place long enough: `stop` is
    set then, and nobody waits."""
    if end.code in (ExitCode.NODE, ExitCode.HANG, ExitCode.FAILED):
        surroundings.wait(stop, task.hold_s)
    return end


def message_of(end: End) -> str:
    """The line that a controller reads of how a pod has ended."""
    said = {"code": int(end.code), "reason": end.reason[:_LONGEST_REASON_CHARACTERS]}
    return json.dumps(said | ({"shard": end.shard} if end.shard else {}))


def last_words(end: End, log: Path = _TERMINATION_LOG) -> int:
    """Leave one line where `kubectl describe` shows it, and give the exit code."""
    if end.reason:
        logger.error("%s", end.reason)
    try:
        if log.exists():
            log.write_text(message_of(end) + "\n")
    except OSError as error:
        logger.info("cannot write the termination message: %s", error)
    return int(end.code)
