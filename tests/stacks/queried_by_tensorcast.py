"""Queries msmodeling's data sources for every row of a version directory, as TensorCast does:

    python tests/stacks/queried_by_tensorcast.py FOLDER

It runs in an environment with msmodeling. FOLDER has a database (`store`) and its pulled tree
(`tree`). Printed is a JSON object with how many calls each source answered by the row's own
duration, and the others: kernel type, operator, shapes, what was answered and what was expected.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from tensor_cast.device import TEST_DEVICE
from tensor_cast.performance_model.empirical import EmpiricalPerformanceModel
from tensor_cast.performance_model.op_invoke_info import OpInvokeInfo
from tensor_cast.performance_model.profiling_database import (
    DataSourcePerformanceModel,
    ProfilingDataSource,
)
from tensor_cast.runtime import Runtime

import opmeter
from collector.database.op_mapping_writing import written_mapping
from collector.model.case import Case, Slot, logical_shape
from collector.model.demand import record_of_cells
from collector.model.vocabulary import dtype_of, is_absent_dtype
from opmeter.adapters.attention import FUSED
from opmeter.adapters.msmodeling import OpmeterDataSource

Call = tuple[str, tuple[Any, ...], Any]


def tensor_of(slot: Slot, half: bool) -> torch.Tensor | None:
    dtype = dtype_of(slot.dtype)
    if is_absent_dtype(slot.dtype) or dtype is None:
        return None
    kind = getattr(torch, dtype.torch_name)
    kind = torch.float16 if half and kind is torch.bfloat16 else kind
    shape = logical_shape(slot) if slot.shape else ()
    return torch.empty(tuple(shape or ()), dtype=kind, device="meta")


def calls(case: Case, operators: dict[str, Any], half: bool) -> Iterator[Call]:
    """Yield the calls of which a case is the kernel."""
    inputs, outputs = case.inputs or (), case.outputs or ()
    columns = dict(case.attributes)
    for name, entry in operators.items():
        kernels = (entry.get("kernel_type"), *entry.get("alternate_kernel_types", ()))
        if case.kernel_type not in kernels or entry.get("composite"):
            continue
        if entry.get("category") == "communication":
            group = list(range(int(columns["Runtime num_devices"])))
            yield name, (tensor_of(inputs[0], half), 0, group), None
        elif entry.get("query_mode") != "attention_special":
            made = [tensor_of(slot, half) for slot in outputs]
            out = made[0] if len(made) == 1 else made
            yield name, tuple(tensor_of(slot, half) for slot in inputs), out
        elif case.kernel_type == FUSED:
            heads = int(columns["Runtime num_key_value_heads"])
            query = tensor_of(inputs[0], half)
            assert query is not None
            key = torch.empty(16, 128, heads, query.shape[-1], dtype=query.dtype, device="meta")
            texts = columns["Runtime actual_seq_lengths_kv_values"].split(",")
            keys = torch.tensor(list(map(int, texts)))
            yield name, (query, key, key, None, None, None, keys, None), query


def query_all(source: Any, version: Any, half: bool) -> dict[str, Any]:
    operators = yaml.safe_load(written_mapping(version.kernels, version.path))["operator_mappings"]
    right: Counter[str] = Counter()
    others = []
    for kernel in version.kernels:
        for cells, answer in version.cases(kernel):
            case = record_of_cells(kernel, cells).case
            for name, args, out in calls(case, operators, half):
                found = source.lookup(OpInvokeInfo(name, args, {}, out))
                if found is not None and abs(found.latency_us / answer.value_us - 1) < 1e-5:
                    right[kernel] += 1
                    continue
                answered = None if found is None else found.latency_us
                others.append((kernel, name, cells["Input Shapes"], answered, answer.value_us))
    return {"right": right, "others": others}


def run_s(source: Any) -> float:
    """Return the time of a product, as a run of TensorCast sums it up."""
    model = EmpiricalPerformanceModel(TEST_DEVICE, source)
    one, other = (
        torch.empty(shape, dtype=torch.float16, device="meta")
        for shape in ((16, 5120), (5120, 768))
    )
    with Runtime([model], TEST_DEVICE) as runtime:
        torch.mm(one, other)
    return float(runtime.total_execution_time_s()[model.name])


def main(folder: Path) -> None:
    stored, pulled = (opmeter.open(folder / name) for name in ("store", "tree"))
    path = stored.directories[0]
    versions = [db.directory(path) for db in (stored, pulled)]
    sources = list(map(OpmeterDataSource, versions))
    own = ProfilingDataSource(folder / "tree" / path)
    answers = {
        "is_subclass": issubclass(OpmeterDataSource, DataSourcePerformanceModel),
        "store": query_all(sources[0], versions[0], half=False),
        "tree": query_all(sources[1], versions[1], half=False),
        "half": query_all(sources[0], versions[0], half=True),
        "own": query_all(own, versions[1], half=False),
        "run_s": run_s(sources[0]),
    }
    print(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
