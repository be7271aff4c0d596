"""The names that Ascend tools write: columns, counters, dtypes.

Sources: op_summary of msprof (CANN 8.3 to 9.1) and the database of msmodeling. Their spellings are
kept exactly: only BF16 has the prefix `DT_` in a profile.
"""

from dataclasses import dataclass
from types import MappingProxyType

OP_STATE = "OP State"
DYNAMIC, STATIC = "dynamic", "static"  # OP States: a static kernel was compiled for its shapes
ACCELERATOR_CORE = "Accelerator Core"
INPUT_SHAPES = "Input Shapes"
INPUT_DTYPES = "Input Data Types"
INPUT_FORMATS = "Input Formats"
OUTPUT_SHAPES = "Output Shapes"
OUTPUT_DTYPES = "Output Data Types"
OUTPUT_FORMATS = "Output Formats"

INPUT_CELLS = (INPUT_SHAPES, INPUT_DTYPES, INPUT_FORMATS)
OUTPUT_CELLS = (OUTPUT_SHAPES, OUTPUT_DTYPES, OUTPUT_FORMATS)
BASE_CELLS = (OP_STATE, ACCELERATOR_CORE, *INPUT_CELLS, *OUTPUT_CELLS)

EP_SIZE = "EP Size"
RUNTIME_PREFIX = "Runtime "
# The library of the kernel that a case requests, if CANN and vLLM-Ascend both have one of its type.
LIBRARY = RUNTIME_PREFIX + "library"
# What launched a kernel that was compiled for its shapes, if a profile reports that it was a graph.
LAUNCHED_BY, GRAPH = RUNTIME_PREFIX + "launched_by", "graph"
# The hash of the user's file of operators that declares the kernel.
OPERATOR_FILE = RUNTIME_PREFIX + "operator_file"
# The arguments of an operator of torch that are not tensors, and the range of the values of its
# tensors, as JSON.
TORCH_ARGUMENTS = RUNTIME_PREFIX + "torch_arguments"
TORCH_VALUES = RUNTIME_PREFIX + "torch_values"
# `Runtime ...` cells of a row that a log of calls gave, as JSON.
CALL_VALUES = RUNTIME_PREFIX + "call_values"
# what attention excludes, in addition to a mask for each query and key
MASK = RUNTIME_PREFIX + "mask"
CAUSAL_MASK, FULL_MASK = "causal", "full"
# lists of lengths, or their mean, with which attention and grouped products were launched
QUERY_LENGTHS = RUNTIME_PREFIX + "actual_seq_lengths_values"
KEY_LENGTHS = RUNTIME_PREFIX + "actual_seq_lengths_kv_values"
MEAN_LENGTH = RUNTIME_PREFIX + "avg_seq_len"
GROUP_ENDS = RUNTIME_PREFIX + "group_list_values"
LENGTH_COLUMNS = frozenset({QUERY_LENGTHS, KEY_LENGTHS, MEAN_LENGTH, GROUP_ENDS})
# How complete the columns are that a launch depends on.
COMPLETENESS = RUNTIME_PREFIX + "metadata_completeness"
# Runtime columns that name the origin of a row; they do not change the kernel.
RUNTIME_PROVENANCE = frozenset({"Runtime source_profile", COMPLETENESS, "Runtime case_id"})


def _counters(core: str, units: str) -> tuple[str, ...]:
    """Return the names of the time and the share of each unit of a core."""
    return tuple(
        f"{core}_{unit}_{what}" for unit in units.split() for what in ("time(us)", "ratio")
    )


# PipeUtilization on A2 and A3, in msprof's order.
COUNTERS = (
    *("aicore_time(us)", "aic_total_cycles"),
    *(*_counters("aic", "mac scalar mte1 mte2 fixpipe"), "aic_icache_miss_rate"),
    *("aiv_time(us)", "aiv_total_cycles"),
    *(*_counters("aiv", "vec scalar mte2 mte3"), "aiv_icache_miss_rate"),
    "cube_utilization(%)",
)

NOT_KNOWN = "N/A"
FRACTAL_NZ = "FRACTAL_NZ"
NC1HWC0 = "NC1HWC0"
# Formats in which a tensor has the same memory layout as in torch.
_PLAIN_FORMATS = frozenset({"", "ND", "NCHW", "NCL", "NHWC", "NCDHW", "N/A", "NULL"})
_NAMED_FORMATS = frozenset({"NCHW", "NCL", "NCDHW"})  # NHWC orders the dimensions differently
_ABSENT_SHAPES = frozenset({"", "()", "N/A", "NA", "NULL", "NONE", "UNDEFINED"})
_ABSENT_DTYPES = frozenset({"", "DT_UNDEFINED", "UNDEFINED", "N/A", "NULL"})
_ABSENT_FORMATS = frozenset({"", "NULL", "N/A", "UNDEFINED"})  # the last of ATB


def is_absent_shape(text: str) -> bool:
    return text.upper() in _ABSENT_SHAPES


