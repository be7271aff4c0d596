"""The rows of a tree, measured by the stock torch_npu on an NPU that computes nothing."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from collector.codec.errors import OpmeterError
from collector.database.layout import csv_bytes
from collector.database.tree import read_kernel_file
from collector.model.measurement import Outcome
from collector.model.plan import MeasureSettings
from collector.model.stack import Runtime, Stack, runtime_details
from collector.model.vocabulary import BASE_CELLS
from collector.singlehost import from_replay
from collector.singlehost.from_replay import microbench_by_replay
from tests.npu.fakecann.build import FakeCann, environment

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
STACK = Stack("ATLAS_800_A3_752T_128G_DIE", "2.13.0", torch_npu="2.13.0", cann="8.5.0")
FAKE = replace(STACK, details=runtime_details(Runtime.FAKE))
AVERAGE = "Average Duration(us)"


@pytest.fixture
def machine(fake: FakeCann, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one fake NPU without npu-smi, so that its name is given here."""
    env = environment(fake)
    env["PYTHONPATH"] = f"{env['PYTHONPATH']}:{ROOT}"
    env["OPMETER_LOCKS"] = str(tmp_path / "locks")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(from_replay, "device_locks", lambda backend: ["npu0"])
    monkeypatch.setattr("collector.singlehost.from_replay.device_serial", lambda *_: "SN1")


def write(folder: Path, kernel: str, *rows: tuple[str, ...]) -> None:
    folder.mkdir(exist_ok=True)
    cells = [dict(zip(BASE_CELLS, row, strict=True)) for row in rows]
    (folder / f"{kernel}.csv").write_bytes(csv_bytes((*BASE_CELLS, AVERAGE), cells))


def row(shapes: str, out: str, dtype: str = "DT_BF16", core: str = "AI_VECTOR_CORE"):
    count = shapes.count(";") + 1
    words = (";".join([dtype] * count), ";".join(["ND"] * count))
    return ("dynamic", core, f'"{shapes}"', *words, f'"{out}"', dtype, "ND")


def measure(folder: Path, stack: Stack, **more: object):
    settings = MeasureSettings(repeat_count=3)
    return microbench_by_replay(
        folder,
        "npu",
        stack,
        settings,
        stop=threading.Event(),
        **more,  # type: ignore[arg-type]
    )


def test_rows_get_the_durations_and_counters_that_msprof_recorded(machine, tmp_path):
    write(tmp_path / "tree", "Add", row("8,64;8,64", "8,64"), row("16,64;16,64", "16,64", "FLOAT"))
    write(tmp_path / "tree", "MatMulV2", row("8,64;64,32", "8,32", core="AI_CORE"))
    result = measure(tmp_path / "tree", FAKE, allow_fake=True)
    assert result.is_complete and not result.failed, result.failed
    file = read_kernel_file(tmp_path / "tree" / "Add.csv")
    assert all(float(cells[AVERAGE]) > 0 for cells in file.rows)
    assert all(float(cells["MicroBench aiv_time(us)"]) > 0 for cells in file.rows)
    assert {written.launches for written in result.written} == {3}
    assert {m.outcome for m in result.measurements} == {Outcome.OK}


def test_durations_of_a_fake_npu_are_written_to_no_tree_by_default(machine, tmp_path):
    write(tmp_path / "tree", "Add", row("8,64;8,64", "8,64"))
    before = (tmp_path / "tree" / "Add.csv").read_bytes()
    # A declared fake stack is refused before the start, an undeclared one by its runtime.
    for stack in (FAKE, STACK):
        with pytest.raises(OpmeterError, match="fake"):
            measure(tmp_path / "tree", stack)
        assert (tmp_path / "tree" / "Add.csv").read_bytes() == before
