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
_LEAST_PYTHON = (3, 11)
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
        text = self._output("-P", "-m", "jobs.cli", "stack", "--backend", backend, *of_device)
        return Stack.from_json(json_object(text.encode(), what="a stack", key=self.name))

    def check(self) -> None:
        """Raise BadInput unless this environment has torch, and can run this version of opmeter."""
        here = sys.version_info[:2]
        probe = "import sys; print('%d %d' % tuple(sys.version_info[:2]))"
        found = self._output("-c", probe).split()
        if not all(map(str.isdecimal, found)):
            raise self._refusal("expected a Python, got another program")
        if tuple(map(int, found)) < _LEAST_PYTHON:
            least = ".".join(map(str, _LEAST_PYTHON))
            raise self._refusal(f"expected Python {least} or newer, got {'.'.join(found)}")
        probe = "import importlib.util as u, collector as c; print(bool(u.find_spec('torch')), "
        words = self._output("-P", "-c", f"{probe}c.__version__, c.__file__)").split(None, 2)
        if words[0] != "True":
            raise self._refusal("torch is not installed in it")
        if words[1] != collector.__version__:
            raise self._refusal(f"expected opmeter {collector.__version__}, got {words[1]}")
        if Path(words[2].strip()) == Path(collector.__file__) and tuple(map(int, found)) != here:
            version = ".".join(map(str, here))
            what = f"expected opmeter in it, or Python {version}, to which it can be lent"
            raise self._refusal(f"{what}, got Python {'.'.join(found)} without opmeter")

    def _refusal(self, what: str) -> BadInput:
        return BadInput(f"--environment {self.name}: {what}")

    def _output(self, *words: str) -> str:
        try:
            done = subprocess.run(
                [str(self.python), *words],
                env=self.variables,
                capture_output=True,
                text=True,
                timeout=_PROBE_S,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            raise HostFault(f"--environment {self.name}: no answer in {_PROBE_S:g} s") from error
        except OSError as error:
            raise self._refusal(f"{error.strerror}: {self.python}") from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["it ended without a message"])[-1]
            raise self._refusal(last.removeprefix("opmeter: "))
        return done.stdout


def environment_of(text: str) -> MeasuredEnvironment:
    """Return the environment that a user names by a path. Raises BadInput for another path."""
    path = Path(text).expanduser()
    name = f"--environment {text or repr(text)}"
    if text and path.is_file() and path.suffix == ".sh":
        return _lending(text, Path(sys.executable), _sourced(path, name))
    python = path / "bin" / "python" if path.is_dir() else path
    if not text or not python.exists():
        got = "a folder without bin/python" if text and path.is_dir() else "none"
        raise BadInput(f"{name}: {_EXPECTED}, got {got}")
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
