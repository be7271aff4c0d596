"""What every pod of a gang but the first does: run its ranks for whoever leads, until all is
committed.

The first pod has the shard: it measures, uploads and commits as any worker does, and leaves in the
store where the others find it. They hold nothing but their ranks; whichever pod is lost, killed or
evicted is made anew by its Job, and the gang meets again.
"""

import logging
import platform
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from collector import keys, surroundings
from collector.comm.gang import GangFailed, PeerLeft
from collector.comm.meeting import GATHER_S, Place, Unreached, follow, place_from_json
from collector.comm.rank_files import have_met
from collector.errors import BadInput, NotFound
from collector.store.base import Store
from collector.worker.exit_codes import ExitCode
from jobs.executor.local_run import LocalRunFailed
from jobs.objects.waves import Wave

logger = logging.getLogger(__name__)

_LOOK_S = 3.0  # between two looks for whoever leads

Follow = Callable[[Place, int, str, Path, Callable[[int], None]], None]


def follow_gang(
    store: Store,
    wave: Wave,
    index: int,
    scratch: Path,
    stop: threading.Event,
    uncommitted: Callable[[], Sequence[str]],
    follow: Follow = follow,
) -> None:
    """Run the ranks of one pod, meeting after meeting, until nothing is `uncommitted` or `stop` is
    set. Raises LocalRunFailed (exit 44) where the ranks of this node do not even begin, by
    themselves: another node may do better; with exit 47 where whoever leads was not reached for as
    long as nodes wait for each other. Raises whatever the store raises."""
    over: str = ""  # the token of the last meeting, which came to its end
    unreached_s: float | None = None  # since when nobody answers

    def tick(measured: int) -> None:
        if stop.is_set():
            raise PeerLeft("the pod received a request to stop")

    while not stop.is_set() and (left := uncommitted()):
        place = _place(store, wave)
        if place is None or place.token == over:
            surroundings.wait(stop, _LOOK_S)
            continue
        folder = scratch / f"gang-{surroundings.token(12)}"
        folder.mkdir(parents=True)
        try:
            follow(place, index, platform.node(), folder, tick)
            over, unreached_s = place.token, None
        except PeerLeft as error:
            logger.info("%s", error)
            now_s = surroundings.monotonic()
            unreached_s = (unreached_s or now_s) if isinstance(error, Unreached) else None
            if unreached_s is not None and now_s - unreached_s > GATHER_S:
                reason = f"from {platform.node()}, for {GATHER_S:g} s: {error}"
                raise LocalRunFailed(reason, ExitCode.PEERS, left[0]) from error
            surroundings.wait(stop, _LOOK_S)
        except (GangFailed, BadInput) as error:
            over, unreached_s = place.token, None
            logger.warning("%s", error)
            if not stop.is_set() and not have_met(folder):
                raise LocalRunFailed(str(error), ExitCode.NODE, left[0]) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _place(store: Store, wave: Wave) -> Place | None:
    """Where the first pod waits, by the last it said; None before it has said anything."""
    key = keys.meeting(wave.campaign, wave.wave_hash)
    try:
        return place_from_json(store.get(key), key=key)
    except NotFound:
        return None
    except BadInput as error:
        logger.warning("%s", error)
        return None
