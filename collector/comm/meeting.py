"""How the nodes of a gang come together, without a name service: all begin at once, or none does.

The first node, who has rank 0, opens a port and leaves a `Place` where the others look. They
connect, say who they are, and are told what their ranks are to do as soon as all are there. Each
connection stands as long as the gang does: whichever node fails, ends or is lost ends it for all,
and they meet again for the next one.
"""

import contextlib
import hmac
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from collector.canonical import canonical_json
from collector.comm.connection import LONGEST_BYTES, Connection, Gone
from collector.comm.gang import GangFailed, GangWork, PeerLeft, Rendezvous, Tick, run_gang
from collector.comm.rank_files import have_met
from collector.decoding import decode_object, decode_value
from collector.errors import BadInput, HostFault, PeersAway

GATHER_S = 600.0  # until all nodes are there: images are pulled, other pods end
_LOOK_S = 1.0
_CONNECT_S = 10.0
_HELLO_S, _HELLO_BYTES = 5.0, 4096
_WORD_S = 10.0  # for the first node to say that it was its own ranks that failed
_LAST_WORDS_S = 5.0  # for why another node's ranks ended, after ours did
_PROGRAMS = "collector.comm."  # where modules of ranks lie


class Unreached(Gone):
    """Nobody answers where the first node is said to be."""


class EndedElsewhere(GangFailed):
    """Ranks of another node have failed."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the first node waits for the others. The token tells one meeting from the next."""

    host: str
    port: int
    token: str

    def to_json(self) -> bytes:
        return canonical_json(asdict(self))


@dataclass(frozen=True, slots=True)
class Order:
    """What the ranks of every node are to do, and where they meet."""

    plan: str
    backend: str
    program: str
    environment: Mapping[str, str]
    patience_s: float
    nproc_per_node: int
    nnodes: int
    master_addr: str
    master_port: int

    def to_json(self) -> str:
        """The plan's: whoever starts ranks writes it down for them."""
        return self.plan


def order_of(work: GangWork, meeting: Rendezvous) -> Order:
    """The order for the others to do the same work; each node watches over it by its own tick."""
    return Order(
        work.plan.to_json(),
        work.plan.backend,
        work.program,
        dict(work.environment),
        work.patience_s,
        meeting.nproc_per_node,
        meeting.nnodes,
        meeting.master_addr,
        meeting.master_port,
    )


class Lead:
    """The first node of a gang of `nodes`, at the address `host`, which the others reach."""

    def __init__(self, host: str, nodes: int):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._server = socket.create_server(("", 0), family=family)
        except OSError as error:
            raise GangFailed(f"cannot open a port for the other nodes: {error}") from error
        self._nodes = nodes
        self._others: dict[int, Connection] = {}
        self._ended: dict[int, str] = {}
        self.place = Place(host, self._server.getsockname()[1], secrets.token_hex(16))

    def __enter__(self) -> "Lead":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for other in self._others.values():
            other.close()
        self._server.close()

    def gather(self, limit_s: float, tick: Tick) -> None:
        """Wait until every node is there; `tick` may end that. Raises PeersAway."""
        deadline = time.monotonic() + limit_s
        self._server.settimeout(_LOOK_S)
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
            except OSError:  # nobody came, or whoever came has left
                continue
            self._greet(Connection(link, str(address[0])))

    def begin(self, order: Order) -> None:
        """Tell every node what to do. Raises Gone where one has left."""
        for other in self._others.values():
            other.say({"order": asdict(order)})

    def blame_ours(self, reason: str) -> None:
        """Tell the others that ranks of this node failed by themselves, and took theirs along."""
        for other in self._others.values():
            with contextlib.suppress(Gone):
                other.say({"over": reason})

    def check(self) -> None:
        """Raise EndedElsewhere where another node's ranks have failed, PeerLeft where it was told
        to stop or is gone."""
        for rank, other in self._others.items():
            if rank not in self._ended and (said := other.heard()) is not None:
                if "left" in said:
                    raise PeerLeft(f"{other.other}: {said['left']}")
                self._ended[rank] = str(said.get("ended", ""))
            if self._ended.get(rank):
                raise EndedElsewhere(f"{other.other}: {self._ended[rank]}")

    def last_words(self) -> str:
        """Why the ranks of another node have ended, where one says so within a few seconds."""
        deadline = time.monotonic() + _LAST_WORDS_S
        while len(self._ended) < len(self._others) and time.monotonic() < deadline:
            try:
                self.check()
            except GangFailed as error:
                return str(error)
            time.sleep(_LOOK_S / 10)
        return ""

    def _forget_gone(self) -> None:
        for rank, other in list(self._others.items()):
            try:
                other.heard()
            except Gone:
                other.close()
                del self._others[rank]

    def _greet(self, other: Connection) -> None:
        """Whoever knows the token and its own number is one of ours; it may come anew."""
        other.longest_bytes = _HELLO_BYTES
        try:
            said = other.heard(_HELLO_S) or {}
        except Gone:
            said = {}
        other.longest_bytes = LONGEST_BYTES
        rank, token = said.get("node_rank"), str(said.get("token", "")).encode()
        known = hmac.compare_digest(token, self.place.token.encode())
        if not (known and type(rank) is int and 0 < rank < self._nodes):
            other.close()
            return
        other.other = f"node {rank} ({str(said.get('node', ''))[:64]})"
        if rank in self._others:
            self._others[rank].close()
        self._others[rank] = other


