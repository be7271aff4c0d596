"""Rendezvous of the nodes of a gang without a name service: all begin together, or none does.

The first node, which has rank 0, opens a port and publishes a `MeetingAddress` for the others. They
connect, identify themselves, and get the work of their ranks when all nodes are there. Each
connection lasts as long as the gang: if any node fails, ends or is lost, the gang ends on all
nodes, and they meet again for the next one.
"""

import contextlib
import hmac
import json
import logging
import secrets
import select
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from collector.codec.canonical import canonical_json, decode_object, decode_value
from collector.codec.errors import BadInput, HostFault, PeersAway, PeersUnreached, StoreError
from collector.comm.gang import (
    GangFailed,
    GangWork,
    PeerLeft,
    RanksHang,
    Rendezvous,
    Tick,
    free_port,
    run_gang,
)
from collector.comm.rank_files import have_met, rank_states
from collector.host.machine import this_node
from collector.host.network import interface_address, tls_problem, tls_switches

# Lines of JSON between two nodes of a gang, over TCP; a lost node is detected.
#
# If the machine of the other end is gone, it sends no end of the connection. The kernel reports it:
# a connection that is silent for half a minute, keep-alives included, is lost.

_SEND_S = 30.0
# The kernel detects a lost machine after 10 s of silence and 3 keep-alives 5 s apart.
_IDLE_S, _BETWEEN_S, _COUNT = 10, 5, 3
_AT_ONCE_BYTES = 1 << 16
LONGEST_BYTES = 1 << 26  # a plan of every collective of a site is a thousandth of it

Message = Mapping[str, Any]


class Gone(PeerLeft):
    """The other end of the connection is gone."""


class NodeConnection:
    """A connection to another node. Raises Gone if the other end has left."""

    def __init__(self, link: socket.socket, other: str):
        self._link, self.other = link, other
        self._unread = bytearray()
        self.longest_bytes = LONGEST_BYTES
        link.settimeout(_SEND_S)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _BETWEEN_S)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _COUNT)
        # Keep-alives do not cover data that was sent and is not acknowledged.
        silent_s = _IDLE_S + _BETWEEN_S * _COUNT
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * silent_s)

    def fileno(self) -> int:
        return self._link.fileno()

    def send(self, message: Message) -> None:
        """Send one message."""
        try:
            self._link.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise Gone(f"{self.other}: cannot send a message: {error}") from error

    def receive(self, wait_s: float = 0.0) -> Message | None:
        """Return the next message; None if no complete message arrives within `wait_s`."""
        deadline = time.monotonic() + wait_s
        while b"\n" not in self._unread:
            left_s = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self._link], [], [], left_s)
            if not ready:
                return None
            self._read()
        line, _, rest = bytes(self._unread).partition(b"\n")
        self._unread = bytearray(rest)
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Gone(f"{self.other}: expected a gang message in JSON, got other bytes") from error
        if not isinstance(found, dict):
            raise Gone(f"{self.other}: expected a JSON object, got {type(found).__name__}")
        return found

    def close(self) -> None:
        self._link.close()

    def _read(self) -> None:
        try:
            more = self._link.recv(_AT_ONCE_BYTES)
        except OSError as error:
            raise Gone(f"{self.other}: connection lost: {error}") from error
        if not more:
            raise Gone(f"{self.other}: connection closed")
        if len(self._unread) > self.longest_bytes:
            raise Gone(
                f"{self.other}: expected a message of at most {self.longest_bytes} bytes, got more"
            )
        self._unread += more


GATHER_S = 600.0  # until all nodes are there: images are pulled, other pods end
_POLL_S = 1.0
_CONNECT_S = 10.0
_HELLO_S, _HELLO_BYTES = 5.0, 4096
_WORD_S = 10.0  # for the first node to report that its own ranks failed
_LAST_WORDS_S = 5.0  # for another node to report why its ranks ended, after the local ranks did
_PROGRAMS = "collector.comm."  # package of the ranks' modules


class Unreached(Gone):
    """No process listens at the address of the first node."""


class EndedElsewhere(GangFailed):
    """Ranks of another node have failed."""


@dataclass(frozen=True, slots=True)
class MeetingAddress:
    """The address where the first node waits for the others. The token identifies one meeting."""

    host: str
    port: int
    token: str

    def to_json(self) -> bytes:
        return canonical_json(asdict(self))


@dataclass(frozen=True, slots=True)
class GangTask:
    """The work of the ranks of every node, and where they meet: as the first node. Each node uses
    its own tick."""

    plan: str
    backend: str
    program: str
    environment: Mapping[str, str]
    patience_s: float
    meeting: Rendezvous

    def to_json(self) -> str:
        """Return the JSON of the plan, which `run_gang` writes to a file for the ranks."""
        return self.plan


