"""Builds the recording runtime: a CANN that records every launch of torch_npu and computes nothing.

    runtime = build_runtime()                # seconds the first time, then from the cache
    env = environment(runtime, devices=1)    # the environment of a subprocess
    subprocess.run([sys.executable, "-c", "import torch, torch_npu; ..."], env=env)

The result is in the cache, under a hash of everything that goes into it.
"""

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from collector.engine import wheel
from collector.engine.stubs import assembly
from collector.engine.symbols import defined_in, undefined_in
from collector.engine.wheel import NoRecordingRuntime, move_into_place

_HERE = Path(__file__).parent
_RUNTIME = _HERE / "runtime"
LOG = "FAKE_CANN_LOG"
_TOOLS = ("gcc", "g++", "nm", "readelf")
_MAIN = "libcannstub.so"
_LIBRARIES, _SHIM = "lib", "keys_shim.so"


@dataclass(frozen=True, slots=True)
class RecordingRuntime:
    """The recording runtime.

    libraries  folder of CANN's libraries
    shim       library that separates a CUDA build of torch from torch_npu
    site       folder of the package torch_npu"""

    libraries: Path
    shim: Path
    site: Path


def build_runtime(
    stock: Path | None = None, *, torch: Path | None = None, parts: Sequence[Path] = ()
) -> RecordingRuntime:
    """Return the runtime from the cache, or build it. Two processes may do so concurrently.

    stock  folder of unpacked wheels, torch_npu's among them  [torch_npu of `wheel.VERSION`]
    torch  folder of the package torch  [that of this Python]
    parts  further C sources (`runtime/fake.h` declares what they may define)

    Raises NoRecordingRuntime without a compiler or the wheel.
    """
    if platform.machine() != "x86_64":
        raise NoRecordingRuntime(f"{platform.machine()}: the runtime is built on x86-64 only")
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if lacking:
        raise NoRecordingRuntime(
            f"{', '.join(lacking)} not found; apt-get install gcc g++ binutils"
        )
    site, torch = stock or wheel.site(), torch or _torch()
    folder = wheel.cache() / f"fakecann-{_hash(stock, torch, parts)}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            fresh = Path(scratch) / "built"
            fresh.mkdir()
            _compile(fresh, stock or site / "torch_npu", torch / "lib", parts)
            move_into_place(fresh, folder)
    return RecordingRuntime(folder / _LIBRARIES, folder / _SHIM, site)


def environment(
    runtime: RecordingRuntime, *, devices: int = 1, log: Path | None = None
) -> dict[str, str]:
    """Return the environment of this process with the runtime; `log` is the file of launches."""
    env = dict(
        os.environ,
        LD_LIBRARY_PATH=prepended(str(runtime.libraries), os.environ, "LD_LIBRARY_PATH"),
        LD_PRELOAD=prepended(str(runtime.shim), os.environ, "LD_PRELOAD"),
        PYTHONPATH=prepended(str(runtime.site), os.environ, "PYTHONPATH"),
        FAKE_NPU_COUNT=str(devices),
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    env.pop(LOG, None)
    return env if log is None else env | {LOG: str(log)}


def prepended(first: str, env: Mapping[str, str], name: str) -> str:
    """Return the path variable of an environment with another path before it."""
    return os.pathsep.join(filter(None, (first, env.get(name))))


def _torch() -> Path:
    """Return the folder of torch, without importing it."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise NoRecordingRuntime("torch is not installed; pip install '.[cpu]'")
    return Path(spec.origin).parent


def _hash(stock: Path | None, torch: Path, parts: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    of_wheels = wheel.VERSION if stock is None else str(stock)
    for version in (of_wheels, (torch / "version.py").read_text()):
        digest.update(version.encode())
    sources = (*_RUNTIME.iterdir(), *(_HERE / f"{n}.py" for n in ("symbols", "stubs", "build")))
    for path in (*sorted(sources), *parts):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(folder: Path, package: Path, torch_libraries: Path, parts: Sequence[Path]) -> None:
    libraries, work = folder / _LIBRARIES, folder / "work"
    libraries.mkdir()
    work.mkdir()
    undefined = undefined_in(package, torch_libraries)
    objects = _objects(work, parts)
    written = {symbol for path in objects for symbol in defined_in(path)}
    stubs = work / "stubs.S"
    stubs.write_text(assembly(undefined, written))
    _gcc("-shared", f"-Wl,-soname,{_MAIN}", "-Wl,-z,defs", "-Wl,-Bsymbolic-functions")(
        libraries / _MAIN, *objects, stubs, "-lpthread"
    )
    link = _gcc("-shared", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN")
    for name in undefined.libraries:
        link(libraries / name, f"-Wl,-soname,{name}", f"-L{libraries}", "-lcannstub")
    _gcc("-shared", "-fPIC", "-O1", compiler="g++")(folder / _SHIM, _RUNTIME / "keys_shim.cpp")
    shutil.rmtree(work)


def _objects(work: Path, parts: Sequence[Path]) -> list[Path]:
    compile_one = _gcc("-c", "-fPIC", "-O2", "-D_GNU_SOURCE", "-Wall", "-Werror", f"-I{_RUNTIME}")
    objects = []
    for source in (*sorted((*_RUNTIME.glob("*.c"), *_RUNTIME.glob("*.S"))), *parts):
        objects.append(work / f"{source.name}.o")
        compile_one(objects[-1], source)
    return objects


def _gcc(*options: str, compiler: str = "gcc") -> Callable[..., None]:
    """Return a function (target, sources...) that runs the compiler with these options."""

    def run(target: Path, *what: object) -> None:
        command = [compiler, *options, "-o", str(target), *map(str, what)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}")

    return run
