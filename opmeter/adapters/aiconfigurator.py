"""A version directory as a system of AIConfigurator: the folder that its `--systems-paths` names.

    {device}.yaml                                            the system: rates, links, memory
    data/{device}/gemm/vllm/{vllm}/gemm_perf.parquet         products
    data/{device}/attention/vllm/{vllm}/
      context_attention_perf.parquet                         attention over new tokens
      generation_attention_perf.parquet                      of one new token per request
    data/{device}/moe/vllm/{vllm}/moe_perf.parquet           experts of a rank: both products and
                                                             the activation
    data/{device}/comm/vllm/{vllm}/custom_allreduce_perf.parquet   reductions of tensor parallelism
    data/{device}/comm/nccl/{library}/nccl_perf.parquet      collectives

Latencies are in milliseconds, sizes of messages in elements. AIConfigurator keeps the first row of
a key, so only the shortest one is written. Cases that its keys cannot express, and dtypes that it
does not know, are left out, and counted by the reason.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import pyarrow as pa
import yaml

from collector.database.layout import collective_folder
from collector.host.npus import memory_gb_of
from collector.model.case import Case, Slot, logical_shape
from collector.model.demand import record_of_cells
from collector.model.vocabulary import (
    EP_SIZE,
    GROUP_ENDS,
    KEY_LENGTHS,
    MEAN_LENGTH,
    QUERY_LENGTHS,
    dtype_of,
)
from collector.ops.floor import assumed_peaks, described_peaks
from collector.ops.registry import ops_of
from collector.ops.sizes import product_sizes
from collector.ranks.collective import BY_KERNEL_TYPE, DTYPES
from opmeter.adapters.attention import FusedSlots, fused, key_heads
from opmeter.adapters.collectives import collectives_alone
from opmeter.answers import Answer
from opmeter.version import Version

_WHO = [
    pa.field("framework", pa.string()),
    pa.field("version", pa.string()),
    pa.field("device", pa.string()),
    pa.field("op_name", pa.string()),
    pa.field("kernel_source", pa.string()),
    pa.field("warnings", pa.string()),  # names of gates, which AIConfigurator does not read
]
_LATENCY = pa.field("latency", pa.float64())


def _schema(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([*_WHO, *(pa.field(name, kind) for name, kind in columns), _LATENCY])


_WORD, _NUMBER = pa.string(), pa.int64()
_MESSAGE = (("num_gpus", _NUMBER), ("message_size", _NUMBER))
_ATTENTION = _schema(
    *(
        (name, _NUMBER)
        for name in ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim")
    ),
    *(("beam_width", _NUMBER), ("attn_dtype", _WORD), ("kv_cache_dtype", _WORD)),
    *(("step", _NUMBER), ("window_size", _NUMBER)),
)
SCHEMAS = {
    "gemm": _schema(("gemm_dtype", _WORD), *((name, _NUMBER) for name in "mnk")),
    "context_attention": _ATTENTION,
    "generation_attention": _ATTENTION,
    "moe": _schema(
        ("moe_dtype", _WORD),
        *(
            (name, _NUMBER)
            for name in (
                *("num_tokens", "hidden_size", "inter_size", "topk", "num_experts"),
                *("moe_tp_size", "moe_ep_size"),
            )
        ),
        ("distribution", _WORD),
    ),
    "nccl": _schema(("nccl_dtype", _WORD), *_MESSAGE),
    "custom_allreduce": _schema(("allreduce_dtype", _WORD), *_MESSAGE),
}
# The folders of the tables.
_FAMILIES = {
    "gemm": "gemm",
    **dict.fromkeys(("context_attention", "generation_attention"), "attention"),
    "moe": "moe",
    **dict.fromkeys(("nccl", "custom_allreduce"), "comm"),
}
# AIConfigurator's names, of which those of queries, of caches, of products and of experts are
# different lists; `sq` has 8-bit weights and activations.
_FLOATS = {"DT_BF16": "bfloat16", "DT_FLOAT16": "float16", "FLOAT16": "float16"}
_CACHES = {"DT_BF16": "bfloat16", "INT8": "int8"}
_GEMM_DTYPES = {"DT_BF16": "bfloat16", "INT8": "sq"}
_EXPERTS = {"DT_BF16": "bfloat16"}
_MESSAGES = {"bfloat16": "half", "float16": "half", "int8": "int8"}
_REDUCED = "bfloat16"  # its only name for reductions, whatever the two bytes are
# The operators of products, of the products of experts, and of their activation.
_PRODUCTS = ("aten.mm.default", "tensor_cast.static_quant_linear.default")
_OF_EXPERTS, _ACTIVATION = "tensor_cast.grouped_matmul.default", "tensor_cast.swiglu.default"
_OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "alltoall",
}
_WHOLE = ("all_gather", "reduce_scatter")  # their size is that of all ranks together
_UNEVEN = "uneven lengths"

_Row = dict[str, object]
_Rows = Iterator[tuple[str, _Row | str]]  # a row of a table, or why a case has none


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a model, whose routing the shapes of a rank's products do not show."""

    choices: int  # of each token
    experts: int
    intermediate: int