class Lead:
    """The first node of a gang of `nodes`, at the address `host`, which the others can reach."""

    def __init__(self, host: str, nodes: int):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._server = socket.create_server(("", 0), family=family)
        except OSError as error:
            raise GangFailed(f"cannot open a port for the other nodes: {error}") from error
        self._nodes = nodes
        self._others: dict[int, NodeConnection] = {}
        self._ended: dict[int, str] = {}
        self._tls: dict[int, str] = {}
        self.place = MeetingAddress(host, self._server.getsockname()[1], secrets.token_hex(16))

    def __enter__(self) -> "Lead":
        return self

    def __exit__(self, *failure: object) -> None:
        for other in self._others.values():
            other.close()
        self._server.close()

    def gather(self, limit_s: float, tick: Tick) -> None:
        """Wait until every node has connected; `tick` may end the wait. Raises PeersAway."""
        deadline = time.monotonic() + limit_s
        self._server.settimeout(_POLL_S)
        while len(self._others) < self._nodes - 1:
            tick(0)
            self._forget_gone()
            if time.monotonic() > deadline:
                missing = sorted(set(range(1, self._nodes)) - set(self._others))
                raise PeersAway(
                    f"expected {self._nodes} nodes of the gang, nodes "
                    f"{', '.join(map(str, missing))} did not connect within {limit_s:g} s"
                )
            try:
                link, address = self._server.accept()
            except OSError:  # no connection, or a node that connected has left
                continue
            self._greet(NodeConnection(link, str(address[0])))

    def check_tls(self) -> None:
        """Raise PeersUnreached, with the nodes, unless the ports of all NPUs of all nodes have the
        same state of their TLS switch."""
        others = ((other.other, self._tls[rank]) for rank, other in self._others.items())
        if problem := tls_problem([(this_node(), tls_switches()), *others]):
            raise PeersUnreached(problem)

    def begin(self, order: GangTask) -> None:
        """Send the order to every node. Raises Gone if a node has left."""
        for other in self._others.values():
            other.send({"order": asdict(order)})

    def blame_ours(self, reason: str) -> None:
        """Report to the other nodes that ranks of this node failed first and ended theirs."""
        for other in self._others.values():
            with contextlib.suppress(Gone):
                other.send({"over": reason})

    def check(self) -> None:
        """Raise EndedElsewhere if another node's ranks have failed, PeerLeft if another node was
        stopped or is gone."""
        for rank, other in self._others.items():
            if rank not in self._ended and (reported := other.receive()) is not None:
                if "left" in reported:
                    raise PeerLeft(f"{other.other}: {reported['left']}")
                self._ended[rank] = str(reported.get("ended", ""))
            if self._ended.get(rank):
                raise EndedElsewhere(f"{other.other}: {self._ended[rank]}")

    def end_reason(self) -> str:
        """Return why the ranks of another node ended, if a node reports it within a few seconds."""
        deadline = time.monotonic() + _LAST_WORDS_S
        while len(self._ended) < len(self._others) and time.monotonic() < deadline:
            try:
                self.check()
            except GangFailed as error:
                return str(error)
            time.sleep(_POLL_S / 10)
        return ""

    def _forget_gone(self) -> None:
        for rank, other in list(self._others.items()):
            try:
                other.receive()
            except Gone:
                other.close()
                del self._others[rank]

    def _greet(self, other: NodeConnection) -> None:
        """Accept a node that sends the token and its number; a node may connect again."""
        other.longest_bytes = _HELLO_BYTES
        try:
            reported = other.receive(_HELLO_S) or {}
        except Gone:
            reported = {}
        other.longest_bytes = LONGEST_BYTES
        rank, token = reported.get("node_rank"), str(reported.get("token", "")).encode()
        known = hmac.compare_digest(token, self.place.token.encode())
        if not (known and type(rank) is int and 0 < rank < self._nodes):
            other.close()
            return
        other.other = f"node {rank} ({str(reported.get('node', ''))[:64]})"
        if rank in self._others:
            self._others[rank].close()
        self._others[rank] = other
        self._tls[rank] = str(reported.get("tls", ""))[:16]


def follow(address: MeetingAddress, node_rank: int, node: str, folder: Path, tick: Tick) -> None:
    """Run this node's ranks for the first node at a place, once, in an empty folder. `tick` may
    raise PeerLeft to end them if this node is stopped. Raises Unreached if no process listens at
    the place, Gone if the first node has left, and GangFailed if the ranks of this node failed by
    themselves."""
    own, tls = interface_address(), tls_switches()
    source, place = (own, 0) if own else None, (address.host, address.port)
    try:
        link = socket.create_connection(place, timeout=_CONNECT_S, source_address=source)
    except OSError as error:
        over = f" from {own}" if own else ""
        raise Unreached(
            f"cannot reach the first node at {address.host}:{address.port}{over}: {error}"
        ) from error
    lead = NodeConnection(link, f"the first node ({address.host})")
    try:
        lead.send({"token": address.token, "node_rank": node_rank, "node": node, "tls": tls})
        order = _wait_for_order(lead, tick)
        _run(lead, order, node_rank, folder, tick)
    finally:
        lead.close()


