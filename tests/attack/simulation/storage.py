"""The object store of a simulation: it keeps what it accepted, and replies with delays."""

from collections.abc import Callable, Iterator
from typing import Any

from collector.codec.errors import AlreadyExists, NotFound, StoreRefused, StoreUnavailable
from collector.store.base import Info, check_key, check_prefix
from tests.attack.simulation.faults import Faults
from tests.attack.simulation.process import Process
from tests.attack.simulation.world import Killed, World

URL = "s3://played/root"
_CALL_S = 0.02
_LATEST_S = 120.0

Watch = Callable[[str, str, bytes | None, bytes | None], None]


class Depot:
    """The objects. `watch` is called at every change: operation, key, before, after."""

    def __init__(self, world: World, faults: Faults):
        self.world, self.faults = world, faults
        self.objects: dict[str, bytes] = {}
        self.watch: Watch = lambda verb, key, before, after: None
        self.away_until = 0.0
        self.away_from: dict[str, float] = {}  # machine -> end of its network outage
        self.calls = 0
        self._shown_at: dict[str, float] = {}

    def reach(self, process: Process, machine: str = "") -> "Reach":
        """The store as a process on some machine reaches it."""
        return Reach(self, process, machine)

    def create(self, key: str, data: bytes) -> None:
        if key in self.objects:
            raise AlreadyExists(f"{URL}: {key}: object already exists")
        self._hold("create", key, data)

    def put(self, key: str, data: bytes) -> None:
        self._hold("put", key, data)

    def get(self, key: str) -> bytes:
        if key not in self.objects:
            raise NotFound(f"{URL}: {key} holds nothing")
        return self.objects[key]

    def copy(self, source: str, target: str) -> None:
        self._hold("copy", target, self.get(source))

    def delete(self, key: str) -> None:
        before = self.objects.pop(key, None)
        self.watch("delete", key, before, None)

    def list(self, prefix: str) -> list[Info]:
        now = self.world.now
        return [
            Info(key, len(self.objects[key]))
            for key in sorted(self.objects)
            if key.startswith(prefix) and self._shown_at.get(key, 0.0) <= now
        ]

    def _hold(self, verb: str, key: str, data: bytes) -> None:
        before = self.objects.get(key)
        self.objects[key] = bytes(data)
        if before is None and self.faults.list_lag_s:
            lag_s = self.world.chance.random() * self.faults.list_lag_s
            self._shown_at[key] = self.world.now + lag_s
        self.watch(verb, key, before, data)


class Reach:
    """The store of one process."""

    url = URL

    def __init__(self, depot: Depot, process: Process, machine: str):
        self._depot, self._process, self._machine = depot, process, machine

    def get(self, key: str) -> bytes:
        check_key(key)
        found: bytes = self._call("get", key, lambda: self._depot.get(key), writes=False)
        return found

    def put(self, key: str, data: bytes) -> None:
        check_key(key)
        self._call("put", key, lambda: self._depot.put(key, data), writes=True)

    def create(self, key: str, data: bytes) -> None:
        check_key(key)
        self._call("create", key, lambda: self._depot.create(key, data), writes=True)

    def list(self, prefix: str) -> Iterator[Info]:
        check_prefix(prefix)
        return iter(self._call("list", prefix, lambda: self._depot.list(prefix), writes=False))

    def copy(self, source: str, target: str) -> None:
        self._call("copy", target, lambda: self._depot.copy(source, target), writes=True)

    def delete(self, key: str) -> None:
        self._call("delete", key, lambda: self._depot.delete(key), writes=True)

    def _call(self, verb: str, key: str, effect: Callable[[], Any], *, writes: bool) -> Any:
        world, faults, chance = self._depot.world, self._depot.faults, self._process.chance
        slow = 100.0 if faults.slow and chance.random() < faults.slow else 1.0
        world.pause(chance.random() * _CALL_S * slow)
        self._depot.calls += 1
        if self._is_away():
            raise StoreUnavailable(f"{URL}: {key}: away")
        luck = chance.random()
        if luck < faults.unavailable:
            raise StoreUnavailable(f"{URL}: {key}: 503 Slow Down")
        if luck > 1.0 - faults.refused:
            raise StoreRefused(f"{URL}: {key}: 403 ExpiredToken")
        if writes and chance.random() < faults.late_write:
            world.after(chance.random() * _LATEST_S, lambda: self._late(verb, key, effect))
            raise StoreUnavailable(f"{URL}: {key}: the connection broke")
        try:
            answer = effect()
        except (AlreadyExists, NotFound) as error:
            self._say(verb, key, type(error).__name__)
            world.pause(chance.random() * _CALL_S)
            raise
        self._say(verb, key, "")
        world.pause(chance.random() * _CALL_S * slow)
        if writes and chance.random() < faults.lost_reply:
            raise StoreUnavailable(f"{URL}: {key}: the answer was lost")
        return answer

    def _late(self, verb: str, key: str, effect: Callable[[], Any]) -> None:
        """Delayed writes reach the store, whether a process waits for them or not."""
        try:
            effect()
        except (AlreadyExists, NotFound):
            return
        except Killed:
            return
        self._depot.world.say(f"(late) {verb} {key}")

    def _is_away(self) -> bool:
        depot = self._depot
        return depot.world.now < max(depot.away_until, depot.away_from.get(self._machine, 0.0))

    def _say(self, verb: str, key: str, how: str) -> None:
        if self._depot.world.is_traced:
            self._depot.world.say(f"{self._process.name}: {verb} {key} {how}")
