"""Whether this machine's devices may measure at the same time: a dozen reference cases, alone and
then on all devices at once."""

from collections.abc import Iterator
from contextlib import ExitStack

from collector.errors import BadInput
from collector.host.stack import device_locks
from collector.plan import Limits
from collector.replay.disturbance import Disturbance, concurrency_test
from collector.replay.lock import DeviceLock, scratch_folder
from jobs.doctor.machine import Check

_TOLERATED = 0.03
_SHOWN = 3


def check_concurrency(backend: str) -> Iterator[Check]:
    """What the devices cost each other. Raises BadInput where there is one only, DeviceBusy where
    somebody measures."""
    locks = device_locks(backend)
    if len(locks) < 2:
        raise BadInput(f"backend {backend}: this compares several devices of one machine, got one")
    with ExitStack() as held:
        for lock in locks:
            held.enter_context(DeviceLock(lock, "a concurrency test of devices"))
        folder = held.enter_context(scratch_folder(f"{backend}0"))
        found = concurrency_test(backend, range(len(locks)), folder, Limits())
    yield verdict(found, len(locks))


def verdict(found: list[Disturbance], devices: int) -> Check:
    """One check of all of them; the worst cases are named."""
    worst = ", ".join(f"{one.case} {one.slowdown:+.1%}" for one in found[:_SHOWN])
    fix = (
        f"measure on fewer devices at once: OPMETER_MEASURE_CONCURRENCY={max(1, devices // 2)}, or "
        "measure_concurrency of the site profile; then test again"
    )
    calm = not found or found[0].slowdown <= _TOLERATED
    return Check("together", calm, f"{devices} devices at once: {worst}", fix)
