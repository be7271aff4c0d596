"""Checks of a machine with Ascend NPUs for `opmeter doctor`, each with a fix."""

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from collector.codec.errors import BadInput, HostFault
from collector.codec.scratch import scratch_folder
from collector.codec.text import percent
from collector.host.cann import cann_version
from collector.host.npus import check_health, cube_cores_of, list_npus
from collector.host.stack import device_locks
from collector.model.plan import Limits
from collector.replay.check_session import Interference, concurrency_test
from collector.replay.lock import DeviceLock
from jobs.doctor.machine import Check, check_versions
from jobs.doctor.npu_software import (
    check_cann,
    check_custom_opp,
    check_driver,
    check_import,
    check_msprof,
    check_parsers,
    check_profilers,
    check_static_kernels,
)

_DEVICES = "/dev/davinci* /dev/davinci_manager /dev/devmm_svm /dev/hisi_hdc"
_MOUNTS = "mount npu-smi, dcmi and the driver's lib64 into the container; on a host, install the "
_MOUNTS += "driver"
_REFUSED = re.compile(r"-8005|-8020")  # of dcmi: no permission, or used by another container
_NODES = ("davinci[0-9]*", "davinci_manager", "devmm_svm", "hisi_hdc")
_OF_GROUP = stat.S_IRGRP | stat.S_IWGRP


def is_npu_host(dev: Path = Path("/dev")) -> bool:
    """Return whether this machine is meant to measure NPUs: it has their device nodes, npu-smi,
    CANN or torch_npu."""
    has_tool = shutil.which("npu-smi") is not None or bool(device_nodes(dev))
    return has_tool or cann_version() is not None or find_spec("torch_npu") is not None


def device_nodes(dev: Path = Path("/dev")) -> list[Path]:
    """Return the nodes that a process opens to use an NPU, devices first."""
    return [path for pattern in _NODES for path in sorted(dev.glob(pattern))]


def check_npus(dev: Path = Path("/dev"), proc: Path = Path("/proc")) -> Iterator[Check]:
    """Check devices, driver, CANN, its profiler and the custom operators of vLLM-Ascend, causes
    before what follows from them."""
    devices, cann, versions = _check_devices(dev), check_cann(), check_versions()
    yield devices
    # Without npu-smi in a container, devices and driver may be there.
    causes = [devices] if shutil.which("npu-smi") else []
    yield _unless([devices], "health", _check_health)
    yield _unless([devices], "driver", check_driver)
    yield cann
    yield _unless([cann, *causes], "msprof", check_msprof)
    yield check_parsers()
    yield check_profilers(proc)
    yield _unless([versions, cann, *causes], "import", check_import)
    yield check_custom_opp()
    yield check_static_kernels()


def _unless(causes: Sequence[Check], name: str, check: Callable[[], Check]) -> Check:
    """Return the result of a check, or skip it if the cause of a failure is known."""
    failed = next((cause.name for cause in causes if not cause.ok), None)
    if failed is None:
        return check()
    return Check(name, True, f"not checked: follows from `{failed}`", skipped=True)


