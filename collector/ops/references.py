"""Reference cases that every device can run.

They show whether devices disturb each other. The canaries among them show whether the speed of a
device drifts.
"""

from collector.model.record import CaseRecord

# Bound by memory bandwidth, by small memory accesses, and by compute: a kernel type, the shapes of
# its inputs and the shape of its output.
REFERENCES = (
    *((kernel, "4096,4096;4096,4096", "4096,4096") for kernel in ("Add", "Mul", "Sub")),
    *((kernel, "4096,4096", "4096,4096") for kernel in ("Abs", "Exp", "SoftmaxV2", "Sigmoid")),
    ("SwiGlu", "4096,8192", "4096,4096"),
    ("Add", "64,4096;64,4096", "64,4096"),
    *(("MatMulV2", f"{n},{n};{n},{n}", f"{n},{n}") for n in (1024, 2048, 4096)),
)
_CANARIES = (REFERENCES[0], REFERENCES[-1])  # 0.1 to 1 ms at TB/s and hundreds of TFLOPS
_CANARIES_OF_CPU = (
    ("Add", "1024,1024;1024,1024", "1024,1024"),
    ("MatMulV2", "256,256;256,256", "256,256"),
)


def reference_record(
    kernel_type: str, inputs: str, outputs: str, dtype: str = "DT_BF16"
) -> CaseRecord:
    """Return the record of a case whose tensors share one dtype; shapes as in a row."""
    slots = inputs.count(";") + 1
    cells = {
        "OP State": "",
        "Accelerator Core": "",
        "Input Shapes": inputs,
        "Input Data Types": ";".join([dtype] * slots),
        "Input Formats": ";".join(["ND"] * slots),
        "Output Shapes": outputs,
        "Output Data Types": dtype,
        "Output Formats": "ND",
    }
    return CaseRecord(kernel_type, cells, {})


def canary_records(backend: str) -> tuple[CaseRecord, ...]:
    """Return the canaries of a backend: one bound by memory, one by compute, both short."""
    if backend == "cpu":
        return tuple(reference_record(*shapes, dtype="FLOAT") for shapes in _CANARIES_OF_CPU)
    return tuple(reference_record(*shapes) for shapes in _CANARIES)
