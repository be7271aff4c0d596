"""Cases for sessions in tests, by their shapes."""

from collector.model.measurement import Measurement, Provenance
from collector.model.record import CaseRecord
from collector.model.stack import Runtime

PROVENANCE = Provenance(
    *("test", 1, "hash", 0, "shard", "attempt", 0, "stack", "node", None, 0),
    *(Runtime.REAL, None, "0", None),
)


def case_record(
    kernel_type: str, inputs: str, outputs: str, dtype: str = "FLOAT", formats: str = "ND"
) -> CaseRecord:
    """Return a case whose tensors all have one dtype; shapes are written as in a profile."""
    cells = {"OP State": "dynamic", "Accelerator Core": "AI_VECTOR_CORE"}
    for side, shapes in (("Input", inputs), ("Output", outputs)):
        slots = shapes.count(";") + 1
        cells[f"{side} Shapes"] = f'"{shapes}"'
        cells[f"{side} Data Types"] = ";".join([dtype] * slots)
        cells[f"{side} Formats"] = ";".join([formats] * slots)
    return CaseRecord(kernel_type, cells, {})


def add_record(rows: int, dtype: str = "FLOAT") -> CaseRecord:
    return case_record("Add", f"{rows},64;{rows},64", f"{rows},64", dtype)


def by_kernel(measurements: tuple[Measurement, ...]) -> dict[str, Measurement]:
    return {measurement.kernel_type: measurement for measurement in measurements}
