"""Launch of an operator by a backend: the reference in plain torch, or the public NPU API.

If a host lacks what a declaration needs, the case is not at fault: its outcome is `unsupported`,
with what is missing and where to get it.
"""

import atexit
import ctypes
import importlib
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from collector.codec.errors import OpmeterError
from collector.codec.scratch import scratch_folder
from collector.host import custom_operators, kernel_libraries
from collector.host.operator_library import has_static_kernels, static_kernel_problem
from collector.model.case import Case
from collector.model.measurement import Library
from collector.model.vocabulary import LIBRARY, STATIC
from collector.ops.refusals import NO_STATIC_KERNELS, requires_950
from collector.ops.releases import ROWS_OF_950, why_unsupported
from collector.ops.spec import Call, Need, OpSpec, TensorMaker, library_of
from collector.replay.custom_opp import is_in_custom_opp, mismatched_function

# Launches that torchair compiles: the kernels of graphs, and kernels built for one shape.
#
# Neither was run on a device so far. What torchair makes of a call is known from its converters,
# which the tests run; the record of a launch shows which kernels CANN launches for it.


def in_graph(run: Callable[..., Any], *, is_dynamic: bool) -> Callable[..., Any]:
    """Return a launch as a graph of CANN's graph engine, which is torchair's default (its mode
    `max-autotune`)."""
    return _compiled(run, importlib.import_module("torchair").CompilerConfig(), is_dynamic)


