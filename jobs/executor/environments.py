"""Environments of this machine: other Pythons with other versions of torch, or other installations
of CANN.

A worker runs in the environment that it measures. Its packages come first; opmeter, and what it
requires, are lent to an environment that does not have them, but for those that are measured.
"""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import IO

import collector
from collector.codec.canonical import json_object
from collector.codec.errors import BadInput, HostFault
from collector.model.stack import Stack
from jobs.executor.local_run import WorkerProcess

LENT = "OPMETER_LENT"  # the folders with the lent packages
_PROBE_S = 300.0  # reading torch from a cold disk is slow
_OF_OTHERS = ("PYTHONHOME", "VIRTUAL_ENV", "PYTHONNOUSERSITE")
_EXPECTED = "expected a virtual environment, a Python, or a script to source such as set_env.sh"


@dataclass(frozen=True, slots=True)
class MeasuredEnvironment:
    """An environment by the name that its user gave it: its Python and its variables."""

    name: str
    python: Path
    variables: Mapping[str, str] = field(repr=False)

    def start(self, command: Sequence[str], err: IO[bytes]) -> WorkerProcess:
        """Start a worker as `start_worker` does, in this environment."""
        words = [str(self.python), *command[1:]]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stderr=err, env=self.variables)

    def stack(self, backend: str, device: str | None = None) -> Stack:
        """Return the stack of this machine in this environment. Raises BadInput where it cannot
        measure."""
        of_device = ["--device", device] if device else []
        text = self._output("-m", "jobs.cli", "stack", "--backend", backend, *of_device)
        return Stack.from_json(json_object(text.encode(), what="a stack", key=self.name))

    def check(self) -> None:
        """Raise BadInput unless this environment has torch, and can run this version of opmeter."""
        probe = "import importlib.util as u, collector as c; print(bool(u.find_spec('torch')), "
        has_torch, version = self._output("-c", probe + "c.__version__)").split()
        if has_torch != "True":
            raise BadInput(f"--environment {self.name}: torch is not installed in it")
        if version != collector.__version__:
            what = f"expected opmeter {collector.__version__}, got {version}"
            raise BadInput(f"--environment {self.name}: {what}; {self.python} -m pip install it")

    def _output(self, *words: str) -> str:
        try:
            done = subprocess.run(
                [str(self.python), "-P", *words],
                env=self.variables,
                capture_output=True,
                text=True,
                timeout=_PROBE_S,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            raise HostFault(f"--environment {self.name}: no answer in {_PROBE_S:g} s") from error
        except OSError as error:
            raise BadInput(f"--environment {self.name}: {error.strerror}: {self.python}") from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it ended without a message"])[-1]
            raise BadInput(f"--environment {self.name}: {last.removeprefix('opmeter: ')}")
        return done.stdout


def environment_of(text: str) -> MeasuredEnvironment:
    """Return the environment that a user names by a path. Raises BadInput for another path."""
    path = Path(text).expanduser()
    name = f"--environment {text}"
    if path.is_file() and path.suffix == ".sh":
        return _lending(text, Path(sys.executable), _sourced(path, name))
    python = path / "bin" / "python" if path.is_dir() else path
    if not python.exists():
        raise BadInput(
            f"{name}: {_EXPECTED}, got {'one without bin/' if path.is_dir() else 'no '}"
            f"{'python' if path.is_dir() else 'such file or folder'}"
        )
    if not (python.is_file() and os.access(python, os.X_OK)):
        raise BadInput(f"{name}: {_EXPECTED}, got a file that cannot be run")
    # Not resolved: the link in a virtual environment is what makes it one.
    python = python.absolute()
    variables = {name: value for name, value in os.environ.items() if name not in _OF_OTHERS}
    variables["PATH"] = f"{python.parent}{os.pathsep}{variables.get('PATH', os.defpath)}"
    return _lending(text, python, variables)


def _sourced(script: Path, name: str) -> dict[str, str]:
    """Return the variables after a script was sourced. Raises BadInput if it fails."""
    words = ["bash", "-c", 'source "$1" >&2 && exec env -0', "bash", str(script.absolute())]
    done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise BadInput(f"{name}: the script failed: {said[-1] if said else done.returncode}")
    pairs = (one.partition("=") for one in done.stdout.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs if name}


def _lending(name: str, python: Path, variables: dict[str, str]) -> MeasuredEnvironment:
    """Return an environment to which opmeter's packages are lent, after its own."""
    own = (Path(collector.__file__).parents[1], *map(sysconfig.get_path, ("purelib", "platlib")))
    site = str(files("collector") / "capture" / "site")
    paths = [site, *filter(None, [variables.get("PYTHONPATH")])]
    lent = {LENT: os.pathsep.join(dict.fromkeys(map(str, own)))}
    return MeasuredEnvironment(
        name, python, {**variables, **lent, "PYTHONPATH": os.pathsep.join(paths)}
    )