def follow(place: Place, node_rank: int, node: str, folder: Path, tick: Tick) -> None:
    """Run this node's ranks for whoever leads at a place, once, in an empty folder; `tick` may
    raise PeerLeft to end them, where this node is told to stop. Raises Unreached where nobody
    answers there, Gone where nobody leads there any more, and GangFailed where the ranks here came
    to no good end by themselves."""
    try:
        link = socket.create_connection((place.host, place.port), timeout=_CONNECT_S)
    except OSError as error:
        raise Unreached(
            f"cannot reach the first node at {place.host}:{place.port}: {error}"
        ) from error
    lead = Connection(link, f"the first node ({place.host})")
    try:
        lead.say({"token": place.token, "node_rank": node_rank, "node": node})
        order = _wait_for_order(lead, tick)
        _run(lead, order, node_rank, folder, tick)
    finally:
        lead.close()


def place_from_json(data: bytes, *, key: str) -> Place:
    """The place that `to_json` wrote. BadInput for anything else."""
    return decode_object(Place, data, what="a meeting of a gang", key=key)


def _wait_for_order(lead: Connection, tick: Tick) -> Order:
    while (said := lead.heard(_LOOK_S)) is None:
        tick(0)
    try:
        order = decode_value(Order, said.get("order"), what="an order", key=lead.other)
    except BadInput as error:
        raise Gone(str(error)) from error
    if not order.program.startswith(_PROGRAMS):
        raise Gone(f"{lead.other}: expected a program of {_PROGRAMS}*, got {order.program!r}")
    return order


def _run(lead: Connection, order: Order, node_rank: int, folder: Path, tick: Tick) -> None:
    def still_led(measured: int) -> None:
        tick(measured)
        lead.heard()

    meeting = Rendezvous(
        order.nproc_per_node, order.nnodes, node_rank, order.master_addr, order.master_port
    )
    try:
        work = GangWork(order, order.program, order.patience_s, still_led, order.environment)
        run_gang(work, meeting, folder)
    except PeerLeft as error:  # whoever leads, or this node was told to stop
        if not isinstance(error, Gone):
            lead.say({"left": str(error)})
        raise
    except (GangFailed, BadInput, HostFault) as error:
        lead.say({"ended": str(error) or "its ranks were terminated"})
        if not have_met(folder) and (word := lead.heard(_WORD_S)) is not None and "over" in word:
            raise Gone(f"{lead.other}: {word['over']}") from error
        raise
    lead.say({"ended": ""})
