"""Environments of serving releases: the wheels as they are published, in folders of the cache.

    stack = install_stack("0.18.0")                    torch, torch_npu and vllm_ascend
    serving = install_serving("vllm-ascend-0.18")      the same, with vLLM and what it imports

vLLM's wheel is unpacked without its CUDA libraries, which nothing loads on an NPU. The torch of
vLLM-Ascend is used, because vLLM requires another one.
"""

import fcntl
import logging
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from zipfile import ZipFile

from collector.codec.errors import BadInput, OpmeterError
from collector.engine.wheel import cache

logger = logging.getLogger(__name__)

_WHOLE = "whole"  # a file: the environment was installed completely
_PIP = ("-m", "pip", "--disable-pip-version-check")
_INSTALL = (*_PIP, "install", "--quiet", "--no-cache-dir", "--no-compile")
# Required by the wheels, and imported by nothing that a recording runs: CUDA, builds, caches of
# other machines. torch and torch_npu are in the stack, triton_ascend is installed by itself.
_NOT_USED = frozenset(
    (
        *("torch", "torch-npu", "triton-ascend", "flashinfer-python", "nvidia-cudnn-frontend"),
        *("nvidia-cutlass-dsl", "quack-kernels", "memfabric-hybrid", "memcache-hybrid"),
        *("arctic-inference", "cmake", "pip", "wheel", "setuptools", "setuptools-scm"),
        *("pandas-stubs", "flashinfer-cubin", "apache-tvm-ffi", "tilelang", "fastsafetensors"),
        "tokenspeed-mla",
    )
)
# Required by both wheels in versions that exclude each other: that of vLLM-Ascend is installed.
_OF_VLLM_ASCEND = frozenset(("torchaudio", "torchvision", "opencv-python-headless"))
_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True, slots=True)
class ServingStack:
    """The wheels that a version of vllm_ascend requires."""

    torch: str
    torch_npu: str
    numpy: str


@dataclass(frozen=True, slots=True)
class Release:
    """A release of a serving stack, as `opmeter model show` names it.

    `cann` is the version that its METADATA requires; `size_gb` is the size of its environment on
    disk, `minutes` the time to install it."""

    vllm_ascend: str
    vllm: str
    triton_ascend: str
    cann: str
    size_gb: int
    minutes: int


@dataclass(frozen=True, slots=True)
class ServingEnvironment:
    """An installed release.

    python   its interpreter
    site     folder of the packages torch_npu and vllm_ascend
    torch    folder of the package torch
    folders  all folders with packages, in the order of the search"""

    python: Path
    site: Path
    torch: Path
    folders: tuple[Path, ...]

    def wheels(self) -> Mapping[str, str]:
        """Return the version of every installed distribution."""
        found: dict[str, str] = {}
        for one in distributions(path=list(map(str, self.folders))):
            found.setdefault(one.metadata["Name"].lower().replace("_", "-"), one.version)
        return dict(sorted(found.items()))


STACKS = {
    "0.18.0": ServingStack("2.9.0", "2.9.0", "numpy<2"),
    "0.23.0": ServingStack("2.10.0", "2.10.0.post4", "numpy"),
}
# 0.23 requires triton_ascend 3.2.2, which is not published for pip. Its kernels are not compiled.
RELEASES = {
    "vllm-ascend-0.18": Release("0.18.0", "0.18.0", "3.2.0", "8.5.0", 8, 5),
    "vllm-ascend-0.23": Release("0.23.0", "0.23.0", "3.2.0", "9.1.0", 9, 5),
}


def find_release(name: str) -> Release:
    """Return a release that can be recorded. Raises BadInput for another name."""
    if name not in RELEASES:
        raise BadInput(f"--release: expected one of {', '.join(RELEASES)}, got {name!r}")
    return RELEASES[name]


def stack_folder(version: str) -> Path:
    """Return the folder of a stack: `python`, and the wheels unpacked in `site`."""
    return cache() / f"vllm_ascend-{version}"


def is_stack_installed(version: str) -> bool:
    return (stack_folder(version) / _WHOLE).exists()