@dataclass(frozen=True, slots=True)
class Exported:
    """The tables by their names, how many cases are in none, by the reason, and below the folder of
    systems the path of each table, and the other files by their paths: that of the system, and in
    each folder of tables the one that says what made them."""

    tables: Mapping[str, pa.Table]
    left_out: Mapping[str, int]
    paths: Mapping[str, str]
    texts: Mapping[str, bytes]


def exported(version: Version, experts: Experts | None = None) -> Exported:
    """Return the tables of a version directory. Without `experts` there is none of experts."""
    left_out: Counter[str] = Counter()
    best: dict[str, dict[object, _Row]] = {name: {} for name in SCHEMAS}
    for name, row in (
        *_gemm(version),
        *_attention(version),
        *(_experts(version, experts) if experts else ()),
        *_collectives(version),
    ):
        if isinstance(row, str):
            left_out[f"{name}: {row}"] += 1
            continue
        keys = tuple(row[key] for key in SCHEMAS[name].names[len(_WHO) : -1])
        known = best[name].setdefault((row["op_name"], *keys), row)
        if known is not row:
            left_out[f"{name}: another case of the same key is shorter"] += 1
            if row["latency"] < known["latency"]:
                best[name][(row["op_name"], *keys)] = row
    tables = {
        name: pa.Table.from_pylist(list(rows.values()), schema=SCHEMAS[name])
        for name, rows in best.items()
        if rows
    }
    stack, library = _stack(version), _library(version)
    folders: dict[str, list[str]] = {}
    for name in tables:
        made_by = f"nccl/{library.version}" if name == "nccl" else f"vllm/{stack.version}"
        folder = f"data/{stack.device}/{_FAMILIES[name]}/{made_by}"
        folders.setdefault(folder, []).append(name)
    paths = {
        name: f"{folder}/{name}_perf.parquet" for folder, own in folders.items() for name in own
    }
    texts = {f"{stack.device}.yaml": _system(version)} if tables else {}
    for folder, own in folders.items():
        texts[f"{folder}/collection_meta.yaml"] = _origin(folder, own)
    return Exported(tables, dict(sorted(left_out.items())), paths, texts)


def _origin(folder: str, names: Sequence[str]) -> bytes:
    """Return the file that says what made the tables of a folder."""
    framework, number = folder.split("/")[-2:]
    tables = {f"{name}_perf": {"status": "partial"} for name in names}  # the cases of a database
    runtime = {"framework": framework, "version": number}
    content = {"schema_version": 1, "provenance": "collected", "runtime": runtime}
    return yaml.safe_dump({**content, "tables": tables}, sort_keys=False).encode()


class _Software(NamedTuple):
    """What measured a row, as AIConfigurator names it."""

    framework: str
    version: str
    device: str