def address_from_json(data: bytes, *, key: str) -> MeetingAddress:
    """Read the place that `to_json` wrote. Raises BadInput for anything else."""
    return decode_object(MeetingAddress, data, what="a meeting of a gang", key=key)


def _wait_for_order(lead: NodeConnection, tick: Tick) -> GangTask:
    while (reported := lead.receive(_POLL_S)) is None:
        tick(0)
    try:
        order = decode_value(GangTask, reported.get("order"), what="an order", key=lead.other)
    except BadInput as error:
        raise Gone(str(error)) from error
    if not order.program.startswith(_PROGRAMS):
        raise Gone(f"{lead.other}: expected a program of {_PROGRAMS}*, got {order.program!r}")
    return order


def _run(lead: NodeConnection, order: GangTask, node_rank: int, folder: Path, tick: Tick) -> None:
    def still_led(measured: int) -> None:
        tick(measured)
        lead.receive()

    try:
        work = GangWork(
            order,
            order.program,
            order.patience_s,
            still_led,
            order.environment,
            nodes_agree=True,
        )
        run_gang(work, replace(order.meeting, node_rank=node_rank), folder)
    except PeerLeft as error:  # the first node left, or this node was stopped
        if not isinstance(error, Gone):
            lead.send({"left": str(error)})
        raise
    except (GangFailed, BadInput, HostFault) as error:
        lead.send({"ended": str(error) or "its ranks were terminated"})
        if not have_met(folder) and (word := lead.receive(_WORD_S)) is not None and "over" in word:
            raise Gone(f"{lead.other}: {word['over']}") from error
        raise
    lead.send({"ended": ""})


# Start the ranks of a gang on several nodes, from the first node.

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OverNodes:
    """Ranks on several nodes, equally many on each. This node is the first and is reached at
    `host`; `publish` stores the place for the other nodes."""

    nodes: int
    host: str
    publish: Callable[[MeetingAddress], None]
    gather_s: float = GATHER_S

    def __call__(self, work: GangWork, world: int, folder: Path) -> None:
        """Run the ranks. If ranks of other nodes end before all have met, all nodes meet again,
        for `gather_s` in total. Raises GangFailed; PeersUnreached if they have not met by then."""
        if world % self.nodes:
            raise BadInput(f"ranks ({world}) must be divisible by nodes ({self.nodes})")
        deadline = time.monotonic() + self.gather_s
        while True:
            try:
                with Lead(self.host, self.nodes) as lead:
                    try:
                        self.publish(lead.place)
                    except StoreError as error:
                        raise PeersAway(
                            f"cannot publish the rendezvous address: {error}"
                        ) from error
                    lead.gather(max(0.0, deadline - time.monotonic()), work.tick)
                    if work.plan.backend == "npu":
                        lead.check_tls()
                    self._run(lead, work, world, folder)
                return
            except PeersUnreached:  # meeting again would change nothing
                raise
            except PeersAway as error:
                if time.monotonic() > deadline:
                    raise PeersUnreached(f"from {this_node()} ({self.host}): {error}") from error
                logger.warning("retrying the rendezvous of the gang: %s", error)
                shutil.rmtree(folder)
                folder.mkdir()

    def _run(self, lead: Lead, work: GangWork, world: int, folder: Path) -> None:
        def watched(measured: int) -> None:
            work.tick(measured)
            lead.check()

        local = world // self.nodes
        try:
            meeting = Rendezvous(local, self.nodes, 0, self.host, free_port())
            plan, environment = work.plan, dict(work.environment)
            same = (plan.to_json(), plan.backend, work.program, environment, work.patience_s)
            lead.begin(GangTask(*same, meeting))
            run_gang(replace(work, tick=watched, nodes_agree=True), meeting, folder)
        except BadInput as error:  # another process has taken the port in the meantime
            raise PeersAway(str(error)) from error
        except (EndedElsewhere, PeerLeft) as error:
            if not have_met(folder):
                raise PeersAway(str(error)) from error
            raise
        except GangFailed as error:
            # The first failing node ends the others, and they report only that it has left.
            lead.blame_ours(str(error))
            words = lead.end_reason()
            reported = f"{words}; on this node: {error}" if words else str(error)
            # The first failing node is unknown; or all have begun, and none reaches another.
            hang = isinstance(error, RanksHang) and len(rank_states(folder)) == local
            if not have_met(folder) and (words or hang):
                raise PeersAway(reported) from error
            raise GangFailed(reported) from error
        lead.end_reason()
