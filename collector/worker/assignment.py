"""What a worker is told to do, and doing it: from the plan in the store to the shard's commit."""

import logging
import os
import platform
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import zstandard

from collector import keys
from collector.canonical import sha256_hex
from collector.errors import AlreadyExists, OpmeterError, StoreError
from collector.host.stack import device_serial, local_stack
from collector.measurement import Outcome
from collector.ops.registry import find
from collector.plan import Plan, plan_from_json
from collector.shard import ShardCase, read_shard
from collector.stack import Stack
from collector.store.base import Store
from collector.worker.answers import ShardAnswers, Worker
from collector.worker.attempt import Attempt
from collector.worker.progress import ProgressObject
from collector.worker.sessions import ReplayInstrument
from collector.worker.shard_run import complete, give_up

logger = logging.getLogger(__name__)

LOG = "worker.log"


class WrongImage(OpmeterError):
    """What every worker of this installation would see: other software than the plan's."""


class WrongNode(OpmeterError):
    """This machine's device is not the plan's."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt at one shard, on one device of this machine. The hash is of the plan that
    whoever assigns has read."""

    campaign: str
    plan: int
    plan_hash: str
    shard: str
    attempt: str
    device: int = 0

    def as_arguments(self) -> list[str]:
        """The command line that gives this assignment to `python -m collector.worker`."""
        return [
            *("--campaign", self.campaign, "--plan", str(self.plan)),
            *("--plan-hash", self.plan_hash, "--shard", self.shard),
            *("--attempt", self.attempt, "--device", str(self.device)),
        ]


def work(
    store: Store,
    assignment: Assignment,
    scratch: Path,
    stop: threading.Event,
    *,
    watched: Store,
    progress_s: float = 2.0,
) -> bool:
    """Complete one shard. True once it is committed, by anyone; False where stopped before.

    `watched` is the same store, not waited for: progress is written there every `progress_s`. What
    the process logs is expected in `scratch / LOG`, and is kept with the attempt.
    Raises WrongImage or WrongNode where this machine cannot measure the plan, or the store holds
    another plan than the one assigned.
    """
    plan, cases = _read(store, assignment)
    check_stack(plan.stack, local_stack(plan.backend, plan.stack.device))
    serial = device_serial(plan.backend, assignment.device)
    named = (assignment.campaign, assignment.shard, assignment.attempt)
    progress = ProgressObject(watched, *named, every_s=progress_s)
    with progress:
        return complete(
            _answers(store, assignment, plan, cases, log=scratch / LOG, serial=serial),
            ReplayInstrument(plan, assignment.device, scratch, stop, progress.measured),
            find=find,
            backend=plan.backend,
            session_s=plan.shard_settings.session_s,
            stop=stop,
            on_progress=progress.answered,
        )


def abandon(store: Store, assignment: Assignment, outcome: Outcome, reason: str) -> None:
    """Commit a shard for good although nobody could finish it; what is missing gets `outcome`."""
    plan, cases = _read(store, assignment)
    give_up(_answers(store, assignment, plan, cases), outcome, reason)


def keep_log(
    store: Store, assignment: Assignment, log: Path, most_bytes: int | None = None
) -> None:
    """Store the log of an attempt that came to no commit, or its last `most_bytes`. One try: it is
    not waited for. One that is there already is kept."""
    key = keys.attempt_log(assignment.campaign, assignment.shard, assignment.attempt)
    try:
        said = log.read_bytes()
        store.create(key, zstandard.compress(said[-most_bytes:] if most_bytes else said))
    except AlreadyExists:
        logger.debug("%s is there already", key)
    except (OSError, StoreError) as error:
        logger.warning("the log was not stored: %s", error)


def this_node(environment: Mapping[str, str]) -> str:
    """The machine's name, as provenance has it. A pod's own hostname is the pod's: there
    Kubernetes says which node it is on, in NODE_NAME."""
    return environment.get("NODE_NAME") or platform.node()


def check_stack(wanted: Stack, here: Stack) -> None:
    """Raises WrongImage where the software differs, WrongNode where the device does.

    Versions beside CANN are those that people write: `8.5` is every 8.5.x, and `2.9.0` also
    `2.9.0+cpu`.
    """
    agree = _is_version_of if wanted.cann else str.__eq__
    if wanted.device != here.device:
        raise WrongNode(_difference("device", wanted.device, here.device))
    for name in ("torch", "torch_npu", "cann", "vllm"):
        if not agree(getattr(wanted, name), getattr(here, name)):
            raise WrongImage(_difference(name, getattr(wanted, name), getattr(here, name)))
    for name in ("driver", "firmware", "details"):
        if getattr(wanted, name) != getattr(here, name):
            raise WrongNode(_difference(name, getattr(wanted, name), getattr(here, name)))


def _is_version_of(wanted: str, here: str) -> bool:
    """Whether a version is the one wanted, or a closer description of it."""
    return here == wanted or (bool(wanted) and here.startswith(tuple(wanted + c for c in ".+-")))


def _difference(name: str, wanted: object, here: object) -> str:
    return f"the plan is for {name} {wanted!r}, and this machine has {here!r}"


def _read(store: Store, assignment: Assignment) -> tuple[Plan, list[ShardCase]]:
    """The plan and the shard's cases, as whoever assigned them knows them; else WrongImage."""
    plan_key = keys.plan(assignment.campaign, assignment.plan)
    plan = plan_from_json(store.get(plan_key), key=plan_key)
    if plan.plan_hash != assignment.plan_hash:
        raise WrongImage(
            f"{plan_key}: plan {assignment.plan_hash} was assigned, and this is {plan.plan_hash}"
        )
    planned = {shard.shard_id: shard.sha256 for shard in plan.shards}
    if assignment.shard not in planned:
        raise WrongImage(f"{plan_key}: this plan has no shard {assignment.shard}")
    shard_key = keys.shard(assignment.campaign, assignment.shard)
    table = store.get(shard_key)
    if sha256_hex(table) != planned[assignment.shard]:
        raise WrongImage(f"{shard_key}: these are not the cases that the plan was made of")
    return plan, read_shard(table, path=shard_key)


def _answers(
    store: Store,
    assignment: Assignment,
    plan: Plan,
    cases: list[ShardCase],
    *,
    log: Path | None = None,
    serial: str | None = None,
) -> ShardAnswers:
    node = this_node(os.environ)
    attempt = Attempt(store, plan, assignment.shard, assignment.attempt, node, log)
    digest = os.environ.get("OPMETER_IMAGE_DIGEST") or None
    return ShardAnswers(attempt, cases, Worker(node, serial, image_digest=digest))
