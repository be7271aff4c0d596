"""A host with NPUs on the recording runtime, whose product is that of a release's image.

Every process of the product writes, when it ends, which files it has imported (`imported`): the
test checks that none is of the environment that runs the tests.
"""

import csv
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector.engine.environments import find_release
from collector.model.record import CaseRecord
from jobs.objects.pod_template import WORK
from tests.npu.fakecann.build import FakeCann, build_fake_cann
from tests.npu.fakecann.physical import PHYSICAL, TIMES
from tests.stacks.product_environment import ROOT, ProductEnvironment

DRIVER = "26.0.rc1"  # CANN 9.1 requires 26; older CANN runs with it, too
LIMIT_S = 1800
_OF_LOGIN_OR_CANN = ("HOME", "TMPDIR", "ASCEND_TOOLKIT_HOME", "OPMETER_LOCKS")
_WATCHED = (
    *("collector", "jobs", "opmeter", "numpy", "pandas", "pyarrow", "scipy"),
    *("torch", "torch_npu", "vllm", "vllm_ascend"),
)
# Read by Python when it starts, before anything else is imported.
_WITNESS = """\
import atexit, json, os, sys

def write(leave=os._exit, names={names!r}):
    found = {{
        name: getattr(sys.modules[name], "__file__", None) or list(sys.modules[name].__path__)[0]
        for name in names if sys.modules.get(name) is not None
    }}
    what = {{"words": sys.orig_argv, "path": sys.path, "files": found}}
    with open({folder!r} + "/" + str(os.getpid()), "w") as file:
        json.dump(what, file)

def leave(status, leave=os._exit):
    write()
    leave(status)

os._exit = leave
atexit.register(write)
"""


@dataclass(frozen=True, slots=True)
class Imported:
    """A process that has ended: its command line, its search path, and the file of each package."""

    words: tuple[str, ...]
    path: tuple[str, ...]
    files: Mapping[str, str]

    def runs(self, name: str) -> bool:
        return any(word == name or word.endswith(f"/{name}") for word in self.words)


