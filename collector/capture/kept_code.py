"""The code that runs while torch records stacks, kept until it has read the names of its functions.

torch's tracer of Python notes where in memory the names of files and functions are, and reads them
when the profiler ends and when its events are read (up to 2.13; pytorch issue 130622). The code of
a module is freed once it is imported, and so is that of a text that was executed. Then a stack and
the trace have arbitrary bytes in place of names: torch's `export_stacks` raises UnicodeDecodeError,
and the trace is no JSON. The tracer of torch_npu copies the names.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any

# The events of Python's auditing with code that begins to exist, or to run for the only time.
_WITH_CODE = frozenset({"exec", "code.__new__", "function.__new__"})
_kept: list[list[Any]] = []  # one of each recording that runs
_hooks: list[Any] = []  # at most one, which Python cannot remove: it does nothing between captures


@contextmanager
def kept_code() -> Iterator[object]:
    """Keep all code that exists, or begins to within the block, until the object is released."""
    kept: list[Any] = list(_existing_code())
    if not _hooks:
        _hooks.append(_keep)
        sys.addaudithook(_keep)
    _kept.append(kept)
    try:
        yield kept
    finally:
        _kept[:] = [one for one in _kept if one is not kept]


def _keep(event: str, arguments: tuple[Any, ...]) -> None:
    if _kept and event in _WITH_CODE:
        for kept in _kept:
            kept.append(arguments)


def _existing_code() -> Iterator[CodeType]:
    """Yield the code of all functions, which has that of their inner ones, and of what runs."""
    for one in gc.get_objects():
        if type(one) is FunctionType:  # of others, `isinstance` may run code
            yield one.__code__
    for frame in sys._current_frames().values():
        outer: FrameType | None = frame
        while outer is not None:
            yield outer.f_code
            outer = outer.f_back
