"""Gangs over several pods: how their pods meet in a simulation, and the sessions of their ranks.

The leader and its followers are the real code; a `Meeting` replaces sockets and torchrun. Pods that
are gone have left it.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collector.codec.errors import PeersAway, PeersUnreached, StoreError
from collector.comm.gang import GangFailed, GangWork, PeerLeft, StartRanks, Tick
from collector.comm.meeting import GATHER_S, MeetingAddress, Unreached
from collector.measuring.batches import SessionResults
from collector.measuring.instrument import Keep, OnProgress
from collector.model.measurement import Provenance
from collector.model.plan import Plan, ShardCase
from tests.attack.simulation.device import Node, SimulatedInstrument, SimulatedMachine
from tests.attack.simulation.process import Process

_LOOK_S = 5.0
_PORT = 2345
_NO_PLAN: Any = None  # of a bench that is not run


@dataclass
class Meeting:
    """One attempt of a gang to run its ranks: its leader, and the pods that have joined, by
    number."""

    lead: Process
    others: dict[int, Process] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    failed: str = ""  # why ranks of another pod never began

    @property
    def is_led(self) -> bool:
        return not (self.lead.is_killed or self.over.is_set())

    def there(self) -> set[int]:
        return {number for number, process in self.others.items() if not process.is_killed}


Meetings = dict[str, Meeting]  # by the token of their address


@dataclass
class Lead:
    """The first pod of a gang: replaces `OverNodes` up to the first call of the ranks. `publish`
    stores the address where the others look for it."""

    process: Process
    pods: int
    meetings: Meetings
    publish: Callable[[MeetingAddress], None]

    def gather(self, stop: threading.Event) -> Meeting:
        """Return a meeting with all pods. Raises PeersUnreached, or GangFailed after a stop
        request."""
        world = self.process.world
        deadline_s = world.now + GATHER_S
        while True:
            token = f"{self.process.chance.getrandbits(128):032x}"
            meeting = self.meetings[token] = Meeting(self.process)
            try:
                self._publish(MeetingAddress(self.process.name, _PORT, token))
                self._wait(meeting, deadline_s, stop)
                return meeting
            except PeersAway as error:
                meeting.over.set()
                if world.now > deadline_s:
                    raise PeersUnreached(f"from {self.process.name}: {error}") from error

    def _publish(self, place: MeetingAddress) -> None:
        try:
            self.publish(place)
        except StoreError as error:
            raise PeersAway(f"cannot publish the rendezvous address: {error}") from error

    def _wait(self, meeting: Meeting, deadline_s: float, stop: threading.Event) -> None:
        while len(meeting.there()) < self.pods - 1:
            if stop.is_set():
                meeting.over.set()
                raise GangFailed("the gang received a request to stop")
            if meeting.failed:
                raise PeersAway(meeting.failed)
            if self.process.world.now > deadline_s:
                raise PeersAway("not all pods of a gang connected")
            self.process.world.wait(meeting.over, _LOOK_S)


class SimulatedGang(SimulatedInstrument):
    """Sessions of ranks, in several pods if there is a leader. They end when one pod is gone, and
    do not count if nothing was measured by then. `begins` is called when the ranks begin."""

    lead: Lead | None = None
    begins: Callable[[], None]
    _meeting: Meeting | None = None

    def measure(self, cases: Sequence[ShardCase], provenance: Provenance) -> SessionResults:
        if self.lead is None:
            self.begins()
            return super().measure(cases, provenance)
        try:
            meeting = self._meeting = self.lead.gather(self._stop)
        except GangFailed as error:
            return self._ended(provenance, (), str(error), began=False)
        try:
            self.begins()
            found = super().measure(cases, provenance)
        finally:
            meeting.over.set()
        if self._left() and not found.measurements:
            raise PeersAway(found.reason or "a pod of the gang is gone")
        return found

    def _interrupted(self) -> str:
        return super()._interrupted() or self._left()

    def _left(self) -> str:
        lead, meeting = self.lead, self._meeting
        lacks = lead and meeting and len(meeting.there()) < lead.pods - 1
        return "a pod of the gang is gone" if lacks else ""


class GangMachine(SimulatedMachine):
    """A node as a worker on it sees it, which may lead gangs."""

    lead: Lead | None = None

    def gang(
        self,
        plan: Plan,
        ranks: int,
        scratch: Path,
        stop: threading.Event,
        on_progress: OnProgress,
        start: StartRanks,
        keep: Keep,
    ) -> SimulatedGang:
        found = SimulatedGang(self._node, self._process, scratch, stop, on_progress)
        found.lead = self.lead
        found.begins = lambda: start(GangWork(plan=_NO_PLAN), ranks, scratch)
        return found


def start_simulated(work: GangWork, world: int, folder: Path) -> None:
    """Start no ranks; report that they would be started."""
    work.begins()


def follower(process: Process, node: Node, meetings: Meetings) -> Callable[..., None]:
    """Replaces `meeting.follow` of a real pod."""

    def follow(place: MeetingAddress, number: int, name: str, folder: Path, tick: Tick) -> None:
        process.world.pause(process.chance.random())
        meeting = meetings.get(place.token)
        if meeting is None or not meeting.is_led:
            raise Unreached(f"cannot reach the first node at {place.host}")
        if node.trouble:  # its ranks do not begin
            meeting.failed = f"ranks of {node.name} exited with 1"
            raise GangFailed(meeting.failed)
        meeting.others[number] = process
        try:
            while not meeting.over.is_set():
                if not meeting.is_led:
                    raise PeerLeft("the leader has ended")
                tick(0)
                process.world.wait(meeting.over, _LOOK_S)
        finally:
            meeting.others.pop(number, None)

    return follow
