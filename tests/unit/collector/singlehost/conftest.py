"""Small trees, given by the few cells that a test is about."""

import pytest

from collector.database.layout import csv_bytes, kernel_files
from collector.database.tree import read_kernel_file
from collector.model.vocabulary import BASE_CELLS

PLAIN = dict(
    zip(
        BASE_CELLS,
        ("dynamic", "AI_VECTOR_CORE", '"4096,1024;4096,1024"', "FLOAT;FLOAT", "ND;ND")
        + ('"4096,1024"', "FLOAT", "ND"),
        strict=True,
    )
)


class Tree:
    """A version folder under construction."""

    def __init__(self, folder):
        self.folder = folder

    def write(self, kernel, *rows, columns=(*BASE_CELLS, "Average Duration(us)")):
        self.folder.mkdir(parents=True, exist_ok=True)
        names = tuple(dict.fromkeys((*columns, *(name for row in rows for name in row))))
        path = self.folder / f"{kernel}.csv"
        path.write_bytes(csv_bytes(names, [{**PLAIN, **row} for row in rows]))
        return path

    def rows(self, kernel):
        return read_kernel_file(self.folder / f"{kernel}.csv").rows

    def durations(self, kernel):
        return [row["Average Duration(us)"] for row in self.rows(kernel)]

    def files(self):
        return [path.relative_to(self.folder).as_posix() for path in kernel_files(self.folder)]


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "vllm0.18.0_torch2.9.0_cann8.5")


def matmul(shapes, out, **more):
    """Return the cells of a MatMul row: two BF16 inputs of these shapes."""
    count = shapes.count(";") + 1
    words = {"Input Data Types": ";".join(["DT_BF16"] * count), "Output Data Types": "DT_BF16"}
    formats = {"Input Formats": ";".join(["ND"] * count), "Accelerator Core": "AI_CORE"}
    return {"Input Shapes": f'"{shapes}"', "Output Shapes": f'"{out}"', **words, **formats, **more}
