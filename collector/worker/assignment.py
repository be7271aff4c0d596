"""The assignment of a worker, and its execution: from the plan in the store to the shard's
commit."""

import logging
import operator
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import zstandard

from collector.codec.errors import AlreadyExists, BadInput, StoreError
from collector.comm.gang import GangWork, StartRanks, start_here
from collector.database.plans import assigned_plan
from collector.database.shard_commits import read_sealed
from collector.host.operator_library import static_kernel_problem
from collector.measuring.batches import (
    Batches,
    SessionSize,
    Unmeasured,
    cases_that_killed,
)
from collector.measuring.instrument import Instrument
from collector.measuring.sessions import measure_all
from collector.model import keys
from collector.model.measurement import Outcome
from collector.model.plan import Plan, PlannedShard, ShardCase, read_shard
from collector.model.stack import Stack, is_version_of
from collector.ops.own import OperatorFile, find_unread
from collector.ops.refusals import FindOperator, refusal_of_static, refusal_on_ranks
from collector.store.base import Store
from collector.worker.answers import ShardResults
from collector.worker.attempt import Attempt, ProgressObject, is_committed
from collector.worker.blame import WrongImage, WrongNode, seen_by_all
from collector.worker.machine import Machine, ThisMachine
from collector.worker.recordings import unsent_store

# From a shard's cases to its commit: first the cases that need no device, then one session after
# another.


def complete_shard(
    results: ShardResults,
    instrument: Instrument,
    *,
    find: FindOperator,
    backend: str,
    ranks: int = 1,
    size: SessionSize,
    stop: threading.Event,
    on_progress: Callable[[int, int], None],
    rehearse: Callable[[], None] = lambda: None,
) -> bool:
    """Measure the missing cases and commit the shard. Return True once it is committed, by this or
    another worker; False if `stop` was set first (the measurements are kept). `rehearse` is called
    before the first session: it raises an error if its results could not be read and stored.

    Raises SessionsFail, and every error of the store or the instrument."""
    # Phase 1: results that exist already. Another worker may have committed the shard, measured
    # some of its cases, or ended before it had stored what it measured.
    if results.is_closed():
        return True
    results.load()
    if count := results.reread(instrument):
        what = "stored %d results from the records of earlier attempts: they are not measured again"
        logger.info(what, count)
    # Phase 2: cases that need no device: no operator can launch them, or they killed a session.
    records = [case.record for case in results.without_result()]
    problem = static_kernel_problem() if backend == "npu" else ""
    refusals = (
        (
            one,
            refusal_on_ranks(one.case, find, backend, ranks)
            or refusal_of_static(one.case, problem),
        )
        for one in records
    )
    results.add_unmeasured([Unmeasured(one, no.outcome, no.reason) for one, no in refusals if no])
    results.add_unmeasured(cases_that_killed(results.without_result(), results.killed))
    # Phase 3: one session after another on the device, until every case has a result. What could
    # not be stored is not measured.
    if results.without_result():
        rehearse()
        results.prove_writable()
    left = {case.record.case_id for case in results.without_result()}
    killed = [batch for batch in results.killed if left.intersection(batch)]
    batches = Batches(size, killed, backend)
    if not measure_all(results, instrument, batches, stop=stop, on_progress=on_progress):
        return False
    # Phase 4: the commit. If another worker committed first, this commit would leave a manifest
    # that no commit names.
    if not results.is_closed():
        results.commit()
    return True


def give_up(results: ShardResults, outcome: Outcome, reason: str) -> None:
    """Commit a shard that no worker could finish: cases without a result get `outcome`."""
    results.load()
    if results.is_closed():
        return
    results.add_unmeasured(
        [Unmeasured(case.record, outcome, reason) for case in results.without_result()]
    )
    results.commit()


logger = logging.getLogger(__name__)

LOG = "worker.log"


