"""Which shard a device of this machine does next: the first that nobody has, and of those that
measure cases a second time the one that suits the device.

What sessions differ by, and what devices do, is told by such shards alone. Two in three go to
another device than their cases were measured on, one in three stays there, as far as there is a
choice: no device waits for a better one. What a doubtful session measured goes to another device
wherever there is one: that one is waited for.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from collector.errors import HostFault
from collector.plan import Plan, place_name
from collector.worker.machine import ThisMachine

_STAYS = 3  # every third


def place_here(plan: Plan, device: int) -> str:
    """The name of the place that a device of this machine is; empty where it does not tell."""
    machine = ThisMachine()
    with suppress(HostFault):
        return place_name(machine.node, machine.serial(plan, device) or "")
    return ""


class Todo:
    """The shards of a plan that are to be done by these devices of this machine, and who has which.
    `place_of` names the place that a device is."""

    def __init__(
        self,
        plan: Plan,
        shards: Sequence[str],
        devices: Sequence[int],
        place_of: Callable[[Plan, int], str] = place_here,
    ):
        self._left = list(shards)
        own = (one for one in plan.shards if one.not_on and one.shard_id in self._left)
        not_on = {one.shard_id: one.not_on for one in own}
        places = {device: place_of(plan, device) for device in devices} if not_on else {}
        self._barred = {
            shard: {device for device, place in places.items() if place == barred}
            for shard, barred in not_on.items()
            if set(places.values()) - {barred}
        }
        self._again_of = {one.shard_id: one.again_of for one in plan.shards if one.again_of}
        self._taken: dict[str, int] = {}
        self._lock = threading.Lock()

    def take(self, device: int) -> str | None:
        """The shard that a device does next; None where none is left that it may do."""
        with self._lock:
            left = [s for s in self._left if device not in self._barred.get(s, ())]
            if not left:
                return None
            shard = next_shard(left, device, self._again_of, self._taken)
            self._left.remove(shard)
            self._taken[shard] = device
            return shard


def next_shard(
    left: Sequence[str],
    device: int,
    again_of: Mapping[str, Sequence[str]],
    taken: Mapping[str, int],
) -> str:
    """The one of the shards `left` that a device does next. `again_of` are the shards in which the
    cases of one stand for the first time, in the plan's order, and `taken` says which device had
    which.

    Example: device 0 had s0 and device 1 had s1, and r0 measures cases of s0 again, r1 of s1. The
    first that is free, device 0, takes r1.
    """
    if left[0] not in again_of:
        return left[0]
    stays = {shard for at, shard in enumerate(again_of) if at % _STAYS == _STAYS - 1}

    def unfit(shard: str) -> float:
        of = again_of[shard]
        own = sum(taken.get(first) == device for first in of) / len(of)
        return 1 - own if shard in stays else own

    return min((shard for shard in left if shard in again_of), key=unfit)
