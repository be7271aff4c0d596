"""Which kernel a recorded call launches: the tables of collector/recording/kernel_tables, joined.

Each of its modules holds `KERNELS`: the name of a recorded call -> the OP Type that msprof prints,
or a function (tensors) -> OP Type where the runtime chooses by shape, dtype or format; "" says
that no kernel runs. `OF_CALLS`, where a module has it, holds functions of the whole call, for what
its numbers decide; `SEEN` and `READ` the calls whose kernel a real profile shows, or CANN's open
sources. One call is one kernel here, as long as nothing else is known.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, ModuleType

from collector.recording.calls import Recorded, RecordedTensor

_TRITON = "triton."  # a kernel that opmeter_launches recorded instead of compiling it
Chooser = Callable[[tuple[RecordedTensor, ...]], str]
_FOLDER = Path(__file__).parent / "kernel_tables"


def kernel_of(call: Recorded) -> str:
    """The OP Type of a call; of one that no table knows, its name without `aclnn`."""
    if call.kind == "HOST":
        return ""
    if call.kind == "HCCL":
        name = call.name.removeprefix("Hccl")
        return f"hcom_{name[0].lower()}{name[1:]}_"
    if call.kind == "CUSTOM" and call.name.startswith(_TRITON):
        return call.name.removeprefix(_TRITON)
    if of_call := _of_calls().get(call.name):
        return of_call(call)
    known = tables().get(call.name)
    if known is None:
        return call.name.removeprefix("aclnn").removesuffix("Param")
    return known if isinstance(known, str) else known(call.tensors)


def calls_of(kernel: str) -> tuple[str, ...]:
    """The recorded names that may launch a kernel."""
    plain = (name for name, known in tables().items() if known == kernel)
    choosing = (name for name, known in tables().items() if callable(known))
    return (f"aclnn{kernel}", *plain, *choosing, *_of_calls())


def source_of(name: str) -> str:
    """Where it is known from which kernel a call launches: SEEN, READ, or empty where the kernel
    has the call's name and nothing more is known."""
    modules = [load(path) for path in _paths()]
    return next(
        (kind for kind in ("SEEN", "READ") if any(name in getattr(m, kind, ()) for m in modules)),
        "",
    )


@cache
def tables() -> Mapping[str, str | Chooser]:
    """Every table in one; ValueError where two of them tell different types."""
    joined: dict[str, str | Chooser] = {}
    for path in _paths():
        for name, known in load(path).KERNELS.items():
            if joined.setdefault(name, known) != known:
                raise ValueError(f"{path}: {name} is in another table with another type")
    return MappingProxyType(joined)


@cache
def _of_calls() -> Mapping[str, Callable[[Recorded], str]]:
    modules = map(load, _paths())
    return {name: of for module in modules for name, of in getattr(module, "OF_CALLS", {}).items()}


def _paths() -> list[Path]:
    return sorted(_FOLDER.glob("[!_]*.py"))


@cache
def load(path: Path) -> ModuleType:
    """A module of the tables."""
    return import_module(f"collector.recording.kernel_tables.{path.stem}")