@dataclass(frozen=True, slots=True)
class Host:
    """The variables of a host, and the folder of its user."""

    product: ProductEnvironment
    folder: Path
    variables: Mapping[str, str]

    @property
    def log(self) -> Path:
        """The file of launches outside of sessions."""
        return self.folder / "calls"

    def run(
        self, step: str, *words: object, code: int = 0, env: Mapping[str, str] | None = None
    ) -> str:
        """Run `opmeter` as a user does, and return what it prints. Raises AssertionError, which
        names the step, for another exit code."""
        done = subprocess.run(
            ["opmeter", *map(str, words)],
            cwd=self.folder,
            env={**self.variables, **(env or {})},
            executable=self.product.opmeter,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
        )
        command = " ".join(map(str, words))
        what = f"step {step!r}: opmeter {command}: exit {done.returncode}, expected {code}"
        assert done.returncode == code, f"{what}\n{done.stdout[-4000:]}"
        return done.stdout

    def first_waves(self, *arguments: str) -> list[dict[str, Any]]:
        """Return the Jobs that a controller of this product creates first."""
        program = Path(__file__).with_name("first_waves.py")
        done = subprocess.run(
            [self.product.python, "-P", program, *arguments],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, f"step 'waves': {done.stderr[-4000:]}"
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def start_pod(self, name: str, job: Mapping[str, Any], index: int) -> subprocess.Popen[str]:
        """Start the container of a Job's pod: its command, by the image's script, with the
        variables of the image and of the pod, which has one device and a volume of its own."""
        volume = self.folder / "pods" / f"{name}-{index}"
        (volume / "image").mkdir(parents=True)
        script = (ROOT / "images" / "opmeter-with-cann").read_text()
        script = script.replace("/opt/opmeter", str(self.product.bin.parent))
        (volume / "image" / "opmeter").write_text(
            script.replace("/usr/local/Ascend", str(self.folder / "Ascend"))
        )
        (volume / "image" / "opmeter").chmod(0o755)
        (container,) = job["spec"]["template"]["spec"]["containers"]
        fields = {
            "spec.nodeName": f"node-{index}",
            "metadata.name": f"{name}-{index}",
            "metadata.uid": f"{index}2345678-aaaa",
            "status.hostIP": "127.0.0.1",
            "status.podIP": "127.0.0.1",
        }
        own = {
            one["name"]: one["value"]
            if "value" in one
            else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
            for one in container["env"]
        }
        of_pod = {key: text.replace(WORK, str(volume), 1) for key, text in own.items()}
        of_host = {
            key: text for key, text in self.variables.items() if key not in _OF_LOGIN_OR_CANN
        }
        path = f"{volume / 'image'}{os.pathsep}{self.variables['PATH']}"
        return subprocess.Popen(
            [str(volume / "image" / "opmeter"), *container["command"][1:]],
            cwd=volume,
            env={
                **of_host,
                **of_pod,
                "PATH": path,
                "FAKE_NPU_COUNT": "1",
                "JOB_COMPLETION_INDEX": str(index),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def imported(self) -> list[Imported]:
        """Return the processes of the product that have ended; msprof and npu-smi stand in for
        those of CANN."""
        found = [json.loads(path.read_text()) for path in (self.folder / "imported").iterdir()]
        own = [Imported(tuple(one["words"]), tuple(one["path"]), one["files"]) for one in found]
        return [one for one in own if not one.runs("msprof") and not one.runs("npu-smi")]


def make_host(product: ProductEnvironment, release: str, folder: Path) -> Host:
    """Return a host with two devices, and CANN of a release's version. It has the variables of a
    login and of CANN's set_env.sh, no others."""
    fake: FakeCann = build_fake_cann(product.base.site, product.base.torch)
    version = find_release(release).cann
    for name in ("cann", "home", "tmp", "witness", "imported", "Ascend/cann"):
        (folder / name).mkdir(parents=True)
    of_cann = f"export ASCEND_TOOLKIT_HOME={folder / 'cann'}\n"
    (folder / "Ascend/cann/set_env.sh").write_text(of_cann)
    (folder / "cann" / "version.info").write_text(f"version={version}\n")
    witness = _WITNESS.format(names=_WATCHED, folder=str(folder / "imported"))
    (folder / "witness" / "sitecustomize.py").write_text(witness)
    path = (fake.tools, product.bin, "/usr/local/bin", "/usr/bin", "/bin")
    variables = {
        "PATH": os.pathsep.join(map(str, path)),
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "PYTHONPATH": str(folder / "witness"),
        "LD_LIBRARY_PATH": str(fake.libraries),
        "LD_PRELOAD": str(fake.shim),
        "ASCEND_TOOLKIT_HOME": str(folder / "cann"),
        "FAKE_CANN_LOG": str(folder / "calls"),
        "FAKE_CANN_VERSION": version,
        "FAKE_NPU_COUNT": "2",
        "FAKE_NPU_DRIVER": DRIVER,
        "FAKE_NPU_SOC": "Ascend910B3",
        TIMES: PHYSICAL,
        "OPMETER_LOCKS": str(folder / "locks"),
        "COLUMNS": "200",
        # a shared machine: teams of threads that wait do not spin
        "OMP_WAIT_POLICY": "PASSIVE",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return Host(product, folder, variables)


def write_tree(folder: Path, rows: Sequence[CaseRecord]) -> None:
    """Write a version directory of a tree: a table for each kernel type."""
    folder.mkdir(parents=True)
    by_kernel: dict[str, list[CaseRecord]] = {}
    for row in rows:
        by_kernel.setdefault(row.kernel_type, []).append(row)
    for kernel, records in by_kernel.items():
        cells = [{**row.cells, **row.extra} for row in records]
        columns = dict.fromkeys(name for row in cells for name in row)
        with (folder / f"{kernel}.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, list(columns), restval="")
            table.writeheader()
            table.writerows(cells)
