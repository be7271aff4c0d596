"""What a pod mounts: one volume that it may write to, the store's credentials, and drivers.

The root file system is read-only, so everything that a tool writes by habit is pointed at the
work volume by its environment variable.
"""

from dataclasses import dataclass
from typing import Any

from jobs.objects.deployment import Deployment
from jobs.objects.quantities import quantity
from jobs.objects.site import Site

WORK = "/work"
STORE = "/store"
_CREDENTIALS = "/etc/opmeter/store"
_SITE_PACKAGES = "/site-packages"
# What the Ascend runtime would mount itself (MindCluster's and vLLM-Ascend's documents).
_DRIVER_PATHS = (
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/version.info",
    "/etc/ascend_install.info",
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
)
_DRIVER_LIBRARIES = ":".join(
    f"/usr/local/Ascend/driver/lib64{part}" for part in ("", "/driver", "/common")
)
_WRITTEN = {
    "HOME": f"{WORK}/home",
    "TMPDIR": f"{WORK}/tmp",
    "OPMETER_LOCKS": f"{WORK}/locks",
    "ASCEND_PROCESS_LOG_PATH": f"{WORK}/log",
    "ASCEND_WORK_PATH": f"{WORK}/ascend",
    "ASCEND_CACHE_PATH": f"{WORK}/cache",
    "TRITON_CACHE_DIR": f"{WORK}/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{WORK}/inductor",
    "XDG_CACHE_HOME": f"{WORK}/cache",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, slots=True)
class Mounts:
    """Volumes, where the container sees them, and what its environment says of them."""

    volumes: list[dict[str, Any]]
    mounts: list[dict[str, Any]]
    environment: dict[str, str]


def mounts(
    deployment: Deployment, site: Site | None = None, *, work: str, shared: str = ""
) -> Mounts:
    """The volumes of a pod: `work` and `shared` are the sizes of what it may write. A pod of a
    `site` is a worker, or a probe for one, and has workers' credentials."""
    found = Mounts([], [], dict(_WRITTEN))
    # A pod past the limit is evicted, and the file system inside shows the node's whole disk.
    found.environment["OPMETER_VOLUME_BYTES"] = f"{quantity(work):.0f}"
    _add(found, "work", {"emptyDir": {"sizeLimit": work}}, WORK)
    if shared:
        memory = {"emptyDir": {"medium": "Memory", "sizeLimit": shared}}
        _add(found, "shm", memory, "/dev/shm")
    of_workers = deployment.worker_secret if site is not None else ""
    if name := of_workers or deployment.store_secret:
        # Files, not variables: a rotated Secret reaches a running pod only so.
        secret = {"secret": {"secretName": name, "defaultMode": 0o440}}
        _add(found, "credentials", secret, _CREDENTIALS, read_only=True)
        found.environment["AWS_SHARED_CREDENTIALS_FILE"] = f"{_CREDENTIALS}/credentials"
        found.environment["AWS_CONFIG_FILE"] = f"{_CREDENTIALS}/config"
    if deployment.store_claim:
        claim = {"persistentVolumeClaim": {"claimName": deployment.store_claim}}
        _add(found, "store", claim, STORE)
    if site is not None:
        _add_of_site(found, deployment, site)
    return found


def _add_of_site(found: Mounts, deployment: Deployment, site: Site) -> None:
    if deployment.site_packages:
        claim = {"claimName": deployment.site_packages, "readOnly": True}
        volume = {"persistentVolumeClaim": claim}
        _add(found, "site-packages", volume, _SITE_PACKAGES, read_only=True)
        found.environment["PYTHONPATH"] = _SITE_PACKAGES
    if site.backend == "npu" and site.runtime == "hostpath":
        for number, path in enumerate(_DRIVER_PATHS):
            _add(found, f"driver-{number}", {"hostPath": {"path": path}}, path, read_only=True)
        # Beside what the image says: its LD_LIBRARY_PATH has CANN, and would be replaced here.
        found.environment["OPMETER_DRIVER_LIBRARIES"] = _DRIVER_LIBRARIES


def _add(
    found: Mounts, name: str, volume: dict[str, Any], path: str, *, read_only: bool = False
) -> None:
    found.volumes.append({"name": name, **volume})
    mount: dict[str, Any] = {"name": name, "mountPath": path}
    found.mounts.append(mount | ({"readOnly": True} if read_only else {}))
