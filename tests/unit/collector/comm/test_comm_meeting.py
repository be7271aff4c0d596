"""Nodes of a gang meet over TCP: all begin, or none does, and none outlives the others."""

import contextlib
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from collector.codec.errors import BadInput, PeersAway, PeersUnreached
from collector.comm import meeting
from collector.comm.bench_plan import BenchPlan, Mode
from collector.comm.gang import RANK, GangFailed, GangWork, PeerLeft, RanksHang, Rendezvous
from collector.comm.meeting import (
    EndedElsewhere,
    GangTask,
    Gone,
    Lead,
    MeetingAddress,
    NodeConnection,
    OverNodes,
    Unreached,
    address_from_json,
    follow,
)
from collector.comm.rank_files import read_rank_results
from collector.ranks.collective import Collective
from collector.ranks.topology import Grid
from tests.unit.collector.naming import names, naming
from tests.waiting import wait_for

HOST = "127.0.0.1"


def nothing(measured: int) -> None:
    """A tick that changes nothing."""


class Guests:
    """Connections to a leader, closed at the end of a test."""

    def __init__(self) -> None:
        self.all: list[NodeConnection] = []

    def __call__(
        self, place: MeetingAddress, rank: object, token: str = "", tls: object = ""
    ) -> NodeConnection:
        link = socket.create_connection((place.host, place.port), timeout=5)
        self.all.append(NodeConnection(link, "lead"))
        hello = {"token": token or place.token, "node_rank": rank, "node": "n", "tls": tls}
        self.all[-1].send(hello)
        return self.all[-1]


@pytest.fixture
def joined() -> Iterator[Guests]:
    guests = Guests()
    yield guests
    for one in guests.all:
        one.close()


def order(**changes) -> GangTask:
    values = {
        "plan": "{}",
        "backend": "cpu",
        "program": RANK,
        "environment": {},
        "patience_s": 5.0,
        "meeting": Rendezvous(1, 2, 0, HOST, 1),
    }
    return GangTask(**values | changes)


