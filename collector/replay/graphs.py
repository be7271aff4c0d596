"""Launches that torchair compiles: the kernels of graphs, and kernels built for one shape.

Neither was run on a device so far. What torchair makes of a call is known from its converters,
which the tests run; which kernels CANN launches for that, the record of a launch tells.
"""

import importlib
import tempfile
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from collector.case import Case
from collector.ops.spec import Call, TensorMaker


def in_graph(run: Callable[..., Any], *, is_dynamic: bool) -> Callable[..., Any]:
    """A launch as a graph of CANN's graph engine, which is what torchair compiles to unless asked
    otherwise (its mode `max-autotune`)."""
    return _compiled(run, importlib.import_module("torchair").CompilerConfig(), is_dynamic)


def with_static_kernel(run: Callable[..., Any]) -> Callable[..., Any]:
    """A launch of the kernel by itself, built for its shapes: OP State `static`. CANN's documents
    have it as static kernel compilation, in the mode `reduce-overhead` alone."""
    config = importlib.import_module("torchair").CompilerConfig()
    config.mode = "reduce-overhead"
    kernels = config.experimental_config.aclgraph
    kernels._aclnn_static_shape_kernel = True
    kernels._aclnn_static_shape_kernel_build_dir = _build_folder().name
    return _compiled(run, config, False)


def compiled_while_built(
    build: Callable[[Case, TensorMaker], Call], run: Callable[..., Any]
) -> Callable[[Case, TensorMaker], Call]:
    """What builds the arguments of a compiled launch, and launches once. While it compiles torchair
    runs the operator as it pleases (to warm up, to have its shapes dumped, to capture it), and none
    of that is a launch of the case."""

    def built(case: Case, make: TensorMaker) -> Call:
        call = build(case, make)
        run(*call.args, **call.kwargs)
        return call

    return built


def _compiled(run: Callable[..., Any], config: Any, is_dynamic: bool) -> Callable[..., Any]:
    torchair = importlib.import_module("torchair")
    torch._dynamo.reset()  # cases share the code of their launch, and would run into its limit
    backend = torchair.get_npu_backend(compiler_config=config)
    compiled: Callable[..., Any] = torch.compile(
        run, backend=backend, dynamic=is_dynamic, fullgraph=True
    )
    return compiled


@cache
def _build_folder() -> tempfile.TemporaryDirectory[str]:
    """Where a session's kernels are built, gone with it: beside its script, where torchair would
    put them, may not be written to."""
    return tempfile.TemporaryDirectory(prefix="opmeter-static-")
