"""`python -m collector.worker`: one shard as a process of its own, with exit codes that tell
whoever started it whether trying again can help."""

import argparse
import logging
import shutil
import signal
import sys
import threading
from pathlib import Path

from collector.errors import BadInput, NotFound, OpmeterError, StoreError
from collector.host.parent import die_with_parent, obey_parent
from collector.store import open_store
from collector.store.patient import PatientStore
from collector.worker.assignment import LOG, Assignment, WrongImage, WrongNode, work
from collector.worker.batches import SessionsFail
from collector.worker.exit_codes import ExitCode

logger = logging.getLogger("collector.worker")

_LEAST_FREE_BYTES = 1 << 30


def main(arguments: list[str] | None = None) -> int:
    """Work on the assignment of the command line, and give the exit code."""
    options = _parse(arguments)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(name)s %(message)s",
        handlers=[logging.StreamHandler(), logging.FileHandler(options.scratch / LOG)],
    )
    stop = threading.Event()
    if options.parent is not None:
        die_with_parent(options.parent)
        obey_parent(sys.stdin.fileno(), lambda line: None)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    assignment = Assignment(
        options.campaign, options.plan, options.shard, options.attempt, options.device
    )
    return _run(options.root, assignment, options.scratch, options.patience_s, stop)


def _run(
    root: str, assignment: Assignment, scratch: Path, patience_s: float, stop: threading.Event
) -> ExitCode:
    free_bytes = shutil.disk_usage(scratch).free
    if free_bytes < _LEAST_FREE_BYTES:
        logger.error("%s has %d MiB free, 1 GiB is wanted", scratch, free_bytes >> 20)
        return ExitCode.SPACE
    try:
        store = open_store(root)
        patient = PatientStore(store, patience_s, wait_for_refusals=True)
        done = work(patient, assignment, scratch, stop, watched=store)
    except OpmeterError as error:
        logger.error("%s", error)
        return exit_code(error)
    return ExitCode.DONE if done else ExitCode.TEMPORARY


def exit_code(error: OpmeterError) -> ExitCode:
    """Whom an error blames."""
    match error:
        case WrongImage() | BadInput() | NotFound():
            return ExitCode.IMAGE
        case WrongNode() | SessionsFail():
            return ExitCode.NODE
        case StoreError():
            return ExitCode.STORE
        case _:  # nobody foresaw it, so that nobody can say that another try would help
            return ExitCode.NODE


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="collector.worker", description=__doc__)
    parser.add_argument("--root", required=True, help="the store's URL")
    parser.add_argument("--campaign", required=True)
    parser.add_argument("--plan", type=int, required=True)
    parser.add_argument("--shard", required=True)
    parser.add_argument("--attempt", required=True)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--scratch", type=Path, required=True, help="an empty folder to write in")
    parser.add_argument("--patience-s", type=float, default=600.0, help="for a store that is away")
    parser.add_argument("--parent", type=int, help="the process to die with")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
