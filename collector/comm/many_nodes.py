"""Starts the ranks of a gang on several nodes, from the first of them."""

import logging
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from collector.comm.gang import (
    GangFailed,
    GangWork,
    PeerLeft,
    RanksHang,
    Rendezvous,
    free_port,
    run_gang,
)
from collector.comm.meeting import GATHER_S, EndedElsewhere, Lead, Place, order_of
from collector.comm.rank_files import have_met, rank_states
from collector.errors import BadInput, PeersAway, PeersUnreached, StoreError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OverNodes:
    """So many nodes have the ranks between them, each as many as another. The first, which is this
    one, is reached at `host`; `publish` leaves the place where the others look for it."""

    nodes: int
    host: str
    publish: Callable[[Place], None]
    gather_s: float = GATHER_S

    def __call__(self, work: GangWork, world: int, folder: Path) -> None:
        """Where ranks of other nodes end before all have met, all meet again, for `gather_s` in
        all. Raises GangFailed; PeersUnreached where they have not met by then."""
        if world % self.nodes:
            raise BadInput(f"ranks ({world}) must be divisible by nodes ({self.nodes})")
        deadline = time.monotonic() + self.gather_s
        while True:
            try:
                with Lead(self.host, self.nodes) as lead:
                    self._publish(lead.place)
                    lead.gather(max(0.0, deadline - time.monotonic()), work.tick)
                    self._run(lead, work, world, folder)
                return
            except PeersAway as error:
                if time.monotonic() > deadline:
                    raise PeersUnreached(
                        f"from {platform.node()} ({self.host}): {error}"
                    ) from error
                logger.warning("retrying the rendezvous of the gang: %s", error)
                shutil.rmtree(folder)
                folder.mkdir()

    def _publish(self, place: Place) -> None:
        try:
            self.publish(place)
        except StoreError as error:
            raise PeersAway(f"cannot publish the rendezvous address: {error}") from error

    def _run(self, lead: Lead, work: GangWork, world: int, folder: Path) -> None:
        def watched(measured: int) -> None:
            work.tick(measured)
            lead.check()

        local = world // self.nodes
        try:
            meeting = Rendezvous(local, self.nodes, 0, self.host, free_port())
            lead.begin(order_of(work, meeting))
            run_gang(replace(work, tick=watched), meeting, folder)
        except BadInput as error:  # somebody has taken the port meanwhile
            raise PeersAway(str(error)) from error
        except (EndedElsewhere, PeerLeft) as error:
            if not have_met(folder):
                raise PeersAway(str(error)) from error
            raise
        except GangFailed as error:
            # The first who fails takes the others along, and these only say that it has left.
            lead.blame_ours(str(error))
            words = lead.last_words()
            said = f"{words}; on this node: {error}" if words else str(error)
            # Nobody knows which of them was the first; or all have begun, and none finds another.
            if not have_met(folder) and (words or _wait_for_others(error, local, folder)):
                raise PeersAway(said) from error
            raise GangFailed(said) from error
        lead.last_words()


def _wait_for_others(error: GangFailed, ranks: int, folder: Path) -> bool:
    """Whether all of so many ranks of this node have begun, and hang."""
    return isinstance(error, RanksHang) and len(rank_states(folder)) == ranks
