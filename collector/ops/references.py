"""Reference cases that every device can run.

They show whether devices disturb each other, and a self-test whether a device is measured
correctly. The canaries among them show whether the speed of a device drifts.
"""

from dataclasses import replace

from collector.model.case import Slot, tensor_cells
from collector.model.record import CaseRecord
from collector.model.vocabulary import ACCELERATOR_CORE, AI_CPU, OP_STATE, RUNTIME_PREFIX
from collector.ops.registry import fused_attention

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


def product_kernel(size: int, dtype: str) -> CaseRecord:
    """Return a product of two square matrices: arithmetic."""
    return reference_record("MatMulV2", f"{size},{size};{size},{size}", f"{size},{size}", dtype)


def copying_kernel(rows: int, columns: int, dtype: str = "FLOAT") -> CaseRecord:
    """Return a kernel that reads each number of a tensor once, and writes one for it."""
    return reference_record("Abs", f"{rows},{columns}", f"{rows},{columns}", dtype)


def addition(rows: int, columns: int = 64) -> CaseRecord:
    return _of_pairs("Add", f"{rows},{columns}", "FLOAT")


def multiplication(rows: int, columns: int = 64) -> CaseRecord:
    return _of_pairs("Mul", f"{rows},{columns}", "FLOAT")


def of_the_ai_cpu(backend: str) -> CaseRecord:
    """Return a DOUBLE subtraction.

    No core of A2 and A3 supports it, so CANN launches the AI CPU's kernel of the same type
    (ops-math, sub.cpp). On other backends it is an ordinary case."""
    record = _of_pairs("Sub", "32,64", "DOUBLE")
    core = {ACCELERATOR_CORE: AI_CPU} if backend == "npu" else {}
    return replace(record, cells={**record.cells, **core})


def _of_pairs(kernel_type: str, shape: str, dtype: str) -> CaseRecord:
    return reference_record(kernel_type, f"{shape};{shape}", shape, dtype)


# The heads are those of one die of Qwen3-32B at tensor parallelism 2.
_REQUESTS, _HEADS, _KV_HEADS, _SIZE, _PAGE = 4, 32, 4, 128, 128
_LONGEST = 8192


def decode_attention(keys: int) -> CaseRecord:
    """Return fused attention of four requests with `keys` keys each in a paged cache: most of the
    attention time of a served model.

    Each request has one new query. The shapes are the same at every length, up to 8,192."""
    op, pages = fused_attention(), _LONGEST // _PAGE
    query = Slot((_REQUESTS, _HEADS, _SIZE), "DT_BF16", "ND")
    cache = Slot((_REQUESTS * pages, _PAGE, _KV_HEADS * _SIZE), "DT_BF16", "ND")
    lengths = Slot((_REQUESTS,), "INT64", "ND")
    slots = {
        "query": query,
        "key": cache,
        "value": cache,
        "atten_mask": Slot((2048, 2048), "INT8", "ND"),
        "actual_seq_lengths": lengths,
        "actual_seq_lengths_kv": lengths,
        "block_table": Slot((_REQUESTS, pages), "INT32", "ND"),
    }
    absent = Slot(None, "DT_UNDEFINED", "NULL")
    inputs = [slots.get(name, absent) for name in op.slots]
    columns = {
        "actual_seq_lengths_kv_values": ",".join([str(keys)] * _REQUESTS),
        "actual_seq_lengths_values": ",".join(str(at + 1) for at in range(_REQUESTS)),
        "input_layout": "TND",
        "num_key_value_heads": str(_KV_HEADS),
    }
    return CaseRecord(
        op.kernel,
        {
            OP_STATE: "dynamic",
            ACCELERATOR_CORE: "MIX_AIC",
            **tensor_cells(inputs, (query, Slot(None, "FLOAT", "ND"))),
        },
        {RUNTIME_PREFIX + name: text for name, text in columns.items()},
    )


def canary_records(backend: str) -> tuple[CaseRecord, ...]:
    """Return the canaries of a backend: one bound by memory, one by compute, both short."""
    if backend == "cpu":
        return tuple(reference_record(*shapes, dtype="FLOAT") for shapes in _CANARIES_OF_CPU)
    return tuple(reference_record(*shapes) for shapes in _CANARIES)
