"""Loaded by each Python process of a captured program: prepares its capture once torch is imported.
And by each process that measures in another environment than opmeter's: lends it what it lacks.

The process may have another Python than opmeter, so that nothing else of opmeter is imported before
torch is."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Lets the other finders find torch, and attaches the capture after torch's own code."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            _attach()

        spec.loader.exec_module = exec_module
        return spec


class _Lent(importlib.abc.MetaPathFinder):
    """Finds what this Python lacks in the folders of another, but for the software that is
    measured: that of another environment would be taken for this one's."""

    def __init__(self, folders):
        self.folders = folders

    def find_spec(self, name, path=None, target=None):
        if path is not None or name.startswith(("torch", "vllm", "triton", "nvidia", "functorch")):
            return None
        return importlib.machinery.PathFinder.find_spec(name, self.folders)


def _attach():
    try:
        from collector.capture.injection import attach
    except ImportError as error:
        sys.stderr.write(
            f"opmeter capture: {sys.executable} cannot import opmeter ({error}): expected it in "
            "the environment of the program, which runs without a capture\n"
        )
    else:
        attach()


def _run_the_next_one():
    """Run the sitecustomize that this one hides, such as that of a distribution."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [path for path in sys.path if os.path.abspath(path) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_the_next_one()
if os.environ.get("OPMETER_CAPTURE"):
    sys.meta_path.insert(0, _AfterTorch())
if os.environ.get("OPMETER_LENT"):
    sys.meta_path.append(_Lent(os.environ["OPMETER_LENT"].split(os.pathsep)))
