"""Custom operators are logged with the data that a profiler drops."""

import json
import os
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")

from collector.capture import capture, sglang_plugin, vllm_plugin  # noqa: E402
from collector.capture.custom_calls import CustomCalls, operators_of, triton_launches  # noqa: E402
from collector.profiles.attention_values import read_attention_values  # noqa: E402
from collector.profiles.logged_calls import LOG_FILE, read_calls  # noqa: E402

pytestmark = pytest.mark.fast
PYPROJECT = Path(__file__).parents[4] / "pyproject.toml"
_LIBRARY = torch.library.Library("npu", "FRAGMENT")
_ATTENTION = (
    "npu_fused_infer_attention_score(Tensor query, Tensor key, Tensor value, *, "
    "Tensor? atten_mask=None, int[]? actual_seq_lengths=None, int[]? actual_seq_lengths_kv=None, "
    "Tensor? block_table=None, int num_heads=1, str input_layout='BSH') -> (Tensor, Tensor)"
)


@pytest.fixture(scope="module")
def ops():
    """Operators of these names on the CPU, as torch_npu and vLLM-Ascend register theirs."""
    if not hasattr(torch.ops.npu, "npu_fused_infer_attention_score"):
        _LIBRARY.define(_ATTENTION)
        _LIBRARY.impl(
            "npu_fused_infer_attention_score",
            lambda query, key, value, **more: (query.clone(), query.new_empty(0)),
            "CPU",
        )
    return torch.ops.npu


def attend(ops, lengths):
    query = torch.zeros(2, 4, 16, dtype=torch.bfloat16)
    cache = torch.zeros(9, 16, 64, dtype=torch.bfloat16)
    table = torch.zeros(2, 4, dtype=torch.int32)
    return ops.npu_fused_infer_attention_score(
        query, cache, cache, actual_seq_lengths_kv=lengths, block_table=table, num_heads=4
    )


def test_an_operator_is_not_the_function_of_python_of_its_name():
    assert [op.kernel for op in operators_of("chunk_fwd_o")] == ["ChunkFwdO"]


def test_calls_of_kept_steps_are_logged_in_order_with_their_lengths(ops, tmp_path):
    with capture(tmp_path, device="cpu", steps=2) as session:
        for number in range(4):
            attend(ops, [30 + number, 40])
            attend(ops, [50, 60])
            session.step()
    (log,) = tmp_path.rglob(LOG_FILE)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["step"], line["order"]) for line in lines] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    first = lines[0]
    assert first["operator"] == "npu::npu_fused_infer_attention_score" and first["rank"] == 0
    assert first["arguments"]["block_table"] == {"shape": [2, 4], "dtype": "int32", "format": "ND"}
    assert first["actual_seq_lengths_kv"] == [31, 40]
    assert {call.kernels for call in read_calls(log)} == {("FusedInferAttentionScore",)}
    assert len(read_attention_values(log)) == 4
    (one, *_) = read_calls(log)
    assert one.cells["Input Shapes"].startswith('"2,4,16;9,16,64;9,16,64;;;;2;')


def test_a_call_may_be_left_out_of_the_log(ops, tmp_path):
    with capture(tmp_path, device="cpu", calls=False) as session:
        for _ in range(3):
            attend(ops, [1, 2])
            session.step()
    assert not list(tmp_path.rglob(LOG_FILE))


def kernel(out_ptr, in_ptr, n):
    offsets = tl.arange(0, n)  # noqa: F821 - it is read, and not run
    tl.store(out_ptr + offsets, tl.load(in_ptr + offsets))  # noqa: F821


class JITFunction:
    """Like a function of Triton: it has a function, and is launched by `run`."""

    fn, arg_names, launched = staticmethod(kernel), ["out_ptr", "in_ptr", "n"], 0

    def run(self, *args, grid, warmup, **kwargs):
        self.launched += 1
        return "compiled"


def test_launches_of_triton_have_the_tensors_that_they_read_and_write(monkeypatch):
    module = SimpleNamespace(JITFunction=type("Function", (JITFunction,), {}))
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", module)
    log, one = CustomCalls(0), module.JITFunction()
    one.fn = kernel
    log.step = 1
    tensors = torch.zeros(4, 8), torch.zeros(4, 8, dtype=torch.float16)
    with triton_launches(log.launched):
        assert one.run(*tensors, grid=(1,), warmup=False, n=8) == "compiled"
        one.run(*tensors, grid=(1,), warmup=True, n=8)
    one.run(*tensors, grid=(1,), warmup=False, n=8)
    assert one.launched == 3 and len(log) == 1
    (line,) = log.lines
    assert line["kernels"] == ["kernel"] and line["arguments"]["n"] == 8
    assert line["cells"]["Input Data Types"] == "FLOAT16"
    assert line["cells"]["Output Data Types"] == "FLOAT"


