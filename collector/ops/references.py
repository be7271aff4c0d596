"""Cases that every device can be asked: what tells whether devices disturb each other, and the
canaries, which tell whether one stays as fast as it was."""

from collector.model.record import CaseRecord

# Memory at its limit, memory in small pieces, and arithmetic at its limit: a kernel, the shapes of
# its inputs and of its output.
REFERENCES = (
    *((kernel, "4096,4096;4096,4096", "4096,4096") for kernel in ("Add", "Mul", "Sub")),
    *((kernel, "4096,4096", "4096,4096") for kernel in ("Abs", "Exp", "SoftmaxV2", "Sigmoid")),
    ("SwiGlu", "4096,8192", "4096,4096"),
    ("Add", "64,4096;64,4096", "64,4096"),
    *(("MatMulV2", f"{n},{n};{n},{n}", f"{n},{n}") for n in (1024, 2048, 4096)),
)
_CANARIES = (REFERENCES[0], REFERENCES[-1])  # 0.1 to 1 ms where there are TB/s and 100s of TFLOPS
_CANARIES_OF_CPU = (
    ("Add", "1024,1024;1024,1024", "1024,1024"),
    ("MatMulV2", "256,256;256,256", "256,256"),
)


def reference_record(
    kernel_type: str, inputs: str, outputs: str, dtype: str = "DT_BF16"
) -> CaseRecord:
    """The record of a case with shapes as a row spells them, all tensors of one dtype."""
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
    """The canaries of a backend: one bound by memory, one by arithmetic, both short."""
    if backend == "cpu":
        return tuple(reference_record(*shapes, dtype="FLOAT") for shapes in _CANARIES_OF_CPU)
    return tuple(reference_record(*shapes) for shapes in _CANARIES)
