"""The functions that declarations name, as on an NPU host."""

import sys
import types
from dataclasses import replace

import pytest

from collector.model.vocabulary import GRAPH, LAUNCHED_BY
from collector.ops.registry import all_ops, find_operator
from tests.fixtures.op_rows import rows_of
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.torch


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")


@pytest.fixture
def package(monkeypatch):
    """A function two packages down, in modules that are not imported yet."""
    names = ("made_up", "made_up.ops", "made_up.ops.rope")
    modules = [types.ModuleType(name) for name in names]
    for module in modules:
        module.__path__ = []
        monkeypatch.setitem(sys.modules, module.__name__, module)
    modules[-1].turn = lambda x: x + 1


def resolved(call, roots):
    from collector.replay.calls import resolve

    return resolve(call, roots)


def test_function_is_resolved_attribute_by_attribute(torch):
    assert resolved("torch.nn.functional.silu", {"torch": torch}) is torch.nn.functional.silu
    assert resolved("torch.ops.aten.index", {"torch": torch}) is torch.ops.aten.index


def test_function_of_another_package_is_imported_from_its_module(torch, package):
    assert resolved("made_up.ops.rope.turn", {"torch": torch})(1) == 2


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("torch.no_such_thing", "no_such_thing"),
        ("no_such_package.ops.rope.turn", "No module named 'no_such_package'"),
        ("made_up.ops.rope.no_such_thing", "no_such_thing"),
    ],
)
def test_missing_function_is_reported_with_its_package(torch, package, call, reason):
    from collector.replay.calls import NoOperator

    with pytest.raises(NoOperator, match=naming(call, reason)):
        resolved(call, {"torch": torch})


def test_every_call_starts_with_a_known_package():
    known = {"torch", "torch_npu", "vllm", "vllm_ascend"}
    assert {op.call.split(".")[0] for op in all_ops()} <= known


class Torchair:
    """Replaces torchair: it records the configuration of each compilation."""

    def __init__(self):
        self.configs = []

    def CompilerConfig(self):
        aclgraph = types.SimpleNamespace()
        experimental = types.SimpleNamespace(aclgraph=aclgraph)
        return types.SimpleNamespace(mode="max-autotune", experimental_config=experimental)

    def get_npu_backend(self, *, compiler_config):
        self.configs.append(compiler_config)
        return "eager"


OF_GRAPH = ((LAUNCHED_BY, GRAPH),)


@pytest.mark.parametrize(
    ("kernel", "state", "reported", "mode"),
    [
        ("Add", "dynamic", (), None),
        ("Add", "static", (), "reduce-overhead"),
        ("Add", "static", OF_GRAPH, "max-autotune"),
        ("ConcatV2D", "static", (), "max-autotune"),
        ("ConcatV2D", "static", OF_GRAPH, "max-autotune"),
        ("ConcatV2D", "dynamic", (), "max-autotune"),
    ],
)
def test_graphs_and_kernels_of_one_shape_are_compiled(
    torch, monkeypatch, kernel, state, reported, mode
):
    from collector.replay import calls
    from collector.replay.calls import NpuCalls

    torchair = Torchair()
    monkeypatch.setitem(sys.modules, "torchair", torchair)
    monkeypatch.setattr(calls, "static_kernel_problem", lambda: "")  # as where CANN is installed
    case = replace(next(r.case for r in rows_of(kernel)), op_state=state, attributes=reported)
    NpuCalls(types.SimpleNamespace(), {}).of(find_operator(kernel), case)
    assert [config.mode for config in torchair.configs] == ([mode] if mode else [])


def test_compiled_call_is_launched_once_while_it_is_built(torch):
    from collector.ops.spec import Call
    from collector.replay.calls import compiled_while_built

    launched = []
    build = compiled_while_built(lambda case, make: Call(case, make), lambda *a: launched.append(a))
    assert build("case", "make") == Call("case", "make")
    assert launched == [("case", "make")]


def test_graph_row_without_torchair_is_refused_with_its_name(torch, monkeypatch):
    from collector.replay.calls import NoOperator, NpuCalls

    monkeypatch.setitem(sys.modules, "torchair", None)
    case = next(r.case for r in rows_of("SplitVD"))
    with pytest.raises(NoOperator, match=naming("torchair")):
        NpuCalls(types.SimpleNamespace(), {}).of(find_operator("SplitVD"), case)


def test_case_of_ascend_950_is_refused_on_another_device(torch, monkeypatch):
    from collector.replay.calls import NoOperator, NpuCalls

    kernel = "QuantBatchMatmulV3"
    whole, narrow = (
        next(r.case for r in rows_of(kernel) if r.case.inputs[0].dtype == dtype)
        for dtype in ("INT8", "FLOAT8_E4M3FN")
    )
    package = types.SimpleNamespace(npu_quant_matmul=lambda: None)
    device = types.SimpleNamespace(get_device_name=lambda: "Ascend910B3")
    monkeypatch.setattr(torch, "npu", device, raising=False)
    assert NpuCalls(package, {}).of(find_operator(kernel), whole)
    with pytest.raises(NoOperator, match=naming("950PR", "Ascend910B3")):
        NpuCalls(package, {}).of(find_operator(kernel), narrow)
    device.get_device_name = lambda: "Ascend950PR_9579"
    assert NpuCalls(package, {}).of(find_operator(kernel), narrow)