class NPUWorker:
    """Like a worker of vLLM-Ascend: its profiler makes a folder of its rank when it stops."""

    def __init__(self, folder, ops):
        self.profiler_config = SimpleNamespace(torch_profiler_dir=str(folder))
        self.rank, self.ops = 3, ops

    def profile(self, is_start=True, profile_prefix=None):
        if not is_start:
            Path(self.profiler_config.torch_profiler_dir, "tp3_rank3_2026_ascend_pt").mkdir()

    def execute_model(self, lengths):
        return attend(self.ops, lengths)


def test_a_worker_of_vllm_logs_its_calls_while_it_is_profiled(ops, tmp_path, monkeypatch):
    entry = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]["vllm.general_plugins"]
    module, _, name = entry["opmeter"].partition(":")
    assert getattr(import_module(module), name) is vllm_plugin.register
    workers = ModuleType(vllm_plugin.WORKERS)
    workers.NPUWorker = type("Worker", (NPUWorker,), {})
    monkeypatch.setitem(sys.modules, vllm_plugin.WORKERS, workers)
    vllm_plugin.register()
    vllm_plugin.register()
    worker = workers.NPUWorker(tmp_path, ops)
    worker.execute_model([1, 2])
    worker.profile()
    worker.execute_model([3, 4])
    worker.execute_model([5, 6])
    worker.profile(is_start=False)
    worker.execute_model([7, 8])
    (log,) = tmp_path.rglob(LOG_FILE)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["actual_seq_lengths_kv"] for line in lines] == [[3, 4], [5, 6]]
    assert [(line["rank"], line["step"]) for line in lines] == [(3, 1), (3, 2)]


def test_a_worker_that_is_imported_later_is_attached_to(tmp_path, monkeypatch):
    package = tmp_path / "vllm_ascend" / "worker"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "worker.py").write_text("class NPUWorker:\n    def profile(self): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("vllm_ascend")]:
        monkeypatch.delitem(sys.modules, name)  # of another test
    vllm_plugin.register()
    try:
        assert hasattr(import_module(vllm_plugin.WORKERS).NPUWorker, "_opmeter_calls")
    finally:
        for name in [name for name in sys.modules if name.startswith("vllm_ascend")]:
            del sys.modules[name]


class SchedulerProfiler:
    """Like the profiler of a scheduler of SGLang, old and new: its names, and what it passes."""

    def __init__(self, folder, is_fixed):
        self.torch_profiler_output_dir, self.is_fixed = folder, is_fixed
        self.profile_in_progress = False

    def start_profile(self, stage=None):
        more = {"experimental_config": "its own"} if self.is_fixed else {}
        self.options = torch.profiler.profile(with_stack=False, **more)
        self.profile_in_progress = True
        return "started"

    def stop_profile(self, stage=None):
        (self.torch_profiler_output_dir / f"host_{os.getpid()}_2026_ascend_pt").mkdir()
        self.profile_in_progress = False
        return "stopped"

    _start_profile, _stop_profile = start_profile, stop_profile


def test_a_scheduler_of_sglang_profiles_with_shapes_and_logs_its_calls(ops, tmp_path, monkeypatch):
    entry = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]["sglang.srt.plugins"]
    module, _, name = entry["opmeter"].partition(":")
    assert getattr(import_module(module), name) is sglang_plugin.register
    sglang_plugin.register()  # a process without a scheduler
    profiler = SimpleNamespace(
        _ExperimentalConfig=lambda **options: options["profiler_level"],
        ProfilerLevel=SimpleNamespace(Level1="Level1"),
        AiCMetrics=SimpleNamespace(PipeUtilization="PipeUtilization"),
    )
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(profiler=profiler))
    monkeypatch.setattr(torch.profiler, "profile", lambda **options: options)
    for number, (place, of_scheduler, start, stop) in enumerate(sglang_plugin.PROFILERS):
        found, runners = ModuleType(place), ModuleType(sglang_plugin.RUNNERS)
        scheduler = type(of_scheduler, (SchedulerProfiler,), {})
        setattr(found, of_scheduler, scheduler)
        found._is_npu = True
        runners.ModelRunner = type("Runner", (), {"forward": lambda self, at: attend(ops, at)})
        monkeypatch.setitem(sys.modules, place, found)
        monkeypatch.setitem(sys.modules, sglang_plugin.RUNNERS, runners)
        sglang_plugin.register()
        sglang_plugin.register()
        folder, is_fixed = tmp_path / place, number == 0
        folder.mkdir()
        one, runner = scheduler(folder, is_fixed), runners.ModelRunner()
        runner.forward([1, 2])
        assert getattr(one, start)(None) == "started"
        config = "its own" if is_fixed else "Level1"
        assert one.options == {"with_stack": False, "experimental_config": config}
        runner.forward([3, 4])
        runner.forward([5, 6])
        assert getattr(one, stop)() == "stopped"
        runner.forward([7, 8])
        (log,) = folder.rglob(LOG_FILE)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [line["actual_seq_lengths_kv"] for line in lines] == [[3, 4], [5, 6]]
        assert [line["step"] for line in lines] == [1, 2]
        monkeypatch.delitem(sys.modules, place)