class TestGathering:
    def test_node_joins_only_with_the_token_and_a_unique_number(self, joined) -> None:
        with Lead(HOST, 3) as lead:
            strangers = [
                joined(lead.place, 1, token="guessed"),
                joined(lead.place, 0),
                joined(lead.place, 3),
                joined(lead.place, "1"),
                joined(lead.place, True),
            ]
            ours = [joined(lead.place, 1), joined(lead.place, 2)]
            lead.gather(10, nothing)
            lead.begin(order())
            assert [one.receive(5)["order"]["program"] for one in ours] == [RANK, RANK]
            for stranger in strangers:
                with pytest.raises(Gone):
                    stranger.receive(5)

    def test_missing_node_is_named(self, joined) -> None:
        with Lead(HOST, 3) as lead:
            joined(lead.place, 1)
            with pytest.raises(PeersAway, match=naming("3 nodes", 2, "1 s")):
                lead.gather(1, nothing)

    def test_node_that_left_before_the_start_may_join_again(self, joined) -> None:
        with Lead(HOST, 3) as lead:
            joined(lead.place, 1).close()
            ticks = []

            def tick(measured: int) -> None:
                ticks.append(measured)
                if len(ticks) == 3:
                    joins.extend((joined(lead.place, 1), joined(lead.place, 2)))

            joins: list[NodeConnection] = []
            lead.gather(20, tick)
            lead.begin(order())
            assert all(one.receive(5) is not None for one in joins)

    def test_stop_request_ends_the_wait_for_nodes(self) -> None:
        def stop(measured: int) -> None:
            raise GangFailed("stop requested")

        with Lead(HOST, 2) as lead, pytest.raises(GangFailed, match="stop requested"):
            lead.gather(60, stop)

    @pytest.mark.parametrize(
        "noise",
        [
            b"GET / HTTP/1.1\r\n\r\n[1]\n",
            '{"token": "\u00e9", "node_rank": 1}\n'.encode(),
            b'{"token": "\\u00e9", "node_rank": 1}\n',
            b"[" * 100_000 + b"\n",
            b"x" * 100_000,
        ],
        ids=["http", "text", "escape", "brackets", "long"],
    )
    def test_invalid_data_on_the_port_ends_nothing(self, joined, noise: bytes) -> None:
        with Lead(HOST, 2) as lead:
            with socket.create_connection((HOST, lead.place.port)) as stranger:
                stranger.sendall(noise)
                ours = joined(lead.place, 1)
                lead.gather(10, nothing)
            assert ours.receive() is None

    def test_slow_connection_without_a_token_does_not_block_the_gathering(self, joined) -> None:
        with Lead(HOST, 2) as lead, socket.create_connection((HOST, lead.place.port)) as slow:
            stop = threading.Event()

            def speak() -> None:
                with contextlib.suppress(OSError):
                    while not stop.wait(0.5):
                        slow.sendall(b"x")

            speaker = threading.Thread(target=speak)
            speaker.start()
            began_s = time.monotonic()
            joined(lead.place, 1)
            lead.gather(30, nothing)
            assert time.monotonic() - began_s < 15
            stop.set()
            speaker.join()

    def test_stopped_node_is_not_a_failure_of_its_ranks(self, joined) -> None:
        with Lead(HOST, 2) as lead:
            other = joined(lead.place, 1)
            lead.gather(10, nothing)
            other.send({"left": "the pod received a request to stop"})
            with pytest.raises(
                PeerLeft, match=naming("node 1", "n", "the pod received a request to stop")
            ):
                wait_for(lambda: bool(lead.check()))

    def test_ranks_that_fail_on_another_node_are_reported_with_it(self, joined) -> None:
        with Lead(HOST, 2) as lead:
            other = joined(lead.place, 1)
            lead.gather(10, nothing)
            other.send({"ended": "rank 3 exited with 1"})
            assert names(lead.end_reason(), "node 1", "n", "rank 3 exited with 1")
            with pytest.raises(EndedElsewhere):
                lead.check()


def raising(error: GangFailed, steps: dict[int, int]) -> Callable[..., None]:
    """Start ranks that report this many steps each, and then end."""

    def run(work: GangWork, at: Rendezvous, folder: Path) -> None:
        for rank, count in steps.items():
            lines = [{"process": [1, 1], "step": "joining the others"}] * count
            message = "".join(json.dumps(line) + "\n" for line in lines)
            (folder / f"rank-{rank}.jsonl").write_text(message)
        raise error

    return run


