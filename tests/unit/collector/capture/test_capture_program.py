"""A program without code for captures is captured by its own steps."""

import json
import logging
import os
import signal
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")

from collector.capture import capture, injection  # noqa: E402
from collector.capture.dispatched import modes_of_torch  # noqa: E402
from collector.capture.injection import VARIABLE, Injection, StepsBy, _program_of  # noqa: E402
from collector.capture.program import run_captured  # noqa: E402
from collector.capture.verdict import CAPTURE_FILE, verdicts  # noqa: E402
from collector.codec.errors import BadInput  # noqa: E402
from jobs.cli.app import app  # noqa: E402
from tests.waiting import wait_for  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]  # torch imports its compiler for a step
ROOT = Path(__file__).parents[4]
OPTIONS = {"steps": 2}


class Attached:
    """Attaches a capture to this process; `end` is what runs when a process ends."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch
        self.at_exit = []

    def __call__(self, options=OPTIONS, **given):
        one = Injection(str(self.folder), options, "cpu", **given)
        self.monkeypatch.setenv(VARIABLE, one.to_variable())
        self.monkeypatch.setattr(injection.atexit, "register", self.at_exit.append)
        injection.attach()
        return self.folder

    def end(self):
        while self.at_exit:
            self.at_exit.pop()()  # ends its hooks and its timer


@pytest.fixture
def attach(tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGRTMAX - 1)
    attached = Attached(tmp_path / "prof", monkeypatch)
    yield attached
    attached.end()
    signal.signal(signal.SIGRTMAX - 1, before)
    logging.getLogger("collector.capture").handlers.clear()


def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.SiLU(), torch.nn.Linear(16, 8))


def trained(steps):
    one, x = model(), torch.ones(4, 8)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for _ in range(2)]
    for _ in range(steps):
        for _ in range(2):  # gradients of two batches
            one(x).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def test_steps_of_training_are_those_of_the_first_optimizer(attach):
    folder = attach(by=StepsBy.AUTO)
    trained(5)
    (verdict,) = verdicts(folder)
    assert verdict.steps == 2 and verdict.rows_with_inputs == verdict.rows and not verdict.faults
    rows = verdict.rows
    trained(5)  # the hooks are removed
    assert verdicts(folder)[0].rows == rows


def test_steps_of_inference_are_calls_of_the_module_that_repeats(attach):
    folder = attach(by=StepsBy.AUTO)
    one, head, x = model(), torch.nn.Linear(8, 4), torch.ones(4, 8)
    with torch.no_grad():
        head(one(one(x)))  # an order other than in the steps
        for _ in range(5):
            head(one(x)).argmax(-1)
    (verdict,) = verdicts(folder)
    assert (verdict.rows, verdict.steps, verdict.faults) == (10, 2, ())


def is_complete(folder):
    """Return whether the capture of a process here has ended."""
    return any(
        json.loads(path.read_text())["is_complete"]
        for path in folder.glob(CAPTURE_FILE.format(worker="*"))
    )


def test_without_steps_a_window_of_time_is_recorded(attach):
    folder = attach(by=StepsBy.AUTO, after_s=0.05, seconds=0.05)
    x = torch.ones(4, 4)

    def is_written():
        x @ x
        return is_complete(folder)

    wait_for(is_written)
    (verdict,) = verdicts(folder)
    assert verdict.steps == 1 and verdict.rows and "a window of" in " ".join(verdict.faults)


def test_a_window_waits_while_the_program_is_in_a_mode_of_torch(attach):
    from torch.utils._python_dispatch import TorchDispatchMode

    def request():
        signal.raise_signal(signal.SIGRTMAX - 1)  # as the timer does

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            request()
            return func(*args, **(kwargs or {}))

    folder = attach(by=StepsBy.TIME, after_s=60.0, seconds=0.01)
    with Mode():
        request()
        torch.ones(4) + 1
        assert not folder.exists()
    request()
    assert folder.exists()
    wait_for(lambda: is_complete(folder))


def test_launchers_of_ranks_are_recognised_by_what_python_runs():
    for arguments, name in (
        (("-m", "torch.distributed.run", "train.py"), "torch.distributed.run"),
        (("-X", "dev", "/usr/bin/torchrun", "train.py"), "torchrun"),
        (("train.py", "--out", "runs/accelerate"), "train.py"),
        (("-c", "print(1)", "torchrun"), ""),
    ):
        assert _program_of(arguments) == name


def test_failed_capture_does_not_disturb_the_program(attach):
    folder = attach(options={"steps": 1, "level": "Level0"})
    trained(3)
    assert not folder.exists()


def test_trial_precedes_the_capture_of_a_program(attach):
    folder = attach(by=StepsBy.OPTIMIZER, options={"steps": 2, "trial": True})
    trained(8)
    (verdict,) = verdicts(folder)
    assert verdict.steps == 2 and not verdict.faults
    assert [one.name for one in folder.parent.iterdir()] == [folder.name]


def test_a_program_that_ends_early_is_reported(attach):
    folder = attach(by=StepsBy.OPTIMIZER, options={"steps": 9})
    trained(4)
    attach.end()
    (verdict,) = verdicts(folder)
    assert verdict.steps == 2 and "expected 9 steps, got 2" in verdict.faults


def profiled(steps, **options):
    """Train some steps in a profiler of the program; return the number of its events."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as own:
        trained(steps)
    return len(own.events())


