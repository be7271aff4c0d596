"""What the calls of a host take, from the sessions of a host in a database."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from collector.codec.errors import BadInput
from collector.codec.text import counted
from collector.database.host_sessions import LAUNCH, PASS, HostDecode
from collector.model.stack import HOST, backend_of
from collector.timeline.call_graph import Cause, Quantity
from opmeter.answers import Answer, Channel
from opmeter.version import Version

MEASURED_HOST = "host, measured"  # what makes one session slow makes all its calls slow


@dataclass(frozen=True, slots=True)
class HostCosts:
    """The durations of calls of a host in decodes of a model.

    directory  the version directory of the host"""

    directory: Version
    decode: HostDecode
    _known: dict[str, Quantity | None] = field(default_factory=dict)

    @classmethod
    def find(cls, directory: Version, decode: HostDecode) -> "HostCosts | None":
        """Return the costs in a version directory; None if it has none of these decodes."""
        found = cls(directory, decode)
        return found if found.call(PASS) and found.call(LAUNCH) else None

    def call(self, name: str) -> Quantity | None:
        """Return the duration of a call by its name; None if it was not measured."""
        if name not in self._known:
            self._known[name] = _quantity(name, self.answer(name))
        return self._known[name]

    def answer(self, name: str) -> Answer:
        """Return what the database answers for a call."""
        return self.directory.query_record(self.decode.record(name))

    @property
    def launches(self) -> int:
        """Return how many launches and messages the host issues in a pass."""
        whole, each = self.call(PASS), self.call(LAUNCH)
        return round(whole.value_us / each.value_us) if whole and each else 0

    def __str__(self) -> str:
        return f"{self.directory.path}, {counted(self.answer(PASS).support, 'session')}"


HostOf = Callable[[str], HostCosts | None]  # by the mode of a pass


def host_directories(there: Sequence[str], release: str, chosen: str | None = None) -> list[str]:
    """Return the version directories of hosts with a serving release, or the chosen one. Raises
    BadInput for another one."""
    name = f"vllm{release.rpartition('-')[2]}"
    found = [
        path
        for path in there
        if backend_of(path) == HOST and path.rpartition("/")[2].startswith((f"{name}.", f"{name}_"))
    ]
    if chosen is None:
        return found
    if chosen not in found:
        known = ", ".join(found) or "none"
        raise BadInput(f"--host: expected a host with {release} ({known}), got {chosen!r}")
    return [chosen]


def ranks_text(layout: Mapping[str, int]) -> str:
    """Return the layout of a decode: `tp=4,dp=1,ep=1`."""
    return ",".join(f"{name}={layout[name]}" for name in ("tp", "dp", "ep"))


def _quantity(name: str, found: Answer) -> Quantity | None:
    if found.channel is Channel.MISS:
        return None
    ends = (found.value_us, found.low_us, found.high_us)
    return Quantity(f"host, {name}", Cause.HOST, *ends, MEASURED_HOST)
