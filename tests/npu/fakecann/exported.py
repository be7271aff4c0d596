"""Launches as the database that msprof exports with `--type=db`."""

from collections.abc import Iterable
from pathlib import Path

from tests.fixtures.profiles.database import write_database
from tests.fixtures.profiles.variants import ProfileRow
from tests.npu.fakecann.summary import Task, cells_of_task


def write_kernels(tasks: Iterable[Task], path: Path) -> None:
    """Write the tables of kernels and collectives, with the schema that Huawei publishes."""
    write_database(path, (_reported(task, number) for number, task in enumerate(tasks)))


def _reported(task: Task, number: int) -> ProfileRow:
    cells = cells_of_task(task, number)
    sides = [
        cells.get(f"{side} {what}", "N/A")
        for side in ("Input", "Output")
        for what in ("Shapes", "Data Types", "Formats")
    ]
    return ProfileRow(
        task.kernel,
        *sides,
        core=task.core,
        state=cells.get("OP State", "N/A"),
        duration=cells["Task Duration(us)"],
        start=cells["Task Start Time(us)"],
        stream=cells["Stream ID"],
        device=cells["Device_id"],
        name=cells["Op Name"],
    )
