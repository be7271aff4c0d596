"""Start, supervision and end of the ranks of this node.

torchrun starts them (static rendezvous, no restarts: a bench that begins in the middle measures
other channels). Every wait is bounded. If no rank of a gang makes a step for `patience_s`, the
ranks write their stacks and are ended, and the reason names the rank that the others wait for.
"""

import contextlib
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from collector.codec.errors import BadInput, OpmeterError
from collector.comm import rank_files
from collector.host.custom_operators import with_custom_opp
from collector.host.network import check_links, interface_address, tls_switches
from collector.host.npus import check_health
from collector.host.stack import CPU_ALLOCATOR, installed_vllm
from collector.replay.journal import GrowingFile
from collector.replay.process import describe_end, end_group

# Find the rank that the others wait for, by the position of each rank when none makes a step.
#
# On a signal, a rank writes its stack itself, in python or in a library. A rank that does not is
# stopped, or a driver holds it in the kernel. If all ranks write a stack, those that are in a
# message wait for one that is not.

_STACK_WAIT_S = 3.0  # for a rank to write its stack
_HANG_POLL_S = 0.1
_MOST_BYTES = 16 << 10  # of a rank's stack: its innermost frames come first
_FRAMES = 3  # in a line of a message; the log has all
_THREAD = re.compile(r"^(?=(?:Current thread|Thread) 0x)", re.MULTILINE)
_FRAME = re.compile(r'File "(?P<file>.*)", line \d+ in (?P<function>.+)')
# Python frames of a wait for other ranks: torch's own calls, and two innermost frames: waiting for
# a device, and waiting for a message that was begun (`buffers`).
_MESSAGE = re.compile(r"[/\\]torch[/\\]distributed[/\\]")
_WAITS = ("synchronize", "_exchange")


@dataclass(frozen=True, slots=True)
class RankPosition:
    """The position of a rank: its journal, and its stack, empty if it wrote none."""

    state: rank_files.RankState
    stack: str

    @property
    def waits(self) -> bool:
        """Return whether the rank is in a message, which ends when other ranks join it."""
        frames = self._frames()
        if any(_MESSAGE.search(frame["file"]) for frame in frames):
            return True
        return bool(frames) and frames[0]["function"] in _WAITS

    def where(self) -> str:
        """Return the innermost frames in one line."""
        return " | ".join(frame[0] for frame in self._frames()[:_FRAMES])

    def _frames(self) -> list[re.Match[str]]:
        """Return the frames of the thread that runs the rank's program, innermost first."""
        threads = _THREAD.split(self.stack)
        main = [one for one in threads if " in <module>" in one] or threads
        return list(_FRAME.finditer(main[-1]))


def rank_positions(folder: Path) -> list[RankPosition]:
    """Request a stack from each rank of this node and return the ranks that have begun, by number.
    It takes as long as the slowest rank, three seconds at most."""
    states = sorted(rank_files.rank_states(folder), key=lambda state: state.rank)
    for state in states:
        if state.process is not None and state.process.is_alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(state.process.pid, signal.SIGUSR1)
    deadline = time.monotonic() + _STACK_WAIT_S
    while time.monotonic() < deadline and not all(_stack(folder, one) for one in states):
        time.sleep(_HANG_POLL_S)
    time.sleep(_HANG_POLL_S)  # the last one may be writing
    return [RankPosition(state, _stack(folder, state)) for state in states]


def blocking_ranks(found: Sequence[RankPosition], ranks: Sequence[int]) -> str:
    """Return a text that names the `ranks` of this node that the others wait for.

    >>> one = rank_files.RankState(1, None, 3, "all_reduce")
    >>> blocking_ranks([RankPosition(one, "")], [1])
    'rank 1 does not respond, in: all_reduce'"""
    missing = sorted(set(ranks) - {one.state.rank for one in found})
    if missing:
        return f"{_numbers(missing)} {_does(missing, 'has', 'have')} not started"
    if silent := [one for one in found if not one.stack]:
        return _describe(silent, f"{_does(silent, 'does', 'do')} not respond")
    waiting = [one for one in found if one.waits]
    if waiting and (busy := [one for one in found if not one.waits]):
        return _describe(busy, f"{_does(busy, 'delays', 'delay')} the other ranks")
    fewest = min(one.state.steps for one in found)
    behind = [one for one in found if one.state.steps == fewest]
    if len(behind) < len(found):
        return _describe(behind, f"{_does(behind, 'is', 'are')} behind")
    if waiting:
        return _describe(
            found, f"{_does(found, 'waits', 'wait for each other or')} for another node"
        )
    return _describe(found, f"{_does(found, 'makes', 'make')} no progress")