@dataclass(frozen=True, slots=True)
class Assignment:
    """One attempt at one shard, on one device of this machine. `plan_hash` is the hash of the plan
    that the assigning process has read. `operators` are the hashes of the plan's files of operators
    that sessions may execute: without them, nothing that a store holds is executed."""

    campaign: str
    plan: int
    plan_hash: str
    shard: str
    attempt: str
    device: int = 0
    operators: tuple[str, ...] = ()

    def as_arguments(self) -> list[str]:
        """Return the command line that gives this assignment to `python -m collector.worker`."""
        return [
            *("--campaign", self.campaign, "--plan", str(self.plan)),
            *("--plan-hash", self.plan_hash, "--shard", self.shard),
            *("--attempt", self.attempt, "--device", str(self.device)),
            *chain.from_iterable(("--operators", one) for one in self.operators),
        ]


def work_on_shard(
    store: Store,
    assignment: Assignment,
    scratch: Path,
    stop: threading.Event,
    *,
    watched: Store,
    progress_s: float = 2.0,
    machine: Machine | None = None,
    start: StartRanks = start_here,
) -> bool:
    """Complete one shard. Return True once it is committed, by this or another worker; False if the
    worker was stopped before.

    `watched` is the same store without retries: progress is written there every `progress_s`. The
    log of the process is expected in `scratch / LOG` and is stored with the attempt. `machine` is
    the machine to measure on, this one by default; `start` starts the ranks of a gang. Raises
    WrongImage or WrongNode if this machine cannot measure the plan, or if the store has another
    plan than the assigned one."""
    plan, planned = _read_plan(store, assignment)
    machine = machine or ThisMachine()
    cases = _read_cases(store, plan, planned)
    if cases is None:
        _commit_nothing(store, assignment, plan, machine.node)
        return True
    with seen_by_all():  # software that is missing here is missing in every worker of the image
        here = machine.stack(plan)
    check_stack(plan.stack, here)
    operators = _allowed_operators(store, plan, assignment)
    serial = machine.serial(plan, assignment.device)
    log = scratch / LOG
    named = (assignment.campaign, assignment.shard, assignment.attempt)
    progress = ProgressObject(watched, *named, every_s=progress_s)
    hears = progress.measured
    attempt = _attempt(store, assignment, plan, machine.node, log, serial)
    attempt = replace(attempt, unsent=unsent_store(store.url))
    results = ShardResults(attempt, cases, gathers=planned.is_gang)
    if planned.is_gang:

        def announced(work: GangWork, world: int, folder: Path) -> None:
            """Start the ranks, which first record which cases they are about to run."""
            start(replace(work, begins=results.session_begins), world, folder)

        instrument = machine.gang(
            plan, planned.ranks, scratch, stop, hears, announced, results.keep
        )
    else:
        device = assignment.device
        how = (scratch, stop, hears, results.keep, operators)
        instrument = machine.instrument(plan, device, *how)
    with progress:
        return complete_shard(
            results,
            instrument,
            find=find_unread((case.record.case for case in cases), operators),
            backend=plan.backend,
            ranks=planned.ranks,
            size=SessionSize(plan.shard_settings.session_s, plan.measure, scratch),
            stop=stop,
            on_progress=progress.count_measured,
            rehearse=lambda: machine.rehearse(attempt, scratch),
        )


def abandon(store: Store, assignment: Assignment, outcome: Outcome, reason: str) -> None:
    """Commit a shard that no worker could finish, for good. Missing cases get `outcome`."""
    plan, planned = _read_plan(store, assignment)
    node = ThisMachine().node
    cases = _read_cases(store, plan, planned)
    if cases is None:
        _commit_nothing(store, assignment, plan, node)
    else:
        attempt = _attempt(store, assignment, plan, node)
        give_up(ShardResults(attempt, cases), outcome, reason)