class TestLeading:
    def test_unreached_nodes_are_reported_with_the_node_that_waited(self, tmp_path: Path) -> None:
        start = OverNodes(3, HOST, lambda place: None, gather_s=0.5)
        waited = r".*\b0\.\d+ s"
        with pytest.raises(PeersUnreached, match=naming(HOST, "3 nodes", "1, 2") + waited):
            start(GangWork(bench()), 3, tmp_path)

    def test_nodes_whose_npus_cannot_connect_are_named_and_do_not_start(
        self, tmp_path: Path, monkeypatch, joined
    ) -> None:
        ran: list[bool] = []
        monkeypatch.setattr(meeting, "run_gang", lambda work, *_: ran.append(work.nodes_agree))
        monkeypatch.setattr(meeting, "_LAST_WORDS_S", 0.1)
        monkeypatch.setenv("NODE_NAME", "n0")
        npus = GangWork(replace(bench(), backend="npu"))
        for ours, theirs, is_same in (
            ("off", "off", True),
            ("off", "", True),
            ("on", "off", False),
            ("off and on", "", False),
        ):
            monkeypatch.setattr(meeting, "tls_switches", lambda ours=ours: ours)
            start = OverNodes(2, HOST, lambda place, tls=theirs: joined(place, 1, tls=tls), 5.0)
            ran.clear()
            if is_same:
                start(npus, 4, tmp_path)
                assert ran == [True]  # the ranks do not compare them again
                continue
            reason = naming("n0", ours, "node 1 (n)", theirs or "unknown", "hccn_tool")
            with pytest.raises(PeersUnreached, match=reason):
                start(npus, 4, tmp_path)
            assert ran == []

    def test_begin_is_not_reported_before_all_nodes_have_joined(self, tmp_path: Path) -> None:
        begun: list[int] = []
        start = OverNodes(2, HOST, lambda place: None, gather_s=0.5)
        with pytest.raises(PeersUnreached):
            start(GangWork(bench(), begins=lambda: begun.append(1)), 4, tmp_path)
        assert begun == []

    @pytest.mark.parametrize(
        ("error", "steps", "found"),
        [
            (RanksHang("no rank took a step"), {0: 1, 1: 1}, PeersUnreached),
            (RanksHang("rank 1 has not started"), {0: 1}, GangFailed),
            (RanksHang("no rank took a step"), {0: 5, 1: 5}, GangFailed),
            (GangFailed("rank 0 exited with 1"), {0: 1, 1: 1}, GangFailed),
        ],
        ids=["none finds another", "one did not begin", "they had met", "one failed"],
    )
    def test_only_ranks_that_wait_for_others_report_unreachable_nodes(
        self, tmp_path: Path, monkeypatch, joined, error, steps, found
    ) -> None:
        monkeypatch.setattr(meeting, "run_gang", raising(error, steps))
        monkeypatch.setattr(meeting, "_LAST_WORDS_S", 0.1)
        start = OverNodes(2, HOST, lambda place: joined(place, 1), gather_s=0.0)
        monkeypatch.setattr(Lead, "gather", lambda lead, limit_s, tick: None)
        with pytest.raises(found, match=str(error)):
            start(GangWork(bench()), 4, tmp_path)


def other_of(lead: Lead) -> NodeConnection:
    (other,) = lead._others.values()
    return other


def refusal(folder: Path, says: Callable[[Lead], None]) -> BaseException:
    """Return the error of a following node for a message of the first one."""
    found: queue.Queue[BaseException] = queue.Queue()
    with Lead(HOST, 2) as lead:

        def run() -> None:
            try:
                follow(lead.place, 1, "n1", folder, nothing)
            except GangFailed as error:
                found.put(error)

        threading.Thread(target=run).start()
        lead.gather(10, nothing)
        says(lead)
        return found.get(timeout=20)


@pytest.mark.fast
class TestFollowing:
    def test_missing_leader_is_reported_with_its_address(self, tmp_path: Path) -> None:
        with Lead(HOST, 2) as lead:
            place = lead.place
        with pytest.raises(Unreached, match=naming(f"{place.host}:{place.port}")):
            follow(place, 1, "n1", tmp_path, nothing)

    def test_node_connects_from_the_named_interface(self, tmp_path: Path, monkeypatch) -> None:
        monkeypatch.setattr(meeting, "interface_address", lambda: "127.0.0.7")
        with socket.create_server((HOST, 0)) as first:
            place = MeetingAddress(HOST, first.getsockname()[1], "t")
            found: list[str] = []

            def accept() -> None:
                link, address = first.accept()
                found.append(address[0])
                link.close()

            thread = threading.Thread(target=accept)
            thread.start()
            with pytest.raises(Gone):
                follow(place, 1, "n1", tmp_path, nothing)
            thread.join()
        assert found == ["127.0.0.7"]
        with pytest.raises(Unreached, match="127.0.0.7"):
            follow(place, 1, "n1", tmp_path, nothing)

    @pytest.mark.parametrize(
        "message", [{"order": {"plan": 1}}, {}, {"order": None}, {"order": {"program": "os"}}]
    )
    def test_malformed_order_is_refused(self, tmp_path: Path, message: dict) -> None:
        assert isinstance(refusal(tmp_path, lambda lead: other_of(lead).send(message)), Gone)

    def test_program_outside_of_the_allowed_list_is_not_started(self, tmp_path: Path) -> None:
        found = refusal(tmp_path, lambda lead: lead.begin(order(program="http.server")))
        assert isinstance(found, Gone) and names(str(found), "'http.server'")

    def test_address_is_read_as_written_and_a_malformed_one_is_refused(self) -> None:
        place = MeetingAddress("10.0.0.1", 4711, "t")
        assert address_from_json(place.to_json(), key="k") == place
        with pytest.raises(BadInput, match=naming("k:", "port")):
            address_from_json(b'{"host": 1}', key="k")