def stacks_kept(folder: Path) -> list[tuple[str, str]]:
    """Return the file name and the text, bounded, of each stack that ranks of this node wrote."""
    return [(path.name, _text(path)) for path in sorted(folder.glob("rank-*.stacks"))]


def _describe(ranks: Sequence[RankPosition], what: str) -> str:
    """Describe ranks in the same state by the step and the stack of the first of them."""
    first = ranks[0].state
    whose = "its stack" if len(ranks) == 1 else f"the stack of rank {first.rank}"
    where = f"; {whose}: {ranks[0].where()}" if ranks[0].stack else ""
    return f"{_numbers([one.state.rank for one in ranks])} {what}, in: {first.step}{where}"


def _numbers(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _does(ranks: Sequence[object], one: str, several: str) -> str:
    return one if len(ranks) == 1 else several


def _stack(folder: Path, state: rank_files.RankState) -> str:
    return _text(folder / rank_files.stacks_name(state.rank))


def _text(path: Path) -> str:
    """Return the begin of a rank's stacks; empty if it wrote none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        return file.read(_MOST_BYTES).decode(errors="replace")


logger = logging.getLogger(__name__)

PATIENCE_S = 120.0
RANK = "collector.comm.rank"
Tick = Callable[[int], None]
_STARTING_S = 300.0  # of python and torch, from a cold disk
_LOG, _RANK_LOGS = "torchrun.log", "ranks"
_GANG_POLL_S = 1.0  # between reads of the files: the ranks need the cores
_TAIL = 3  # last lines of a rank's output
_OF_RANK = re.compile(r"^\[rank\d+\]:")  # torch's prefix of a traceback
_ROOT_CAUSE = "Root Cause"  # torchrun's report: all failures, this heading, the first of them
_FAILURE = re.compile(r"rank\s*:\s*(\d+) \(local_rank: (\d+)\).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The number of ranks and nodes, and the address where they meet: torchrun's options of these
    names. Port 0 is any free port, for a single node."""

    nproc_per_node: int
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 0

    @property
    def world(self) -> int:
        return self.nproc_per_node * self.nnodes

    @property
    def ranks(self) -> range:
        """The ranks of this node."""
        first = self.node_rank * self.nproc_per_node
        return range(first, first + self.nproc_per_node)

    @property
    def is_first(self) -> bool:
        """Return whether this node has rank 0, which gathers the results of all ranks."""
        return self.node_rank == 0


def rendezvous_of(
    world: int,
    nproc_per_node: int | None,
    nnodes: int,
    node_rank: int,
    master_addr: str,
    master_port: int,
) -> Rendezvous:
    """Return the rendezvous of a world of ranks: equally many on each node, unless `nproc_per_node`
    is given. Raises BadInput if nodes times ranks is not `world`."""
    local = nproc_per_node or max(1, world // nnodes)
    if local * nnodes != world:
        raise BadInput(
            f"expected {world} ranks, got {local * nnodes} ({nnodes} nodes x {local} ranks)"
        )
    return Rendezvous(local, nnodes, node_rank, master_addr, master_port)


class GangPlan(Protocol):
    """The plan of the ranks, as far as the process that starts them uses it."""

    @property
    def backend(self) -> str: ...

    def to_json(self) -> str: ...


class GangFailed(OpmeterError):
    """A bench did not finish; the message names the rank that ended it, its step and the reason."""


class RanksHang(GangFailed):
    """No rank of this node made a step for too long: the ranks wait for something."""


class PeerLeft(GangFailed):
    """Another node of the gang is lost or was stopped: no case and no rank is the cause."""


@dataclass(frozen=True, slots=True)
class GangWork:
    """The work of the ranks; each runs the module `program`. `tick` gets the number of measured
    cases of all rounds, and may raise GangFailed to end the ranks; `environment` is added to that
    of the ranks; `begins` is called before the first rank of this node starts. `nodes_agree` if the
    nodes have compared the TLS switches of their ports already: the ranks do it otherwise."""

    plan: GangPlan
    program: str = RANK
    patience_s: float = PATIENCE_S
    tick: Tick = lambda measured: None
    environment: Mapping[str, str] = field(default_factory=dict)
    begins: Callable[[], None] = lambda: None
    nodes_agree: bool = False


StartRanks = Callable[[GangWork, int, Path], None]
"""Starts a number of ranks, on any nodes, and watches them as `run_gang` does; the folder gets the
results that rank 0 gathers."""


def run_gang(work: GangWork, meeting: Rendezvous, folder: Path) -> None:
    """Run the ranks of this node in an empty folder. Raises GangFailed; BadInput if the ranks
    cannot meet, HostFault if one of their devices is broken."""
    meeting = checked(meeting)
    if work.plan.backend == "npu" and shutil.which("npu-smi"):
        check_health(count=meeting.nproc_per_node)
        if meeting.nnodes > 1:
            check_links(meeting.nproc_per_node)
    if work.plan.backend == "npu" and meeting.nnodes > 1 and not work.nodes_agree:
        (folder / rank_files.TLS).write_text(tls_switches(meeting.nproc_per_node))
    (folder / rank_files.PLAN).write_text(work.plan.to_json())
    work.begins()
    with (folder / _LOG).open("wb") as log:
        process = subprocess.Popen(
            _command(meeting, folder, work.program),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={
                **os.environ,
                "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
                **_environment(work.plan.backend, meeting),
                **work.environment,
            },
            start_new_session=True,
        )
    try:
        _watch(process, folder, meeting, work)
    finally:
        # torchrun gives each rank its own process group
        for state in rank_files.rank_states(folder):
            if state.process is not None:
                state.process.kill()
        end_group(process)


def start_here(work: GangWork, world: int, folder: Path) -> None:
    """Run all ranks on this node."""
    run_gang(work, Rendezvous(world), folder)


def checked(meeting: Rendezvous) -> Rendezvous:
    """Return the rendezvous with a free port. Raises BadInput, before any rank starts, for errors
    that later look like a hang."""
    if not 0 <= meeting.node_rank < meeting.nnodes:
        raise BadInput(f"--node-rank: expected 0 to {meeting.nnodes - 1}, got {meeting.node_rank}")
    if meeting.nnodes > 1 and not meeting.master_port:
        raise BadInput(
            f"--master-port: {meeting.nnodes} nodes require a port, the same on every node"
        )
    try:
        socket.getaddrinfo(meeting.master_addr, meeting.master_port)
    except OSError as error:
        raise BadInput(f"--master-addr {meeting.master_addr}: {error.strerror}") from error
    if not meeting.is_first:
        return meeting
    return replace(meeting, master_port=free_port(meeting.master_port))


def free_port(port: int = 0) -> int:
    """Return a port for the rendezvous: the given one, or any free one for 0. Raises BadInput if it
    is in use."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("", port))
        except OSError as error:
            raise BadInput(f"--master-port {port}: {error.strerror}") from error
        found: int = taken.getsockname()[1]
    return found


def _command(meeting: Rendezvous, folder: Path, program: str) -> list[str]:
    return [
        *(sys.executable, "-P", "-m", "collector.comm.agent", str(os.getpid())),
        *("--nnodes", str(meeting.nnodes), "--node-rank", str(meeting.node_rank)),
        *("--nproc-per-node", str(meeting.nproc_per_node), "--max-restarts", "0"),
        *("--master-addr", meeting.master_addr, "--master-port", str(meeting.master_port)),
        *("--redirects", "3", "--log-dir", str(folder / _RANK_LOGS)),
        *("-m", "collector.comm.rank_process", program, str(folder)),
    ]


def _environment(backend: str, meeting: Rendezvous) -> dict[str, str]:
    """Return the environment of ranks: on an NPU a serving stack's custom operators, including
    those of experts, and the node's address among several, if its interface is named; on the cpu
    the allocator that their stack names, and equal shares of the cores, where torchrun would give
    each rank one core."""
    if backend == "npu":
        added = with_custom_opp(os.environ, installed_vllm())
        address = interface_address() if meeting.nnodes > 1 else ""
        return added | ({"HCCL_IF_IP": address} if address else {})
    if backend != "cpu":
        return {}
    share = max(1, (os.cpu_count() or 1) // meeting.nproc_per_node)
    return {"OMP_NUM_THREADS": str(share), **CPU_ALLOCATOR}


def _watch(
    process: "subprocess.Popen[bytes]", folder: Path, meeting: Rendezvous, work: GangWork
) -> None:
    """Wait until all ranks have ended. A step is a line in any rank's journal. The limit is longer
    for the first step of each rank, and for ranks of other nodes, whose journals are not here."""
    steps, since = -1, time.monotonic()
    results, measured = GrowingFile(folder / rank_files.RESULTS), 0
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GANG_POLL_S)
        states = rank_files.rank_states(folder)
        measured += len(results.new())
        work.tick(measured)
        if process.returncode == 0:
            return
        if process.returncode is not None:
            raise GangFailed(_reason(process.returncode, states, folder))
        if (now := sum(state.steps for state in states)) > steps:
            steps, since = now, time.monotonic()
            continue
        begun = len(states) == meeting.nproc_per_node
        begun &= meeting.nnodes == 1 or rank_files.have_met(folder)
        limit_s = work.patience_s if begun else max(work.patience_s, _STARTING_S)
        if time.monotonic() - since > limit_s:
            raise RanksHang(_hang(meeting, limit_s, folder))


def _reason(code: int, states: list[rank_files.RankState], folder: Path) -> str:
    """Return the rank that ended first, its step, and the last lines of its output."""
    reported = (folder / _LOG).read_text(errors="replace")
    others, heading, root = reported.partition(_ROOT_CAUSE)
    failures = [tuple(map(int, one)) for part in (root, others) for one in _FAILURE.findall(part)]
    if not heading or not failures:
        return f"torchrun {describe_end(code)}: {_last_lines(reported)}"
    # torchrun may report a rank that lost its connection before the rank that a signal ended.
    killed = (one for one in failures if one[2] < 0 and one[2] != -signal.SIGTERM)
    rank, local, exit_code = next(killed, failures[0])
    step = next((state.step for state in states if state.rank == rank), "before its first step")
    errors = sorted((folder / _RANK_LOGS).glob(f"*/attempt_0/{local}/stderr.log"))
    words = _last_lines(errors[-1].read_text(errors="replace")) if errors else ""
    return f"rank {rank} {describe_end(exit_code)} in: {step}{': ' if words else ''}{words}"


def _hang(meeting: Rendezvous, patience_s: float, folder: Path) -> str:
    """Return the ranks that the others wait for, and log the stack of each rank of this node."""
    found = rank_positions(folder)
    for name, stack in stacks_kept(folder):
        logger.warning("no rank makes progress; %s: %s", name, stack or "no stack was written")
    if not found:
        return f"no rank of this node started within {patience_s:g} s"
    return f"no rank made progress for {patience_s:g} s; {blocking_ranks(found, meeting.ranks)}"


def _last_lines(text: str) -> str:
    """Return the last lines of a text in one line; of a traceback only its final error."""
    plain = (_OF_RANK.sub("", line).strip() for line in text.splitlines())
    lines = [line for line in plain if line]
    count = 1 if "Traceback (most recent call last):" in lines else _TAIL
    return " | ".join(lines[-count:])