def keep_log(
    store: Store, assignment: Assignment, log: Path, most_bytes: int | None = None
) -> None:
    """Store the log of an attempt without a commit, or its last `most_bytes`. The write is tried
    once, without waiting. An existing log is kept."""
    key = keys.attempt_log(assignment.campaign, assignment.shard, assignment.attempt)
    try:
        reported = log.read_bytes()
        store.create(key, zstandard.compress(reported[-most_bytes:] if most_bytes else reported))
    except AlreadyExists:
        logger.debug("%s exists already", key)
    except (OSError, StoreError) as error:
        logger.warning("did not store the log: %s", error)


def check_stack(required: Stack, here: Stack) -> None:
    """Raise WrongImage if the software differs, WrongNode if the device does.

    Versions other than CANN's are as people write them: `2.9.0` also matches `2.9.0+cpu`. CANN's is
    the exact release, because each release has new kernels."""
    agree = is_version_of if required.cann else operator.eq
    checks = (
        ("device", operator.eq, WrongNode),
        *((name, agree, WrongImage) for name in ("torch", "torch_npu", "vllm")),
        ("cann", operator.eq, WrongImage),
        *((name, operator.eq, WrongNode) for name in ("driver", "firmware", "details")),
    )
    for name, agree_on, error in checks:
        expected, got = getattr(required, name), getattr(here, name)
        if not agree_on(expected, got):
            raise error(
                f"{name}: expected {expected!r} as in the plan, got {got!r} on this machine"
            )


def _read_plan(store: Store, assignment: Assignment) -> tuple[Plan, PlannedShard]:
    """Return the plan that the assigning process has read, and the shard. Raises WrongImage if the
    store has another plan, or the plan has no such shard."""
    campaign, number = assignment.campaign, assignment.plan
    with seen_by_all():
        plan = assigned_plan(store, campaign, number, assignment.plan_hash)
    for planned in plan.shards:
        if planned.shard_id == assignment.shard:
            return plan, planned
    raise WrongImage(
        f"{keys.plan(campaign, number)}: expected shard {assignment.shard} in this plan, found none"
    )


def _allowed_operators(
    store: Store, plan: Plan, assignment: Assignment
) -> tuple[OperatorFile, ...]:
    """Return the plan's files of operators that sessions may execute. Raises DamagedObject for an
    object that does not have the hash of the plan."""
    plan_key = keys.plan(plan.campaign, plan.number)
    found = []
    for file in plan.operator_files:
        if file.sha256 not in assignment.operators:
            logger.warning("%s is not executed: this worker is not allowed to", file.name)
            continue
        key = keys.operator_file(plan.campaign, file.sha256)
        data = read_sealed(store, key, file.sha256, named_by=plan_key)
        found.append(OperatorFile(file.name, data.decode()))
    return tuple(found)


def _read_cases(store: Store, plan: Plan, planned: PlannedShard) -> list[ShardCase] | None:
    """Return the cases of a shard, in order; None if their table is not the one that the plan was
    made with: no worker on any node has a better table."""
    key = keys.shard(plan.campaign, planned.shard_id)
    plan_key = keys.plan(plan.campaign, plan.number)
    try:
        return read_shard(read_sealed(store, key, planned.sha256, named_by=plan_key), path=key)
    except BadInput as error:
        logger.warning(
            "committing the shard without results, because its cases are damaged: %s", error
        )
        return None


def _commit_nothing(store: Store, assignment: Assignment, plan: Plan, node: str) -> None:
    """Commit a shard without results. A merge reports it as damaged and names the damaged object;
    the next plan puts its cases into a new shard."""
    if not is_committed(store, plan.campaign, assignment.shard):
        Attempt(store, plan, assignment.shard, assignment.attempt, node).commit([], {})


def _attempt(
    store: Store,
    assignment: Assignment,
    plan: Plan,
    node: str,
    log: Path | None = None,
    serial: str | None = None,
) -> Attempt:
    digest = os.environ.get("OPMETER_IMAGE_DIGEST") or None
    return Attempt(store, plan, assignment.shard, assignment.attempt, node, log, serial, digest)