@pytest.mark.parametrize("is_whole", [True, False])
def test_program_that_profiles_itself_is_captured_in_its_other_steps(attach, is_whole):
    alone = profiled(3)
    folder = attach(options={"steps": 2, "trial": True})
    if not is_whole:
        trained(2)  # the trial has begun
    assert profiled(3) == alone
    trained(8)
    (verdict,) = verdicts(folder)
    assert verdict.steps == 2 and "profiles itself" in verdict.faults[0]
    assert [one.name for one in folder.parent.iterdir()] == [folder.name]
    assert modes_of_torch() == 0


def test_program_that_profiles_each_step_is_not_captured(attach):
    alone = profiled(3)
    folder = attach(options={"steps": 2, "trial": True})
    assert profiled(3) == alone
    attach.end()
    (verdict,) = verdicts(folder)
    assert verdict.is_empty and "profiles itself" in verdict.faults[0]


def test_steps_before_a_profiler_of_the_program_are_kept(attach):
    folder = attach(options={"steps": 3, "warmup": 0})
    trained(3)
    profiled(3)
    (verdict,) = verdicts(folder)
    assert verdict.steps == 2 and "profiles itself" in " ".join(verdict.faults)


def test_capture_within_a_profiler_of_the_program_does_not_begin(tmp_path):
    with torch.profiler.profile(), capture(tmp_path / "prof", device="cpu", steps=1) as session:
        assert session.is_ended
    assert "profiles itself" in session.verdicts[0].faults[0]


def test_trial_that_exceeds_the_byte_limit_starts_no_capture(attach):
    folder = attach(options={"steps": 2, "trial": True, "max_bytes": 1})
    trained(8)
    (verdict,) = verdicts(folder)
    assert verdict.is_empty and "expected at most 1" in verdict.faults[0]
    assert modes_of_torch() == 0


def test_a_program_is_compiled_as_without_a_capture(tmp_path):
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    product = torch.compile(lambda x: (x @ x).relu(), backend=backend)
    with torch.no_grad(), capture(tmp_path, device="cpu", steps=1) as session:
        for _ in range(3):
            product(torch.ones(4, 4))
            session.step()
    assert len(graphs) == 1 and session.verdicts[0].rows == 3  # ones, a product and relu


PROGRAM = """
import os, subprocess, sys
if "RANK" in os.environ:
    import torch
    one = torch.nn.Linear(8, 8)
    with torch.no_grad():
        for _ in range(7):
            one(torch.ones(2, 8))
else:
    ranks = []
    for rank in "01":
        os.environ |= {"RANK": rank, "WORLD_SIZE": "2"}
        ranks.append(subprocess.Popen([sys.executable, __file__]))
    assert not any(one.wait() for one in ranks)
    sys.exit(int(os.environ["CODE_OF_ITS_OWN"]))
"""


PROFILED = """
import sys, torch
one = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
schedule = torch.profiler.schedule(wait=1, warmup=1, active=2)
with torch.profiler.profile(schedule=schedule) as own:
    for _ in range(7):
        one(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        own.step()
own.export_chrome_trace(sys.argv[1])
sys.exit(7)
"""


def test_program_that_profiles_itself_ends_as_without_a_capture(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(PROFILED)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    trace = tmp_path / "trace.json"
    program = [sys.executable, str(tmp_path / "own.py"), str(trace)]
    options = {"steps": 2, "trial": True}
    code = run_captured(program, Injection(str(tmp_path / "prof"), options, "cpu"))
    assert code == 7 and len(json.loads(trace.read_text())["traceEvents"]) > 20


def test_ranks_that_a_program_starts_are_captured_and_its_exit_code_is_kept(tmp_path, monkeypatch):
    (tmp_path / "launch.py").write_text(PROGRAM)
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['CODE_OF_ITS_OWN'] = '7'")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{tmp_path}")
    folder = tmp_path / "prof"
    arguments = ["capture", "run", "--backend", "cpu", "--output", str(folder)]
    program = [sys.executable, str(tmp_path / "launch.py")]
    done = CliRunner().invoke(app, [*arguments, "--", *program])
    assert done.exit_code == 7, done.output
    found = verdicts(folder)
    assert [(one.rank, one.rows, one.faults) for one in found] == [(0, 2, ()), (1, 2, ())]
    with pytest.raises(BadInput):  # the folder has a capture now
        run_captured(program, Injection(str(folder)))
    with pytest.raises(BadInput):  # before the program starts
        run_captured([sys.executable, "-c", "1 / 0"], Injection("/proc/x/prof"))
    with pytest.raises(BadInput):
        run_captured(["/no/program"], Injection(str(tmp_path / "other")))