def bench(sizes: tuple[int, ...] = (4096,), a_node: int = 2) -> BenchPlan:
    """Over two nodes of this many ranks."""
    ranks = 2 * a_node
    cases = tuple(Collective("all_reduce", size, "float32", ranks, 0) for size in sizes)
    return BenchPlan("cpu", Grid((2, a_node)), ranks, Mode.EVENT, 1, 0.05, (3, 10), cases)


class Node:
    """The second node of a gang, as a thread: it follows until it is stopped."""

    def __init__(self, folder: Path, number: int = 1):
        self.places: queue.Queue[MeetingAddress] = queue.Queue()
        self.errors: list[str] = []
        self.stop = threading.Event()
        self._folder, self._number = folder, number
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _tick(self, measured: int) -> None:
        if self.stop.is_set():
            raise PeerLeft("stop requested")

    def _run(self) -> None:
        for at in range(9):
            try:
                place = self.places.get(timeout=60)
            except queue.Empty:
                return
            folder = self._folder / f"try-{at}"
            folder.mkdir()
            try:
                follow(place, self._number, f"n{self._number}", folder, self._tick)
            except GangFailed as error:
                self.errors.append(str(error))
                if self.stop.is_set():
                    return
            else:
                return

    def join(self) -> None:
        self._thread.join(90)
        assert not self._thread.is_alive()


@pytest.mark.slow
@pytest.mark.torch
class TestRanks:
    def test_two_nodes_of_two_ranks_measure_together(self, tmp_path: Path) -> None:
        there, here = tmp_path / "n1", tmp_path / "n0"
        there.mkdir(), here.mkdir()
        other = Node(there)
        start = OverNodes(2, HOST, other.places.put, gather_s=30)
        start(GangWork(bench(), patience_s=60, environment={"X": "1"}), 4, here)
        other.join()
        (seen,) = read_rank_results(here)
        assert [one.rank for one in seen.ranks] == [0, 1, 2, 3]
        assert (seen.wrong, seen.left_out, other.errors) == ((), "", [])
        journals = sorted(path.name for path in tmp_path.rglob("rank-*.jsonl"))
        assert journals == [f"rank-{n}.jsonl" for n in range(4)]
        assert not list((there / "try-0").glob("results.jsonl"))

    def test_node_that_leaves_ends_the_gang_with_its_reason(self, tmp_path) -> None:
        there, here = tmp_path / "n1", tmp_path / "n0"
        there.mkdir(), here.mkdir()
        other = Node(there)
        began_s = time.monotonic()

        def tick(measured: int) -> None:
            if measured:
                other.stop.set()

        start = OverNodes(2, HOST, other.places.put, gather_s=30)
        plan = bench(tuple(4 * n for n in range(1, 200)), a_node=1)
        with pytest.raises(PeerLeft, match=naming("node 1", "n1", "stop requested")):
            start(GangWork(plan, patience_s=300, tick=tick), 2, here)
        other.join()
        assert time.monotonic() - began_s < 120
        assert other.errors == ["stop requested"]
        for path in tmp_path.rglob("rank-*.jsonl"):
            wait_for_its_end(path)


def wait_for_its_end(journal: Path) -> None:
    """Wait until the rank that wrote a journal has ended."""
    pid = json.loads(journal.read_text().splitlines()[0])["process"][0]
    wait_for(lambda: not Path(f"/proc/{pid}").exists())
