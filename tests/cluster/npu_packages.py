"""What a pod of the collector's image lacks here: torch and torch_npu of a release, and a CANN.

Both are in a folder that pods mount as their claim of `site_packages`. It has the packages of torch
alone: any other would hide the image's. The CANN is the recording runtime, with the `msprof` and
`npu-smi` of its tests; the set_env.sh of the image's base sources its own
(`testbed/vendor/cann.sh`).
"""

import os
import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path

from collector.engine import build as recording
from collector.engine.environments import install_stack
from tests.cluster.testbed.images import IN_PODS, PROJECT
from tests.npu import fakecann

_FAKE = Path(next(iter(fakecann.__path__)))
_OF_THE_IMAGE = ("numpy", "pyyaml", "pip", "setuptools")
_SET_ENV = """\
export ASCEND_TOOLKIT_HOME=/site-packages/cann
export LD_LIBRARY_PATH=$ASCEND_TOOLKIT_HOME/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_PRELOAD=$ASCEND_TOOLKIT_HOME/lib64/keys_shim.so
export PATH=$ASCEND_TOOLKIT_HOME/tests/npu/fakecann/tools/profiler/bin:$PATH
export TORCH_DEVICE_BACKEND_AUTOLOAD=0 FAKE_NPU_SOC=Ascend910B3
export FAKE_NPU_COUNT=$(echo "${ASCEND_VISIBLE_DEVICES:-0}" | tr , '\\n' | wc -l)
"""


def write_packages(folder: Path, release: str = IN_PODS) -> None:
    """Fill a folder of the disk of the cache with links to the files of a release's wheels."""
    stack = install_stack(release)
    (packages,) = stack.glob("python/lib/python3*/site-packages")
    site = stack / "site"
    runtime = recording.build_runtime(
        site, torch=packages / "torch", parts=sorted((_FAKE / "runtime").glob("*.c"))
    )
    if not any(packages.glob("torch/__pycache__/*")):
        _compile(stack, runtime)
    linked = [*_torch_of(packages), *site.glob("torch*")]
    subprocess.run(["cp", "-al", *linked, folder], check=True)
    cann = folder / "cann"
    cann.mkdir()
    shutil.copytree(runtime.libraries, cann / "lib64", symlinks=True)
    shutil.copy(runtime.shim, cann / "lib64" / "keys_shim.so")
    (cann / "version.info").write_text("version=8.5.0\n")
    (cann / "set_env.sh").write_text(_SET_ENV)
    for part in ("npu/fakecann", "fixtures/profiles"):
        shutil.copytree(PROJECT / "tests" / part, cann / "tests" / part)


def _torch_of(packages: Path) -> list[Path]:
    """Return what torch and the distributions that it requires have at the top of a folder."""
    left_out = {
        path.parts[0]
        for one in distributions(path=[str(packages)])
        if one.metadata["Name"].lower() in _OF_THE_IMAGE
        for path in one.files or ()
    }
    return [path for path in sorted(packages.iterdir()) if path.name not in left_out]


def _compile(stack: Path, runtime: recording.RecordingRuntime) -> None:
    """Write the bytecode of what a session imports: a pod cannot, and compiles it in each
    process."""
    env = recording.environment(runtime) | {"PYTHONPATH": os.fspath(runtime.site)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [stack / "python/bin/python", "-c", "import torch, torch_npu; import torch._dynamo"]
    subprocess.run(command, check=True, env=env, capture_output=True)
