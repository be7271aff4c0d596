"""Runs first in every Python of a worker pod, and follows the drill's orders; a copy of it is
stored as `sitecustomize.py` next to torch. It knows only the names of the project's commands."""

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

ORDERS = "drill.json"


class _Broken(Loader):
    """A module that exists and cannot be loaded: the mount of a library that it needs is
    missing."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        raise ImportError("libhccl.so: cannot open shared object file (a drill)")


class _NoTorch(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch":
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None:
            found.loader = _Broken()
        return found


def _obey(orders: dict[str, object], words: Sequence[str]) -> None:
    environment = orders.get("environment")
    if isinstance(environment, dict):
        os.environ.update(environment)
    if os.environ.get("NODE_NAME") == orders.get("node_without_torch"):
        sys.meta_path.insert(0, _NoTorch())
    if "collector.worker" in words:
        time.sleep(float(str(orders.get("delay_s", 0))))
        if orders.get("shard_that_kills") in words:
            os.kill(os.getpid(), signal.SIGSEGV)


if __name__ == "sitecustomize":
    try:
        with open(os.path.join(os.path.dirname(__file__), ORDERS)) as _file:
            _obey(json.load(_file), sys.orig_argv)
    except OSError:
        pass
