"""The stack that a number belongs to. Results of different stacks never mix."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum

from collector.codec.canonical import short_hash
from collector.codec.errors import BadInput

_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_FILE = re.compile(r"\.\.|\.$|\.(csv|json|parquet|ya?ml|tmp)$", re.IGNORECASE)
_VERSION = re.compile(r"[A-Za-z0-9]+([._+-][A-Za-z0-9]+)*")

# `8.5.0`, `8.3.RC1`, `9.1.0-beta.1`: two numbers alone name several releases of CANN.
_RELEASE = re.compile(r"\d+\.\d+\.\w.*")

# The backends that a profiler records, and the library with which their ranks communicate.
COLLECTIVE_LIBRARIES = {"npu": "hccl", "cuda": "nccl", "cpu": "gloo"}
PROFILED = tuple(COLLECTIVE_LIBRARIES)
# Any accelerator of torch, timed by its own events. It has device names of its own, so that these
# durations are never in one version with those of a profiler.
EVENTS = "events"
BACKENDS = (*PROFILED, EVENTS)
# The host of devices: what its calls take, by its processor time. It has device names of its own.
HOST = "host"
# What users call them.
BACKEND_SYNONYMS = {"gpu": "cuda", "nvidia": "cuda", "nvidia.com/gpu": "cuda", "ascend": "npu"}
# by the beginning of the device's name; all others are NPUs
_DEVICES = {"CUDA_": "cuda", "CPU_": "cpu", "EVENTS_": EVENTS, "HOST_": HOST}
_RUNTIME = "runtime"
_IMPORTED = ("imported", "true")
_VERSION_NAME = re.compile(r"vllm(.+)_torch(.+)_cann(.+)")


class Runtime(StrEnum):
    """The target of launches: devices, or a fake CANN that computes nothing (for the tests)."""

    REAL = "real"
    FAKE = "fake"


@dataclass(frozen=True, slots=True)
class Stack:
    """Device and software. An empty string means that the device has no such component.

    `details` has other settings that change numbers: for a CPU its flags, threads and allocator
    settings, and for a fake runtime that it is fake."""

    device: str
    torch: str
    driver: str = ""
    firmware: str = ""
    cann: str = ""
    torch_npu: str = ""
    vllm: str = ""
    details: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not _DEVICE.fullmatch(self.device):
            raise BadInput(
                "device: expected a name of 1 to 100 letters, digits, '_', '.', '-', got "
                f"{self.device!r}"
            )
        # A device is a folder, next to the files of a snapshot.
        if _FILE.search(self.device):
            raise BadInput(
                "device: expected a name without '..', a final '.' or the suffix of a file, got "
                f"{self.device!r}"
            )
        if (runtime := dict(self.details).get(_RUNTIME, Runtime.REAL)) not in set(Runtime):
            raise BadInput(f"runtime: expected real or fake, got {runtime!r}")

    @property
    def runtime(self) -> Runtime:
        """Return the runtime. It is part of the stack, so that a fake one's results never mix with
        a real one's."""
        return Runtime(dict(self.details).get(_RUNTIME, Runtime.REAL))

    @property
    def is_imported(self) -> bool:
        """Return whether another tool measured on it: only the parts in its path are known."""
        return _IMPORTED in self.details

    @classmethod
    def imported(cls, version_path: str) -> "Stack":
        """Return the stack of a version directory of another tool. Raises BadInput for a path that
        is not `{device}/vllm_ascend/vllm{v}_torch{t}_cann{c}`."""
        device, _, name = version_path.partition("/vllm_ascend/")
        if found := _VERSION_NAME.fullmatch(name):
            vllm, torch, cann = ("" if part == "0" else part for part in found.groups())
            stack = cls(device=device, torch=torch, cann=cann, vllm=vllm, details=(_IMPORTED,))
            if stack.version_path == version_path:
                return stack
        raise BadInput(
            "version directory: expected a path such as "
            "ATLAS_800_A3_752T_128G_DIE/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5, got "
            f"{version_path!r}"
        )

    @property
    def stack_id(self) -> str:
        return short_hash(self.as_json(), 16)

    @property
    def version(self) -> str:
        return version_name(self.vllm, self.torch, self.cann)

    @property
    def version_path(self) -> str:
        """Return `{device}/vllm_ascend/{version}`, the folder of this stack's results in a tree."""
        return f"{self.device}/vllm_ascend/{self.version}"

    def differs_in(self, other: "Stack") -> str:
        """Return the names of the fields in which two stacks differ, for a message."""
        ours, theirs = self.as_json(), other.as_json()
        return ", ".join(sorted(name for name in ours if ours[name] != theirs[name]))

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "details": dict(self.details)}

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> "Stack":
        details = value.get("details") or {}
        if not isinstance(details, Mapping):
            raise BadInput(f"details: expected a mapping, got {type(details).__name__}")
        names = [field.name for field in fields(cls) if field.name != "details"]
        return cls(
            **{name: str(value.get(name) or "") for name in names},
            details=tuple(sorted((str(k), str(v)) for k, v in details.items())),
        )


def backend_of(device: str) -> str:
    """Return the backend of a device: `cpu` for `CPU_AMD_EPYC_2t`."""
    return next((b for start, b in _DEVICES.items() if device.startswith(start)), "npu")


def is_cann_release(version: str) -> bool:
    """Return whether a version of CANN is one release, not a series of releases such as `8.5`."""
    return _RELEASE.fullmatch(version) is not None


def is_version_of(expected: str, here: str) -> bool:
    """Return whether a version is the expected one or a more specific one: `8.5.1` for `8.5`."""
    return here == expected or (
        bool(expected) and here.startswith(tuple(expected + c for c in ".+-"))
    )


def runtime_details(runtime: Runtime) -> tuple[tuple[str, str], ...]:
    """Return the entry of a stack's details about its runtime; none for a real one."""
    return () if runtime is Runtime.REAL else ((_RUNTIME, runtime.value),)


def version_name(vllm: str, torch: str, cann: str) -> str:
    """Return a name such as `vllm0.18.0_torch2.9.0_cann8.5`; a part that the device lacks is 0.

    As in msmodeling, a leading `vllm`, `torch`, `cann` or `v` is dropped, and so is torch's local
    suffix (`+cpu`). Raises BadInput for an invalid version."""
    parts = {
        "vllm": re.sub(r"^(vllm)?v?", "", vllm.strip(), flags=re.IGNORECASE),
        "torch": re.sub(r"^torch", "", torch.strip(), flags=re.IGNORECASE).split("+")[0],
        "cann": re.sub(r"^cann", "", cann.strip(), flags=re.IGNORECASE),
    }
    for name, text in parts.items():
        if text and not _VERSION.fullmatch(text):
            raise BadInput(f"{name} version: expected a version such as 0.18.0, got {text!r}")
    return "_".join(f"{name}{text or '0'}" for name, text in parts.items())
