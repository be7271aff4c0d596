"""Sessions of a host with made times."""

from collections.abc import Mapping, Sequence

from collector.database.host_sessions import HostDecode, HostSession, host_stack
from collector.database.merge import CREATE, merge_plans
from collector.host.machine import Cpu
from collector.quality.disturbances import Lap, Watch
from collector.store.base import Store
from collector.worker.complete_results import store_results

STACK = host_stack(
    Cpu("Made", 4, ("avx2",)), vllm="0.18.0", torch="2.9.0", torch_npu="2.9.0", cann="8.5.0"
)
DECODE = HostDecode("qwen3-32b", "tp=8,dp=1,ep=1", "eager")
PASSES = 20


def host_session(
    us: Mapping[str, float],
    number: int,
    decode: HostDecode = DECODE,
    *,
    waited_us: float = 0.0,
) -> HostSession:
    """Return a session in which each name takes as long as given, within 1 %."""
    times: Mapping[str, Sequence[float]] = {
        name: [each * (1 + at % 3 / 300) for at in range(PASSES)] for name, each in us.items()
    }
    laps = (Lap(1, 50_000.0, waited_us),) * PASSES
    at = f"2026-11-30T10:{number:02}:00+00:00"
    load = "decode of 1 requests of 512 tokens"
    return HostSession(STACK, decode, load, times, Watch(laps), at, at)


def publish_sessions(store: Store, *sessions: HostSession) -> None:
    """Store sessions as one version of the database."""
    plans = [store_results(store, one, 0, "made") for one in sessions]
    found = merge_plans(store, plans, guard=CREATE, author="test")
    assert not found.damaged and found.commit is not None