def _stack(version: Version) -> _Software:
    device, _, name = version.path.partition("/")
    number = name.rpartition("/")[2].partition("_torch")[0].removeprefix("vllm")
    return _Software("VLLM", number, device)


def _library(version: Version) -> _Software:
    """Return the library of collectives, whose folder names it and its version."""
    device, name, number = collective_folder(version.path).split("/")
    return _Software(name if name == "gloo" else name.upper(), number.removeprefix("v"), device)


def _row(software: _Software, op: str, source: str, answer: Answer, **cells: object) -> _Row:
    who = (*software, op, source, ";".join(answer.warnings))
    return {
        **dict(zip((field.name for field in _WHO), who, strict=True)),
        **cells,
        "latency": answer.value_us / 1e3,
    }


# What AIConfigurator adds to the memory of a model: the buffers of HCCL for two directions (200 MiB
# each, unless HCCL_BUFFSIZE says otherwise), and what the runtime takes.
_LIBRARY_BYTES, _RUNTIME_BYTES = 2 * 200 * 2**20, 3 * 2**30
_ASSUMED_GB, _ASSUMED_BYTES_PER_S = 64, 25e9
_SYSTEM = """\
# A system of AIConfigurator, written by `opmeter db export`. The rates of the device are those of
# {source}; the links are the best bandwidth of the measured collectives{links}.
# The memory is {memory}; `other_mem` is assumed. AIConfigurator uses them for what no
# table has, and for the memory that a model takes.
"""


def _system(version: Version) -> bytes:
    """Return the file of the system."""
    device = _stack(version).device
    known = described_peaks(device)
    peaks = known or assumed_peaks()
    flops = {name: 1e12 * tflops for name, tflops in peaks.tflops.items()}
    inner, outer, ranks = _links(version)
    memory_gb = memory_gb_of(device)
    content = {
        "data_dir": f"data/{device}",
        "gpu": {
            "mem_bw": peaks.bytes_per_s,
            "mem_bw_empirical_scaling_factor": peaks.memory_share,
            "mem_empirical_constant_latency": peaks.launch_us / 1e6,
            "mem_capacity": (memory_gb or _ASSUMED_GB) * 2**30,
            "bfloat16_tc_flops": flops["bfloat16"],
            "int8_tc_flops": flops.get("int8", flops["bfloat16"]),
        },
        "node": {
            "num_gpus_per_node": ranks,
            "intra_node_bw": inner or _ASSUMED_BYTES_PER_S,
            "inter_node_bw": outer or inner or _ASSUMED_BYTES_PER_S,
        },
        "misc": {
            "nccl_mem": {1: 0, **dict.fromkeys((2, 4, 8), _LIBRARY_BYTES)},
            "other_mem": _RUNTIME_BYTES,
            "nccl_version": _library(version).version,
        },
    }
    about = _SYSTEM.format(
        source=peaks.source if known else "an unknown device, as forecasts assume them",
        links="" if inner or outer else ", assumed here, since there are none",
        memory="that of the device" if memory_gb else f"assumed, {_ASSUMED_GB} GiB",
    )
    return (about + yaml.safe_dump(content, sort_keys=False)).encode()


def _links(version: Version) -> tuple[float, float, int]:
    """Return the best bandwidth of collectives within a server and between servers, in bytes a
    second, 0 where none is measured; and the ranks of a server."""
    inner = outer = 0.0
    ranks = 1
    for kernel in BY_KERNEL_TYPE:
        for one, answer in collectives_alone(version, kernel):
            rate = one.collective.bus_bytes / answer.value_us * 1e6
            in_server = len(one.grid.extents) == 1 or one.collective.tier > 0
            inner, outer = (max(inner, rate), outer) if in_server else (inner, max(outer, rate))
            extents = one.grid.extents
            ranks = max(ranks, prod(extents if len(extents) == 1 else extents[1:]))
    return inner, outer, ranks


def _cases(version: Version, kernel: str) -> Iterator[tuple[Case, Answer]]:
    for cells, answer in version.cases(kernel):
        yield record_of_cells(kernel, cells).case, answer


