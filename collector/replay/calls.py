"""How a backend launches an operator: the reference in plain torch, or the public NPU API.

A host that lacks what a declaration needs is no fault of the case: it is answered `unsupported`,
with what is missing and where it comes from.
"""

import ctypes
import importlib
import importlib.metadata
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from collector.case import Case
from collector.errors import OpmeterError
from collector.host.custom_opp import custom_opp_problem
from collector.measurement import Library
from collector.ops.libraries import library_of
from collector.ops.releases import refused_on
from collector.ops.spec import Call, Need, OpSpec, TensorMaker
from collector.replay.answering import Answering, who_answers
from collector.replay.graphs import compiled_while_built, in_graph, with_static_kernel
from collector.vocabulary import LIBRARY, STATIC

_ATB_LIBRARY = "libatb.so"
_LONGEST_REASON = 400
_FROM = {
    "torch": "this operator requires another version of torch",
    "torch_npu": "pip install a torch_npu that has it (the post number of a version matters)",
    "vllm-ascend": "install vllm-ascend of the campaign's version, built with its custom operators",
}


class NoOperator(OpmeterError):
    """Nothing here can launch a kernel type; the message says what lacks and what to install."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """`build` makes what every launch passes, `run` is one launch."""

    build: Callable[[Case, TensorMaker], Call]
    run: Callable[..., Any]
    library: Library = Library.NONE  # whose kernel that launches


class Calls(Protocol):
    """How the operators of one backend are launched."""

    def of(self, op: OpSpec, case: Case) -> Launcher:
        """Raises NoOperator where this host cannot launch it."""


class ReferenceCalls:
    """Plain torch: what cpu and cuda measure."""

    def of(self, op: OpSpec, case: Case) -> Launcher:
        return Launcher(op.build, partial(op.reference, torch))


class NpuCalls:
    """The function that `OpSpec.call` names, as an NPU host has it."""

    def __init__(self, torch_npu: Any, environment: Mapping[str, str] = os.environ):
        self._roots = {"torch": torch, "torch_npu": torch_npu}
        self._environment = environment
        self._answers: dict[Need, str] = {}
        self._answering: dict[tuple[str, str | None], Answering] = {}
        self._apis: dict[str, Callable[..., Any]] = {}

    def of(self, op: OpSpec, case: Case) -> Launcher:
        found = self._answer(op, case)
        if found.refused:
            raise NoOperator(found.refused)
        own = {Need.VLLM_ASCEND} if found.call == op.npu.served else set()
        for need in sorted(op.npu.needs | own):
            self._require(need)
        graph, is_static = op.graph_of(case), case.op_state == STATIC
        if graph is not None or is_static:
            self._require(Need.TORCHAIR)
        run: Callable[..., Any] = partial((graph or op.npu).run, self._api(found.call))
        if graph is None and not is_static:
            return Launcher(op.npu_call, run, found.library)
        run = with_static_kernel(run) if graph is None else in_graph(run, is_dynamic=not is_static)
        return Launcher(compiled_while_built(op.npu_call, run), run, found.library)

    def _answer(self, op: OpSpec, case: Case) -> Answering:
        """Whose function is called; refused, too, where this release takes it otherwise."""
        place = (op.kernel, case.attribute(LIBRARY))
        if place not in self._answering:
            found = who_answers(op, case, self._environment)
            refused = refused_on(op.kernel, installed_release(library_of(found.call)))
            self._answering[place] = replace(found, refused=found.refused or refused)
        return self._answering[place]

    def _api(self, call: str) -> Callable[..., Any]:
        if call not in self._apis:
            self._apis[call] = resolve(call, self._roots)
        return self._apis[call]

    def _require(self, need: Need) -> None:
        if need not in self._answers:
            self._answers[need] = self._missing(need)
        if self._answers[need]:
            raise NoOperator(self._answers[need])

    def _missing(self, need: Need) -> str:
        """What lacks of a need; empty where nothing does."""
        try:
            _NEEDS[need](self._environment)
        except (ImportError, OSError, AttributeError, NoOperator) as error:
            return f"requires {need.value}: {' '.join(str(error).split())[:_LONGEST_REASON]}"
        return ""


def installed_release(library: str) -> str:
    """The release of an operator's library, as `releases.csv` spells it; empty where none is."""
    package = library.replace("-", "_")
    try:
        return f"{package}-{importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return ""


def resolve(call: str, roots: Mapping[str, Any]) -> Callable[..., Any]:
    """The function of this name, attribute by attribute (`torch.ops` included); of another
    package, as vLLM-Ascend's own functions are, out of its module.

    Raises NoOperator where there is none.
    """
    first, *rest = call.split(".")
    found: Any = roots.get(first)
    try:
        if found is None:
            module, _, name = call.rpartition(".")
            found, rest = importlib.import_module(module), [name]
        for name in rest:
            found = getattr(found, name)
    except (AttributeError, ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise NoOperator(f"{call} not found ({reason}): {_FROM[library_of(call)]}") from error
    if not callable(found):
        raise NoOperator(f"{call} is not a function: {_FROM[library_of(call)]}")
    api: Callable[..., Any] = found
    return api


def _load_atb(environment: Mapping[str, str]) -> None:
    try:
        ctypes.CDLL(_ATB_LIBRARY)
    except OSError as error:
        raise NoOperator(f"{error}; source /usr/local/Ascend/nnal/atb/set_env.sh") from error


def _find_custom_opp(environment: Mapping[str, str]) -> None:
    if problem := custom_opp_problem(environment):
        raise NoOperator(problem)


def import_vllm_ascend(environment: Mapping[str, str]) -> None:
    """Importing it registers nothing yet: its own switch loads the library of operators."""
    module = importlib.import_module("vllm_ascend.utils")
    enable = getattr(module, "enable_custom_op", None)
    if enable is not None:
        enable()


def _import_triton_kernels(environment: Mapping[str, str]) -> None:
    """Registers torch.ops.vllm.*; the kernels ask for the number of cores before their launch."""
    import_vllm_ascend(environment)
    importlib.import_module("vllm_ascend.ops.register_custom_ops")
    cores = importlib.import_module("vllm_ascend.ops.triton.triton_utils")
    cores.init_device_properties_triton()


def _import_torchair(environment: Mapping[str, str]) -> None:
    importlib.import_module("torchair").get_npu_backend  # noqa: B018  (it imports itself lazily)


_NEEDS: Mapping[Need, Callable[[Mapping[str, str]], None]] = {
    Need.ATB: _load_atb,
    Need.CUSTOM_OPP: _find_custom_opp,
    Need.VLLM_ASCEND: import_vllm_ascend,
    Need.TRITON: _import_triton_kernels,
    Need.TORCHAIR: _import_torchair,
}
