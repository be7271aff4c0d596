"""The profilers that a program starts by itself.

A process has one profiler at a time: a second one fails, or takes the events of the first, whose
export then ends the process. So a capture ends before a profiler of the program starts, and begins
where none runs. What a capture itself does with profilers is inside of `of_capture`.

The functions are those by which torch 2.9 to 2.13 and torch_npu 2.9 to 2.13 start and stop every
profiler: torch.profiler, torch.autograd.profiler (also emit_nvtx, emit_itt), its legacy, and
torch_npu.profiler with its dynamic_profile.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from types import ModuleType
from typing import Any

from collector.capture.after_import import after_import

_LOG = logging.getLogger(__name__)
_TORCH = ("torch.autograd.profiler", ("_prepare_profiler", "_enable_profiler"), "_disable_profiler")
_LEGACY = (
    "torch.autograd.profiler_legacy",
    ("_enable_profiler_legacy",),
    "_disable_profiler_legacy",
)
_NPU = "torch_npu.profiler.profiler_interface"  # its _ProfInterface begins and ends each round
# Where torch_npu's profiler writes: one for the process, of the handler that was made last.
_PATHS = "torch_npu.profiler._profiler_path_creator"
_NO_PATHS = {
    "_prof_path": None,
    "_worker_name": None,
    "_dir_path": None,
    "_export_only_mode": False,
}

_pid = 0  # of the process whose profilers are watched; a fork of it has none of them
_in_capture: set[int] = set()  # threads
_running: set[tuple[str, int]] = set()  # profilers of the program: the kind, and the thread
_listeners: list[Callable[[], None]] = []
_own_paths: dict[str, Any] = {}


def watch() -> None:
    """Watch this process from now on, also where torch_npu is not imported yet."""
    global _pid
    if _pid == os.getpid():
        return
    _running.clear()
    is_first, _pid = not _pid, os.getpid()
    if is_first:
        for name, starts, end in (_TORCH, _LEGACY):
            after_import(name, partial(_attach, kind="torch", starts=starts, end=end))
        after_import(_NPU, _attach_npu)


def is_running() -> bool:
    """Return whether a profiler runs, or is prepared to: of the program, or of another capture.
    torch knows of one that this thread started before it was watched."""
    from torch.autograd import _profiler_enabled

    return bool(_running or _listeners or _profiler_enabled())


@contextmanager
def of_capture() -> Iterator[None]:
    """Mark what this thread does in the block as a capture's, with its own folder of torch_npu."""
    thread = threading.get_ident()
    is_outer = thread not in _in_capture
    theirs = _paths() or _NO_PATHS
    if is_outer:
        _in_capture.add(thread)
        _set_paths(_own_paths)
    try:
        yield
    finally:
        if is_outer:
            _own_paths.update(_paths())
            _set_paths(theirs)
            _in_capture.discard(thread)


@contextmanager
def before_each(action: Callable[[], None]) -> Iterator[None]:
    """Run an action before each start of a profiler of the program, in its thread."""
    _listeners.append(action)
    try:
        yield
    finally:
        _listeners.remove(action)


def _paths() -> dict[str, Any]:
    module = sys.modules.get(_PATHS)
    creator = vars(module.ProfPathCreator()) if module is not None else {}
    return {name: creator[name] for name in _NO_PATHS if name in creator}


def _set_paths(values: dict[str, Any]) -> None:
    if values and (module := sys.modules.get(_PATHS)) is not None:
        vars(module.ProfPathCreator()).update(values)


def _attach(owner: Any, kind: str, starts: tuple[str, ...], end: str) -> None:
    for name in (*starts, end):
        if (original := getattr(owner, name, None)) is not None:
            setattr(owner, name, _noted(original, kind, is_start=name != end))


def _attach_npu(module: ModuleType) -> None:
    _attach(module._ProfInterface, "torch_npu", ("init_trace",), "finalize_trace")


def _noted(original: Callable[..., Any], kind: str, *, is_start: bool) -> Callable[..., Any]:
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        thread = threading.get_ident()
        if thread in _in_capture or os.getpid() != _pid:
            return original(*args, **kwargs)
        if not is_start:
            _running.discard((kind, thread))
            return original(*args, **kwargs)
        for listener in list(_listeners):
            try:
                listener()
            except Exception:  # the program must not fail because of its capture
                _LOG.exception("the capture failed to end before a profiler of the program")
        done = original(*args, **kwargs)
        _running.add((kind, thread))
        return done

    return call