def with_static_kernel(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a launch of a kernel that is built for its shapes: OP State `static`. CANN's
    documents call this static kernel compilation, and offer it only in the mode
    `reduce-overhead`."""
    config = importlib.import_module("torchair").CompilerConfig()
    config.mode = "reduce-overhead"
    kernels = config.experimental_config.aclgraph
    kernels._aclnn_static_shape_kernel = True
    kernels._aclnn_static_shape_kernel_build_dir = str(_build_folder())
    return _compiled(run, config, False)


def compiled_while_built(
    build: Callable[[Case, TensorMaker], Call],
    run: Callable[..., Any],
    check: Callable[[], None] = lambda: None,
) -> Callable[[Case, TensorMaker], Call]:
    """Return a function that builds the arguments of a compiled launch, launches once, and checks
    what was compiled. While torchair compiles, it runs the operator several times (to warm up, to
    dump its shapes, to capture it), and these are not launches of the case."""

    def built(case: Case, make: TensorMaker) -> Call:
        call = build(case, make)
        run(*call.args, **call.kwargs)
        check()
        return call

    return built


def _require_static_kernels() -> None:
    """Raise NoOperator if no kernel was installed: torchair only warns of it, and CANN would launch
    the kernel for any shape."""
    if not has_static_kernels():
        what = (
            "op_compiler built no package, or its installation failed; the session's log says why"
        )
        raise NoOperator(f"{NO_STATIC_KERNELS}: {what}")


def _compiled(run: Callable[..., Any], config: Any, is_dynamic: bool) -> Callable[..., Any]:
    torchair = importlib.import_module("torchair")
    torch._dynamo.reset()  # cases share the code of their launch, and would exceed its limit
    backend = torchair.get_npu_backend(compiler_config=config)
    compiled: Callable[..., Any] = torch.compile(
        run, backend=backend, dynamic=is_dynamic, fullgraph=True
    )
    return compiled


@cache
def _build_folder() -> Path:
    """Return the folder in which a session's kernels are built, removed with the session.
    torchair's default, the folder of its script, may not be writable."""
    held = ExitStack()
    atexit.register(held.close)
    return held.enter_context(scratch_folder("static"))


# Selection of the function that launches an operator on this host, and of the library of its
# kernel.
#
# Two libraries may have a kernel under one name: CANN, and the custom OPP of vLLM-Ascend, which
# torch_npu searches first. A stack with vLLM-Ascend serves with the latter, by functions of its
# own; so does a session, unless its case requests CANN's.


@dataclass(frozen=True, slots=True)
class SelectedFunction:
    """The function to call, as a declaration names it, and the library of the kernel that it
    launches. `refused` is the reason why it may not be called, empty if it may."""

    call: str
    library: Library
    refused: str = ""


def selected_function(op: OpSpec, case: Case, environment: Mapping[str, str]) -> SelectedFunction:
    """Return what launches a case in a session of this environment."""
    if op.library == Library.VLLM_ASCEND:
        is_triton = Need.TRITON in op.npu.needs
        return SelectedFunction(op.call, Library.TRITON if is_triton else Library.VLLM_ASCEND)
    is_custom = is_in_custom_opp(op.kernel, environment)
    if is_custom and op.npu.served and not requires_950(case):
        found = SelectedFunction(op.npu.served, Library.VLLM_ASCEND)
    elif is_custom:
        refused = mismatched_function(op.kernel, environment)
        found = SelectedFunction(op.call, Library.VLLM_ASCEND, refused)
    else:
        found = SelectedFunction(op.call, Library.ATB if Need.ATB in op.npu.needs else Library.CANN)
    requested = case.attribute(LIBRARY)
    if requested is None or requested == found.library:
        return found
    if found.library is Library.VLLM_ASCEND:
        got = ", got that of vLLM-Ascend's custom OPP"
    else:
        got = ", but no custom OPP has it: install a vllm-ascend that has it, or request cann's"
    return replace(found, refused=f"{op.kernel}: expected the kernel of {requested}{got}")


_ATB_LIBRARY = "libatb.so"
_LONGEST_REASON = 400
_FROM = {
    "torch": "this operator requires another version of torch",
    "torch_npu": "pip install a torch_npu that has it (the post number of a version matters)",
    "vllm-ascend": "install vllm-ascend of the campaign's version, built with its custom operators",
}


class NoOperator(OpmeterError):
    """No operator on this host can launch a kernel type; the message names what is missing and
    what to install."""


@dataclass(frozen=True, slots=True)
class Launcher:
    """Functions for one operator: `build` makes the arguments of every launch, `run` is one
    launch."""

    build: Callable[[Case, TensorMaker], Call]
    run: Callable[..., Any]
    library: Library = Library.NONE  # library of the launched kernel


class ReferenceCalls:
    """Plain torch, which cpu and cuda measure."""

    def imports_for(self, op: OpSpec, case: Case) -> bool:
        """Return whether `of` would import something first."""
        return False

    def of(self, op: OpSpec, case: Case) -> Launcher:
        return Launcher(op.build, op.launch or partial(op.run_reference, torch))


class NpuCalls:
    """The function that `OpSpec.call` names, on an NPU host."""

    def __init__(self, torch_npu: Any, environment: Mapping[str, str] = os.environ):
        self._roots = {"torch": torch, "torch_npu": torch_npu}
        self._environment = environment
        self._missing_needs: dict[Need, str] = {}
        self._selections: dict[tuple[str, str | None, bool], SelectedFunction] = {}

    def imports_for(self, op: OpSpec, case: Case) -> bool:
        """Return whether `of` would import something first: vLLM takes a minute from a cold
        disk."""
        if op.launch is not None:
            return False
        found = self._selected(op, case)
        return not found.refused and not self._needs(op, case, found) <= self._missing_needs.keys()

    def of(self, op: OpSpec, case: Case) -> Launcher:
        """Return the launcher of an operator. Raises NoOperator if this host cannot launch it."""
        if op.launch is not None:
            return Launcher(op.build, op.launch)
        found = self._selected(op, case)
        if found.refused:
            raise NoOperator(found.refused)
        for need in sorted(self._needs(op, case, found)):
            self._require(need)
        graph, is_static = op.graph_of(case), case.op_state == STATIC
        if graph is not None or is_static:
            self._require(Need.TORCHAIR)
        run: Callable[..., Any] = partial((graph or op.npu).run, resolve(found.call, self._roots))
        if graph is None and not is_static:
            return Launcher(op.npu_call, run, found.library)
        if graph is not None:
            run = in_graph(run, is_dynamic=not (is_static or graph.is_static))
            return Launcher(compiled_while_built(op.npu_call, run), run, found.library)
        if problem := static_kernel_problem():
            raise NoOperator(f"{NO_STATIC_KERNELS}: {problem}")
        run = with_static_kernel(run)
        build = compiled_while_built(op.npu_call, run, check=_require_static_kernels)
        return Launcher(build, run, found.library)

    def _needs(self, op: OpSpec, case: Case, found: SelectedFunction) -> frozenset[Need]:
        own = {Need.VLLM_ASCEND} if found.call == op.npu.served else set()
        return op.npu.needs | own | ({Need.ASCEND_950} if requires_950(case) else set())

    def _selected(self, op: OpSpec, case: Case) -> SelectedFunction:
        """Return which function is called; it is refused, too, if the installed release takes it
        differently."""
        is_of_950 = requires_950(case)
        place = (op.kernel, case.attribute(LIBRARY), is_of_950)
        if place not in self._selections:
            found = selected_function(op, case, self._environment)
            # The release of the library, as `releases.csv` spells it; empty if not installed.
            library = library_of(found.call).replace("-", "_")
            version = kernel_libraries.installed_version(library)
            release = f"{library}-{version}" if version else ""
            refused = why_unsupported(op.kernel, release, ROWS_OF_950 if is_of_950 else "")
            self._selections[place] = replace(found, refused=found.refused or refused)
        return self._selections[place]

    def _require(self, need: Need) -> None:
        """Raise NoOperator, with what it lacks, if this host does not have a need."""
        if need not in self._missing_needs:
            self._missing_needs[need] = ""
            try:
                _NEEDS[need](self._environment)
            except (ImportError, OSError, AttributeError, NoOperator) as error:
                reason = " ".join(str(error).split())[:_LONGEST_REASON]
                self._missing_needs[need] = f"requires {need.value}: {reason}"
        if self._missing_needs[need]:
            raise NoOperator(self._missing_needs[need])


Calls = ReferenceCalls | NpuCalls


def resolve(call: str, roots: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function of this name, attribute by attribute (`torch.ops` included). A function
    of another package, such as vLLM-Ascend's own, is imported from its module; a method too.

    Raises NoOperator if there is none."""
    first, *rest = call.split(".")
    found: Any = roots.get(first)
    try:
        if found is None:
            count = next((i for i, name in enumerate(rest) if name[0].isupper()), len(rest) - 1)
            found, rest = importlib.import_module(".".join((first, *rest[:count]))), rest[count:]
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
    if problem := custom_operators.custom_opp_problem(environment):
        raise NoOperator(problem)


def import_vllm_ascend(environment: Mapping[str, str]) -> None:
    """Import vllm_ascend and load its operators: the import alone does not register them."""
    module = importlib.import_module("vllm_ascend.utils")
    enable = getattr(module, "enable_custom_op", None)
    if enable is not None:
        enable()


def _import_triton_kernels(environment: Mapping[str, str]) -> None:
    """Register torch.ops.vllm.*, and initialize the number of cores, which the kernels need at
    launch."""
    import_vllm_ascend(environment)
    importlib.import_module("vllm_ascend.ops.register_custom_ops")
    cores = importlib.import_module("vllm_ascend.ops.triton.triton_utils")
    cores.init_device_properties_triton()


def _configure_engine(environment: Mapping[str, str]) -> None:
    """Set the configuration of a deployment without options: since vLLM-Ascend 0.23 functions read
    it that need nothing else of an engine."""
    import_vllm_ascend(environment)
    initialize = importlib.import_module("vllm_ascend.ascend_config").init_ascend_config
    try:
        initialize(importlib.import_module("vllm.config").VllmConfig())
    except (RuntimeError, ValueError) as error:
        raise NoOperator(str(error)) from error


def _find_block_verification(environment: Mapping[str, str]) -> None:
    module = importlib.import_module("vllm_ascend.ascend_config")
    if not hasattr(module, "RejectionSamplerConfig"):
        raise NoOperator("this release has no such option")


def _import_torchair(environment: Mapping[str, str]) -> None:
    importlib.import_module("torchair").get_npu_backend  # noqa: B018  (it imports itself lazily)


def _check_950(environment: Mapping[str, str]) -> None:
    soc = torch.npu.get_device_name()
    if not soc.startswith("Ascend950"):
        raise NoOperator(f"this device is {soc}")


_NEEDS: Mapping[Need, Callable[[Mapping[str, str]], None]] = {
    Need.ATB: _load_atb,
    Need.CUSTOM_OPP: _find_custom_opp,
    Need.VLLM_ASCEND: import_vllm_ascend,
    Need.TRITON: _import_triton_kernels,
    Need.ENGINE_CONFIG: _configure_engine,
    Need.BLOCK_VERIFICATION: _find_block_verification,
    Need.TORCHAIR: _import_torchair,
    Need.ASCEND_950: _check_950,
}