def _gemm(version: Version) -> _Rows:
    for kernel in (op.kernel for operator in _PRODUCTS for op in ops_of(operator)):
        for case, answer in _cases(version, kernel):
            inputs, outputs = case.inputs or (), case.outputs or ()
            dtype = _GEMM_DTYPES.get(inputs[0].dtype) if inputs else None
            shape = outputs[0].shape if outputs else None
            if dtype is None or len(inputs) < 2 or inputs[1].dtype != inputs[0].dtype:
                yield "gemm", "no dtype of AIConfigurator"
            elif shape is None or len(shape) < 2 or 0 in shape:
                yield "gemm", "no product of two matrices"
            else:
                batch, m, n, k = product_sizes(inputs[0].shape or (), shape)
                sizes = {"m": batch * m, "n": n, "k": k}
                yield (
                    "gemm",
                    _row(_stack(version), "gemm", kernel, answer, gemm_dtype=dtype, **sizes),
                )


def _attention(version: Version) -> _Rows:
    kernel, slots = fused()
    for case, answer in _cases(version, kernel):
        found = _attention_key(case, slots)
        if isinstance(found, str):
            yield "attention", found
            continue
        name, key = found
        yield name, _row(_stack(version), name, kernel, answer, beam_width=1, window_size=0, **key)


def _attention_key(case: Case, slots: FusedSlots) -> tuple[str, _Row] | str:
    """Return the table of a case of attention and its key there, or why it has none."""
    inputs = case.inputs or ()
    query, key = inputs[:2] if len(inputs) > 1 else (Slot(None, "", ""),) * 2
    dtype, cache = _FLOATS.get(query.dtype), _CACHES.get(key.dtype)
    if dtype is None or cache is None:
        return "no dtype of AIConfigurator"
    if any(at < len(inputs) and inputs[at].shape for at in slots.rotary):
        return "latent attention"
    if query.shape is None or len(query.shape) != 3 or key.shape is None:
        return "no layout of tokens, heads and width"
    tokens, heads, width = query.shape
    is_paged = len(inputs) > slots.table and bool(inputs[slots.table].shape)
    of_queries = _numbers(case, QUERY_LENGTHS)
    keys = _numbers(case, KEY_LENGTHS)
    if is_paged:
        batch = (inputs[slots.table].shape or (0,))[0]
    else:
        batch, keys = len(of_queries), _steps(keys)
    batch = len(of_queries) or batch
    if not batch or tokens % batch:
        return _UNEVEN if batch else "no lengths"
    if set(_steps(of_queries)) - {tokens / batch}:
        return _UNEVEN
    lengths = set(keys) or set(_numbers(case, MEAN_LENGTH))
    if len(lengths) != 1:
        return _UNEVEN if lengths else "no lengths"
    queries, length = tokens // batch, int(lengths.pop())
    kv_heads = key_heads(case, key.shape, width, is_paged)
    if kv_heads is None:
        return "no number of key heads"
    is_decode = queries == 1
    if not is_decode and length != queries:
        return "tokens before the new ones"
    return "generation_attention" if is_decode else "context_attention", {
        "batch_size": batch,
        "isl": queries,
        "step": length - 1 if is_decode else 0,  # the sum is the number of keys
        "num_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": width,
        "attn_dtype": dtype,
        "kv_cache_dtype": cache,
    }


def _numbers(case: Case, column: str) -> list[float]:
    text = case.attribute(column)
    return [float(part) for part in text.split(",")] if text else []


def _steps(ends: Sequence[float]) -> list[float]:
    """Return the lengths whose sums are these."""
    return [end - begin for begin, end in zip((0.0, *ends), ends, strict=False)]