def is_absent_dtype(text: str) -> bool:
    return text.upper() in _ABSENT_DTYPES


def is_absent_format(text: str) -> bool:
    return text.upper() in _ABSENT_FORMATS


def normal_format(text: str) -> str:
    """Return the spelling of a format in profiles of today: `ND` for `FORMAT_ND` and `nd`."""
    return text.upper().removeprefix("FORMAT_")


def normal_dtype(text: str) -> str:
    """Return the spelling of a dtype in profiles: `FLOAT` for `DT_FLOAT`, `DT_BF16` for `bf16`."""
    known = dtype_of(text)
    return known.spelling if known else text.upper()


def plain_format(text: str) -> str:
    """Return ND for a format of torch's own tensors that only names the dimensions."""
    return "ND" if text in _NAMED_FORMATS else text


def is_plain_format(text: str) -> bool:
    return normal_format(text) in _PLAIN_FORMATS


AI_CPU = "AI_CPU"
AI_CORE = "AI_CORE"


def core_class(core: str) -> str:
    """Return the core class of a kernel: AI_CPU, or AI_CORE for cube and vector units in any mix;
    empty if the cell names none."""
    name = core.strip().replace("_", "").upper()
    if name in ("", NOT_KNOWN):
        return ""
    return AI_CPU if name == "AICPU" else AI_CORE


@dataclass(frozen=True, slots=True)
class Dtype:
    """A profiler's dtype: its spelling, torch's name for it, and the size of one element.

    `held_as` reports where the dtype is supported, or which devices have it, if not every operator
    takes it; torch may have no name for such a dtype."""

    spelling: str
    torch_name: str
    item_bits: int
    is_floating: bool
    held_as: str = ""

    def bytes_of(self, numel: int) -> int:
        """Return the bytes of `numel` elements; two elements of four bits share a byte."""
        return -(-numel * self.item_bits // 8)


# aclnnGroupedMatmulV5 and aclnnQuantMatmulV5 of CANN 9: A2 and A3 do not accept these dtypes.
# Scales of MX quantisation are FLOAT8_E8M0: powers of two, one for 32 numbers.
OF_950 = "A2 and A3 do not have this dtype; Ascend 950PR and 950DT have it since CANN 9.0"
DTYPES = (
    Dtype("DT_BF16", "bfloat16", 16, True),
    Dtype("FLOAT16", "float16", 16, True),
    Dtype("FLOAT", "float32", 32, True),
    Dtype("DOUBLE", "float64", 64, True),
    Dtype("INT8", "int8", 8, False),
    Dtype("UINT8", "uint8", 8, False),
    Dtype("INT16", "int16", 16, False),
    Dtype("INT32", "int32", 32, False),
    Dtype("INT64", "int64", 64, False),
    Dtype("BOOL", "bool", 8, False),
    Dtype("UINT64", "", 64, False, "supported only as packed scales, and as a Cast's output"),
    Dtype("UINT16", "", 16, False, "supported only as masks of pooling"),
    Dtype("INT4", "", 4, False, "supported only as weights of quantised products"),
    *(Dtype(name, "", 4, True, OF_950) for name in ("FLOAT4_E2M1", "FLOAT4_E1M2")),
    Dtype("FLOAT8_E4M3FN", "float8_e4m3fn", 8, True, OF_950),
    Dtype("FLOAT8_E5M2", "float8_e5m2", 8, True, OF_950),
    Dtype("FLOAT8_E8M0", "", 8, True, OF_950),  # torch_npu has them as bytes
    Dtype("HIFLOAT8", "", 8, True, OF_950),
)
_DTYPES = MappingProxyType(
    {prefix + d.spelling.removeprefix("DT_"): d for d in DTYPES for prefix in ("", "DT_")}
)


_OF_TORCH = MappingProxyType({d.torch_name: d for d in DTYPES if d.torch_name})
# What people call dtypes, besides torch's names and the profilers'.
_SHORT = {
    name: spelling
    for spelling, names in (
        ("FLOAT16", "fp16 f16 half"),
        ("FLOAT", "fp32 f32"),
        ("DOUBLE", "fp64 f64"),
        *((f"INT{bits}", f"i{bits}") for bits in (4, 8, 16, 32, 64)),
        *((f"UINT{bits}", f"u{bits}") for bits in (8, 16, 64)),
        ("FLOAT8_E4M3FN", "fp8_e4m3 fp8_e4m3fn float8_e4m3 f8e4m3"),
        ("FLOAT8_E5M2", "fp8_e5m2 f8e5m2"),
    )
    for name in names.split()
}


def torch_dtype_of(name: str) -> Dtype | None:
    """Return the dtype that torch calls so, or that people do: `bfloat16`, `fp32`; None for an
    unknown name."""
    return _OF_TORCH.get(name) or _DTYPES.get(_SHORT.get(name, ""))


def dtype_of(text: str) -> Dtype | None:
    """Return the dtype that a cell names, with or without `DT_`; None for an unknown dtype."""
    return _DTYPES.get(text) or _DTYPES.get(text.strip().upper())
