"""Builds a CANN that computes nothing, around which the stock torch_npu runs on `npu:0`.

    fake = build_fake_cann()              # seconds the first time, then from the cache
    env = environment(fake, devices=1)    # what a subprocess needs
    subprocess.run([sys.executable, "-c", "import torch, torch_npu; ..."], env=env)

What is built lies in the cache, under a hash of everything that goes in.
"""

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.npu.fakecann import wheel
from tests.npu.fakecann.stubs import assembly
from tests.npu.fakecann.symbols import defined_in, wanted_by
from tests.npu.fakecann.wheel import NoFakeCann, publish

_HERE = Path(__file__).parent
_RUNTIME = _HERE / "runtime"
_TOOLS = ("gcc", "g++", "nm", "readelf")
_MAIN = "libcannstub.so"
_LIBRARIES, _SHIM = "lib", "keys_shim.so"


@dataclass(frozen=True, slots=True)
class FakeCann:
    """libraries: the stubs; shim: what keeps a CUDA build of torch and torch_npu apart;
    site: the folder of the package torch_npu; tools: where `msprof` lies."""

    libraries: Path
    shim: Path
    site: Path
    tools: Path


def build_fake_cann(stock: Path | None = None) -> FakeCann:
    """The fake CANN, from the cache or built now; two processes may do so at once. `stock` is a
    folder of wheels unpacked beside each other, torch_npu's among them, in the place of ours.

    Raises NoFakeCann where a compiler or the wheel is not to be had.
    """
    if platform.machine() != "x86_64":
        raise NoFakeCann(f"{platform.machine()}: arguments are recorded on x86-64 only")
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if lacking:
        raise NoFakeCann(f"{', '.join(lacking)} not found; apt-get install gcc g++ binutils")
    site, torch = stock or wheel.site(), _torch()
    folder = wheel.cache() / f"fakecann-{_hash(stock)}"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            fresh = Path(scratch) / "built"
            fresh.mkdir()
            _compile(fresh, stock or site / "torch_npu", torch / "lib")
            publish(fresh, folder)
    return FakeCann(folder / _LIBRARIES, folder / _SHIM, site, _HERE / "tools" / "profiler" / "bin")


def environment(
    fake: FakeCann, *, devices: int = 1, log: Path | None = None, faults: Path | None = None
) -> dict[str, str]:
    """This process's environment, with the fake CANN in it.

    log     where launches are written down; the fake msprof sets it for what it starts
    faults  the file of tests.npu.fakecann.faults
    """
    python = os.path.dirname(sys.executable)  # not resolved: a virtual environment's is a link
    env = dict(
        os.environ,
        LD_LIBRARY_PATH=_before(str(fake.libraries), os.environ, "LD_LIBRARY_PATH"),
        LD_PRELOAD=_before(str(fake.shim), os.environ, "LD_PRELOAD"),
        PYTHONPATH=_before(str(fake.site), os.environ, "PYTHONPATH"),
        PATH=_before(f"{fake.tools}{os.pathsep}{python}", os.environ, "PATH"),
        FAKE_NPU_COUNT=str(devices),
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    for name, path in (("FAKE_CANN_LOG", log), ("FAKE_CANN_FAULTS", faults)):
        env.pop(name, None)
        if path is not None:
            env[name] = str(path)
    return env


def _before(first: str, env: Mapping[str, str], name: str) -> str:
    return os.pathsep.join(filter(None, (first, env.get(name))))


def _torch() -> Path:
    """The folder of torch, which is not imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise NoFakeCann("torch is not installed; pip install '.[cpu]'")
    return Path(spec.origin).parent


def _hash(stock: Path | None) -> str:
    digest = hashlib.sha256()
    of_wheels = wheel.VERSION if stock is None else str(stock)
    for version in (of_wheels, importlib.metadata.version("torch")):
        digest.update(version.encode())
    sources = (*_RUNTIME.iterdir(), *(_HERE / f"{n}.py" for n in ("symbols", "stubs", "build")))
    for path in sorted(sources):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _compile(folder: Path, package: Path, torch_libraries: Path) -> None:
    libraries, work = folder / _LIBRARIES, folder / "work"
    libraries.mkdir()
    work.mkdir()
    wanted = wanted_by(package, torch_libraries)
    objects = _objects(work)
    written = {symbol for path in objects for symbol in defined_in(path)}
    stubs = work / "stubs.S"
    stubs.write_text(assembly(wanted, written))
    _gcc("-shared", f"-Wl,-soname,{_MAIN}", "-Wl,-z,defs", "-Wl,-Bsymbolic-functions")(
        libraries / _MAIN, *objects, stubs, "-lpthread"
    )
    link = _gcc("-shared", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN")
    for name in wanted.libraries:
        link(libraries / name, f"-Wl,-soname,{name}", f"-L{libraries}", "-lcannstub")
    _gcc("-shared", "-fPIC", "-O1", compiler="g++")(folder / _SHIM, _RUNTIME / "keys_shim.cpp")
    shutil.rmtree(work)


def _objects(work: Path) -> list[Path]:
    compile_one = _gcc("-c", "-fPIC", "-O2", "-D_GNU_SOURCE", "-Wall", "-Werror")
    objects = []
    for source in sorted((*_RUNTIME.glob("*.c"), *_RUNTIME.glob("*.S"))):
        objects.append(work / f"{source.name}.o")
        compile_one(objects[-1], source)
    return objects


def _gcc(*options: str, compiler: str = "gcc") -> Callable[..., None]:
    """A function (target, what...) that runs the compiler with these options."""

    def run(target: Path, *what: object) -> None:
        command = [compiler, *options, "-o", str(target), *map(str, what)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}")

    return run