def _experts(version: Version, model: Experts) -> _Rows:
    """Yield the experts of a rank: the product of gate and up, the activation, and the product of
    down, for the same tokens and experts."""
    of_experts, activation = (ops_of(name)[0].kernel for name in (_OF_EXPERTS, _ACTIVATION))
    products: dict[tuple[str, int, int, int, int], Answer] = {}
    for case, answer in _cases(version, of_experts):
        key = _grouped(case)
        if isinstance(key, str):
            yield "moe", key
        elif key not in products or answer.value_us < products[key].value_us:
            products[key] = answer
    activations: dict[tuple[str, int, int], Answer] = {}
    for case, answer in _cases(version, activation):
        slot = (case.inputs or (Slot(None, "", ""),))[0]
        if slot.shape:
            activations[slot.dtype, prod(slot.shape[:-1]), slot.shape[-1]] = answer
    for (dtype, rows, count, inner, hidden), down in products.items():
        parts = (
            products.get((dtype, rows, count, hidden, 2 * inner)),
            activations.get((dtype, rows, 2 * inner)),
        )
        ranks, is_whole = divmod(model.experts, count)
        tokens, is_left = divmod(rows * ranks, model.choices)
        shards, is_cut = divmod(model.intermediate, inner)
        if is_whole or is_left or is_cut or not tokens or not shards:
            continue  # a product of gate and up, or of another model
        if None in parts:
            yield "moe", "no product of gate and up, or no activation, for the same tokens"
            continue
        whole = (down, *(part for part in parts if part is not None))
        total_us = sum(part.value_us for part in whole)
        warnings = dict.fromkeys(name for part in whole for name in part.warnings)
        sizes = {
            "num_tokens": tokens,
            "hidden_size": hidden,
            "inter_size": model.intermediate,
            "topk": model.choices,
            "num_experts": model.experts,
            "moe_tp_size": shards,
            "moe_ep_size": ranks,
        }
        answer = down._replace(value_us=total_us, warnings=tuple(warnings))
        named = {"moe_dtype": _EXPERTS[dtype], "distribution": "balanced"}
        yield "moe", _row(_stack(version), "moe", of_experts, answer, **named, **sizes)


def _grouped(case: Case) -> tuple[str, int, int, int, int] | str:
    """Return dtype, rows, experts, depth and width of a product by expert, or why it has none."""
    inputs = case.inputs or ()
    weight = logical_shape(inputs[1]) if len(inputs) > 1 else ()
    if len(weight) != 3 or inputs[0].shape is None or len(inputs[0].shape) != 2:
        return "no product by expert"
    if inputs[0].dtype not in _EXPERTS or dtype_of(inputs[1].dtype) != dtype_of(inputs[0].dtype):
        return "no dtype of AIConfigurator"
    if case.attribute(EP_SIZE) or len(set(_steps(_numbers(case, GROUP_ENDS)))) > 1:
        return _UNEVEN
    rows, depth = inputs[0].shape
    wide = weight[1:] if weight[1] == depth else (weight[2], weight[1])
    return inputs[0].dtype, rows, weight[0], depth, wide[1]


def _collectives(version: Version) -> _Rows:
    library, stack = _library(version), _stack(version)
    for kernel in BY_KERNEL_TYPE:
        found = [(one.collective, answer) for one, answer in collectives_alone(version, kernel)]
        nearest: dict[int, int] = {}
        for one, _ in found:
            nearest[one.group_size] = max(one.tier, nearest.get(one.group_size, 0))
        for one, answer in found:
            name, dtype = _OPERATIONS.get(one.operation), _MESSAGES.get(one.dtype)
            if name is None or dtype is None:
                yield "nccl", f"no name for {one.operation} of {one.dtype}"
                continue
            if one.tier != nearest[one.group_size]:
                yield "nccl", "not of the nearest ranks"
                continue
            elements = one.message_bytes // DTYPES[one.dtype][1]
            if one.operation in _WHOLE:
                elements *= one.group_size
            sizes = {"num_gpus": one.group_size, "message_size": elements}
            source = library.framework
            yield "nccl", _row(library, name, source, answer, nccl_dtype=dtype, **sizes)
            if one.operation == "all_reduce" and dtype == "half":
                row = _row(stack, name, source, answer, allreduce_dtype=_REDUCED, **sizes)
                yield "custom_allreduce", row
