"""The recording runtime with the additions for tests: faults, and a profiler.

fake = build_fake_cann()              # seconds the first time, then from the cache env =
environment(fake, devices=1)    # for a subprocess subprocess.run([sys.executable, "-c", "import
torch, torch_npu; ..."], env=env)
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector.engine import build as recording

_HERE = Path(__file__).parent
LAUNCHES = Path(recording.__file__).parent / "site"  # has the module opmeter_launches


@dataclass(frozen=True, slots=True)
class FakeCann:
    """libraries: the stubs; shim: separates a CUDA build of torch from torch_npu; site: the folder
    of the package torch_npu; tools: the folder of `msprof`."""

    libraries: Path
    shim: Path
    site: Path
    tools: Path


def build_fake_cann(stock: Path | None = None, torch: Path | None = None) -> FakeCann:
    """Return the runtime from the cache, or build it. `stock` is a folder of unpacked wheels,
    torch_npu's among them, instead of ours; `torch` is the folder of the package torch that it is
    built for  [that of this Python].

    Raises NoRecordingRuntime without a compiler or the wheel.
    """
    parts = sorted((_HERE / "runtime").glob("*.c"))
    built = recording.build_runtime(stock, torch=torch, parts=parts)
    tools = _HERE / "tools" / "profiler" / "bin"
    return FakeCann(built.libraries, built.shim, built.site, tools)


def environment(
    fake: FakeCann, *, devices: int = 1, log: Path | None = None, faults: Path | None = None
) -> dict[str, str]:
    """Return this process's environment with the fake CANN in it.

    log     file of launches; the fake msprof sets it for what it starts
    faults  the file of tests.npu.fakecann.faults
    """
    runtime = recording.RecordingRuntime(fake.libraries, fake.shim, fake.site)
    env = recording.environment(runtime, devices=devices, log=log)
    python = os.path.dirname(sys.executable)  # not resolved: a virtual environment's is a link
    env["PATH"] = recording.prepended(f"{fake.tools}{os.pathsep}{python}", os.environ, "PATH")
    env.pop("FAKE_CANN_FAULTS", None)
    return env if faults is None else env | {"FAKE_CANN_FAULTS": str(faults)}


def npu_host(fake: FakeCann, folder: Path, **options: Any) -> dict[str, str]:
    """Return the environment of a host with Ascend 910B3 devices and CANN 8.5.0, whose files and
    device locks are in a folder. `options` are those of `environment`."""
    cann = folder / "cann"
    cann.mkdir(parents=True)
    (cann / "version.info").write_text("version=8.5.0\n")
    return environment(fake, **options) | {
        "ASCEND_TOOLKIT_HOME": str(cann),
        "FAKE_NPU_SOC": "Ascend910B3",
        "OPMETER_LOCKS": str(folder / "locks"),
    }