def install_stack(version: str) -> Path:
    """Return the folder of a stack, and install it first if it is absent."""
    folder, stack = stack_folder(version), STACKS[version]
    python, site = folder / "python", folder / "site"
    with _installing(folder) as is_absent:
        if is_absent:
            run_python = _new_python(python)
            _run(run_python, *_INSTALL, f"torch=={stack.torch}", stack.numpy, "pyyaml")
            npu = (f"torch_npu=={stack.torch_npu}", f"vllm_ascend=={version}")
            _run(run_python, *_INSTALL, "--no-deps", "--target", site, *npu)
    return folder


def serving_folder(release: Release) -> Path:
    return cache() / f"vllm_ascend-{release.vllm_ascend}-serving"


def is_serving_installed(name: str) -> bool:
    release = find_release(name)
    whole = (serving_folder(release) / _WHOLE).exists()
    return whole and is_stack_installed(release.vllm_ascend)


def install_serving(name: str) -> ServingEnvironment:
    """Return the environment of a release, and install it first if it is absent.

    Raises OpmeterError where a wheel cannot be downloaded."""
    release = find_release(name)
    folder = serving_folder(release)
    if not is_serving_installed(name):
        logger.info(
            "installing %s in %s: %d GB, about %d minutes, once",
            *(name, folder.parent, release.size_gb, release.minutes),
        )
    stack = install_stack(release.vllm_ascend)
    (torch,) = stack.glob("python/lib/python3*/site-packages/torch")
    with _installing(folder) as is_absent:
        if is_absent:
            _install_serving(release, folder, stack / "site", torch.parent)
    (packages,) = folder.glob("python/lib/python3*/site-packages")
    folders = (stack / "site", packages, torch.parent)
    return ServingEnvironment(folder / "python" / "bin" / "python", stack / "site", torch, folders)


def _install_serving(release: Release, folder: Path, site: Path, below: Path) -> None:
    """Install vLLM and what it imports in an environment above that of the stack."""
    python = _new_python(folder / "python")
    (packages,) = folder.glob("python/lib/python3*/site-packages")
    (packages / "stack.pth").write_text(f"{below}\n")  # found after the own packages
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        wheels = (f"vllm=={release.vllm}", f"triton_ascend=={release.triton_ascend}")
        _run(python, *_PIP, "download", "--quiet", "--no-deps", "--dest", scratch, *wheels)
        (vllm,) = Path(scratch).glob("vllm-*.whl")
        (triton,) = Path(scratch).glob("triton_ascend-*.whl")
        (metadata,) = site.glob("vllm_ascend-*.dist-info/METADATA")
        required = [
            *_requirements(_metadata(vllm), _NOT_USED | _OF_VLLM_ASCEND),
            *_requirements(metadata.read_text(), _NOT_USED),
        ]
        listed = Path(scratch) / "required.txt"
        listed.write_text("\n".join(required) + "\n")
        _run(python, *_INSTALL, "--requirement", listed)
        _run(python, *_INSTALL, "--no-deps", triton)  # has the package `triton` of NPUs
        with ZipFile(vllm) as archive:
            archive.extractall(
                packages, [name for name in archive.namelist() if not name.endswith(".so")]
            )


def _metadata(wheel: Path) -> str:
    with ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def _requirements(metadata: str, left_out: frozenset[str]) -> Iterator[str]:
    """Yield the requirements of a wheel, without those of its extras."""
    for line in metadata.splitlines():
        field, _, requirement = line.partition(": ")
        if field != "Requires-Dist" or "extra ==" in requirement:
            continue
        match = _NAME.match(requirement)
        if match and match[0].lower().replace("_", "-") not in left_out:
            yield requirement


@contextmanager
def _installing(folder: Path) -> Iterator[bool]:
    """Yield whether a folder has to be installed; one process at a time does so."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _WHOLE).exists():
            yield False
            return
        shutil.rmtree(folder, ignore_errors=True)  # an installation that was interrupted
        folder.mkdir()
        yield True
        (folder / _WHOLE).touch()


def _new_python(folder: Path) -> Path:
    _run(Path(sys.executable), "-m", "venv", folder)
    return folder / "bin" / "python"


def _run(python: Path, *arguments: object) -> None:
    command = [str(python), *map(str, arguments)]
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise OpmeterError(f"{' '.join(command)}: {reason}")