def _check_devices(dev: Path) -> Check:
    """Check that npu-smi lists devices, and that this process may open them."""
    problem = ""
    try:
        found = list_npus()
        cores = cube_cores_of(found[0])
        cores_text = f", {cores} cube cores" if cores else ""
        words = f"{len(found)} x {found[0].name}, {found[0].memory_gb} GB each{cores_text}"
    except (BadInput, HostFault) as error:
        problem = words = str(error)
    if shutil.which("npu-smi") is None:
        return Check("npu", False, words, _MOUNTS)
    if closed := _closed_node(dev):
        node, owner, group = closed
        groups = ",".join(map(str, sorted({os.getgid(), *os.getgroups()})))
        words = f"no permission on {node}, of {owner}: this is user {os.getuid()}, groups {groups}"
        fix = f"run as a member of group {group}: `docker run --group-add {group}`, on a host "
        fix += "`usermod -aG` and a new login, in pods `supplemental_groups` of the site profile"
        if group is None:
            fix = "run as its owner: `docker run --user`, in pods `run_as_user` of the site profile"
        return Check("npu", False, f"{words}; {problem}" if problem else words, fix)
    if not problem:
        return Check("npu", True, words)
    if _REFUSED.search(problem) and (refused := _refused_node(dev)):
        words = f"the device cgroup of this container refuses {refused}: {problem}"
        fix = f"start the container with --device for each of {_DEVICES}: a mount of /dev is not "
        fix += "enough; in a pod, see Static CPU manager in docs/reference/site-profile.md"
        return Check("npu", False, words, fix)
    if _REFUSED.search(problem):
        words = f"another container or a virtual machine has the device: {problem}"
        fix = "end that container (`docker ps` on the host), or use other devices: --device"
        return Check("npu", False, words, f"{fix} /dev/davinciN")
    if not any(dev.glob(_NODES[0])):
        fix = f"start the container with --device for each of {_DEVICES}; on a host, install the "
        return Check("npu", False, f"no {dev}/davinci*: {problem}", f"{fix}driver")
    return Check("npu", False, words, "install the driver and firmware of the NPUs")


def _closed_node(dev: Path) -> tuple[Path, str, int | None] | None:
    """Return a device node that this process may not open by its mode, its owner, and the id of
    its group if members may."""
    for node in device_nodes(dev):
        if not os.access(node, os.R_OK | os.W_OK):
            status = node.stat()
            owner = f"{_name(node.owner, status.st_uid)}:{_name(node.group, status.st_gid)}"
            group = status.st_gid if status.st_mode & _OF_GROUP == _OF_GROUP else None
            return node, f"{owner}, mode {status.st_mode & 0o777:o}", group
    return None


def _refused_node(dev: Path) -> Path | None:
    """Return a device node that this process may open by its mode, and yet cannot."""
    for node in device_nodes(dev):
        try:
            os.close(os.open(node, os.O_RDWR | os.O_CLOEXEC))
        except PermissionError:
            return node
        except OSError:  # of the driver: the device is used
            continue
    return None


def _name(query: Callable[[], str], number: int) -> str:
    try:
        return f"{query()} ({number})"
    except KeyError:  # a container has no name for an id of its host
        return str(number)


def _check_health() -> Check:
    fix = "npu-smi info -t health lists its faults; have it repaired"
    try:
        check_health()
        return Check("health", True, ", ".join(sorted({npu.health for npu in list_npus()})))
    except (BadInput, HostFault) as error:
        return Check("health", False, str(error), fix)


# Whether this machine's devices may measure at the same time: a dozen reference cases, alone and
# then on all devices at once.

_TOLERATED = 0.03
_SHOWN = 3


def check_concurrency(backend: str) -> Iterator[Check]:
    """Measure how the devices slow each other down.

    Raises BadInput if there is only one, DeviceBusy if another process is measuring."""
    locks = device_locks(backend)
    if len(locks) < 2:
        raise BadInput(f"backend {backend}: this compares several devices of one machine, got one")
    with ExitStack() as held:
        for lock in locks:
            held.enter_context(DeviceLock(lock, "a concurrency test of devices"))
        folder = held.enter_context(scratch_folder(f"{backend}0"))
        found = concurrency_test(backend, range(len(locks)), folder, Limits())
    yield interference_check(found, len(locks))


def interference_check(found: list[Interference], devices: int) -> Check:
    """Return one check of all cases, which names the worst ones."""
    worst = ", ".join(
        f"{one.case} {percent(one.slowdown, is_signed=True)}" for one in found[:_SHOWN]
    )
    fix = (
        f"measure on fewer devices at once: OPMETER_MEASURE_CONCURRENCY={max(1, devices // 2)}, or "
        "measure_concurrency of the site profile; then test again"
    )
    calm = not found or found[0].slowdown <= _TOLERATED
    return Check("together", calm, f"{devices} devices at once: {worst}", fix)
