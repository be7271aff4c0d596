"""Measure and commit one shard in a process of its own: `python -m collector.worker`.

The exit code reports to the caller whether a retry can help.
"""

import argparse
import errno
import logging
import signal
import sys
import threading
from dataclasses import fields
from pathlib import Path

from collector.codec.errors import OpmeterError
from collector.comm.gang import StartRanks, start_here
from collector.comm.meeting import OverNodes
from collector.host import imports
from collector.host.processes import die_with_parent, read_parent
from collector.model import keys
from collector.store import open_store
from collector.store.base import Store
from collector.store.waiting import PatientStore, SingleWriterStore
from collector.worker.assignment import LOG, Assignment, keep_log, work_on_shard
from collector.worker.blame import exit_code, seen_by_all
from collector.worker.exit_codes import ExitCode
from collector.worker.machine import Machine, ThisMachine

logger = logging.getLogger("collector.worker")

_LEAST_FREE_BYTES = 1 << 30
# How long a worker waits for an unavailable store after a request to stop. It is shorter than the
# time that the sender of the request allows beyond the case in progress.
_GRACE_S = 20.0


def main(arguments: list[str] | None = None) -> int:
    """Work on the assignment of the command line and return the exit code."""
    options = _parser().parse_args(arguments)
    imports.without_pandas()
    # if a log cannot be written, the exit code still reports the result
    logging.raiseExceptions = False
    stop = threading.Event()
    if options.parent is not None:
        die_with_parent(options.parent)
        read_parent(sys.stdin.fileno(), lambda line: None)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    assignment = assignment_of(options)
    try:
        logging.basicConfig(
            level=logging.INFO,
            format="%(asctime)s %(name)s %(message)s",
            handlers=[logging.StreamHandler(), logging.FileHandler(options.scratch / LOG)],
        )
        with seen_by_all():
            store = open_store(options.root)
        if options.single_writer:
            store = SingleWriterStore(store)
        code = run(
            store,
            assignment,
            options.scratch,
            options.patience_s,
            stop,
            options.progress_s,
            waits_for_refusals=options.wait_for_refusals,
            start=gang_starter(options, store),
        )
    except (OpmeterError, OSError) as error:
        logger.error("%s", error)
        return exit_code(error)
    return code


def run(
    store: Store,
    assignment: Assignment,
    scratch: Path,
    patience_s: float,
    stop: threading.Event,
    progress_s: float = 2.0,
    machine: Machine | None = None,
    start: StartRanks = start_here,
    *,
    waits_for_refusals: bool = False,
) -> ExitCode:
    """Run one attempt and return its exit code. The commit stores the log of the attempt; without a
    commit, this function does. With `waits_for_refusals`, a store that refuses is retried like one
    that is unavailable."""
    machine = machine or ThisMachine()
    watched = PatientStore(store, 0.0, stop=stop)
    try:
        free = machine.free_bytes(scratch)
        if free < _LEAST_FREE_BYTES:
            message = f"expected at least 1 GiB of free space, got {free >> 20} MiB: free space "
            message += "there, or set TMPDIR to a folder on another disk (in pods, set "
            message += "ephemeral_storage of the site)"
            raise OSError(errno.ENOSPC, message, str(scratch))
        patient = PatientStore(
            store,
            patience_s,
            wait_for_refusals=waits_for_refusals,
            stop=stop,
            grace_s=_GRACE_S,
        )
        done = work_on_shard(
            patient,
            assignment,
            scratch,
            stop,
            watched=watched,
            progress_s=progress_s,
            machine=machine,
            start=start,
        )
        code = ExitCode.DONE if done else ExitCode.TEMPORARY
    except (OpmeterError, OSError) as error:
        logger.error("%s", error)
        code = exit_code(error)
    if code is not ExitCode.DONE:
        keep_log(watched, assignment, scratch / LOG)
    return code


def gang_starter(options: argparse.Namespace, store: Store) -> StartRanks:
    """Return the function that starts the ranks of a gang: on this machine alone, or on several
    pods. The first pod writes its address to the store for the others."""
    if options.pods == 1:
        return start_here
    key = keys.meeting(options.campaign, options.wave)
    return OverNodes(options.pods, options.host, lambda place: store.put(key, place.to_json()))


def assignment_of(options: argparse.Namespace) -> Assignment:
    """Return the assignment that `Assignment.as_arguments` wrote."""
    found = {field.name: getattr(options, field.name) for field in fields(Assignment)}
    return Assignment(**{**found, "operators": tuple(options.operators)})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="collector.worker", description=__doc__)
    parser.add_argument("--root", required=True, help="URL of the store")
    parser.add_argument("--campaign", required=True, help="name of the campaign")
    parser.add_argument("--plan", type=int, required=True, help="number of the plan")
    parser.add_argument("--plan-hash", required=True, help="hash of the plan as the caller read it")
    parser.add_argument(
        "--single-writer", action="store_true", help="no other process writes to the store"
    )
    parser.add_argument("--shard", required=True, help="id of the shard to measure")
    parser.add_argument("--attempt", required=True, help="name of this attempt, used once")
    parser.add_argument("--device", type=int, default=0, help="index of the device")
    parser.add_argument(
        "--operators",
        action="append",
        default=[],
        metavar="SHA256",
        help="hash of a file of operators of the plan that sessions may execute",
    )
    parser.add_argument("--scratch", type=Path, required=True, help="empty scratch folder")
    parser.add_argument(
        "--patience-s", type=float, default=600.0, help="seconds to retry an unavailable store"
    )
    parser.add_argument(
        "--wait-for-refusals", action="store_true", help="retry a store that refuses, too"
    )
    parser.add_argument(
        "--progress-s", type=float, default=2.0, help="seconds between two progress reports"
    )
    parser.add_argument("--pods", type=int, default=1, help="number of pods of the shard's gang")
    parser.add_argument("--host", default="", help="address of this pod, if the gang has several")
    parser.add_argument(
        "--wave", default="", help="name of the wave, under which the gang's pods meet"
    )
    parser.add_argument("--parent", type=int, help="process whose exit ends this one")
    return parser


if __name__ == "__main__":
    sys.exit(main())
