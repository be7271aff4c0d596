"""Operators that torchair compiles for their shapes, as cases: the files that CANN dumps of them.

    aclnn_static_shape_kernel_outputs/
      20260801120000000000_4711_outputs/
        4711/            operators to compile (in CANN's documents)
        4711_opcompile/  the same, as torchair compiles them since 2.9; of several ranks: _gathered
        4711_debug/      all operators
          MatMulV2_bf16_ND_16_2048_0.json

A file is one operator at one shape: `op_type`, `inputs` and `outputs` with dtype, format and
storage shape (null for an absent one, a list for a dynamic one). Its fields are those that CANN's
nnopbase writes (src/nnopbase/common/op_info_record of hicann/opbase, 2026).

Each compiled operator is two cases, static and dynamic, so that both are measured and can be
compared. Others, which CANN does not compile, are dynamic only.
"""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector.codec.canonical import json_object
from collector.codec.errors import BadInput, file_errors
from collector.codec.files import read_small_file
from collector.model.case import is_kernel_type
from collector.model.record import CaseRecord
from collector.model.vocabulary import (
    ACCELERATOR_CORE,
    DYNAMIC,
    INPUT_CELLS,
    OP_STATE,
    OUTPUT_CELLS,
    STATIC,
    dtype_of,
    normal_dtype,
)

OUTPUTS = "aclnn_static_shape_kernel_outputs"
_FOLDER = re.compile(r"(?P<pid>\d{1,10})(?P<kind>|_debug|_opcompile|_opcompile_gathered)")
_DEBUG = "_debug"
_MOST_FILES, _MOST_SLOTS, _MOST_DIMENSIONS = 200_000, 1000, 16
_MOST_LENGTH = 2**63 - 1
_FORMAT = re.compile(r"[A-Za-z0-9_]{1,40}")
_ABSENT = ("", "DT_UNDEFINED", "NULL")


@dataclass(frozen=True, slots=True)
class StaticKernels:
    """The cases of a folder: of `compiled` operators in both states, of `others` dynamic only."""

    records: tuple[CaseRecord, ...]
    compiled: int
    others: int


def read_static_kernels(folder: Path) -> StaticKernels:
    """Return the cases of a folder of dumps, or of a folder that contains some.

    Raises BadInput if there are none, and for a file that is no operator, with its path."""
    outputs = _dumps_below(folder)
    if not outputs:
        what = f"expected folders PID, PID_debug or PID_opcompile with JSON files, below {OUTPUTS}"
        raise BadInput(f"{what}; got none", path=folder)
    compiled: dict[str, CaseRecord] = {}
    others: dict[str, CaseRecord] = {}
    for kinds in outputs.values():
        to_compile, rest = _sorted_out(kinds)
        for path in to_compile:
            record = read_operator(path, STATIC)
            compiled.setdefault(record.case_id, record)
        for path in rest:
            record = read_operator(path, DYNAMIC)
            others.setdefault(record.case_id, record)
    twins = {(twin := _dynamic(one)).case_id: twin for one in compiled.values()}
    alone = {key: record for key, record in others.items() if key not in twins}
    records = (*compiled.values(), *twins.values(), *alone.values())
    return StaticKernels(records, len(compiled), len(alone))


def _dumps_below(folder: Path) -> Mapping[tuple[Path, str], Mapping[str, list[Path]]]:
    """Return the JSON files below a folder by the process that wrote them (its parent folder and
    its id) and by the kind of their folder. Links are not followed."""
    found: dict[tuple[Path, str], dict[str, list[Path]]] = defaultdict(dict)
    count = 0
    with file_errors(folder):
        if not folder.is_dir():
            raise BadInput("expected a folder", path=folder)
        for place, folders, names in os.walk(folder):
            folders.sort()
            match = _FOLDER.fullmatch(Path(place).name)
            files = sorted(name for name in names if name.endswith(".json")) if match else []
            if match is None or not files:
                continue
            count += len(files)
            if count > _MOST_FILES:
                raise BadInput(f"expected at most {_MOST_FILES:,} files of operators", path=folder)
            of_process = found[Path(place).parent, match["pid"]]
            of_process[match["kind"]] = [Path(place, name) for name in files]
    return found


def _sorted_out(kinds: Mapping[str, list[Path]]) -> tuple[list[Path], list[Path]]:
    """Return the files that are compiled, as torchair chooses them, and the others."""
    for kind in ("_opcompile_gathered", "_opcompile", "", _DEBUG):
        if kind in kinds:
            return kinds[kind], [] if kind == _DEBUG else kinds.get(_DEBUG, [])
    return [], []


def read_operator(path: Path, state: str) -> CaseRecord:
    """Return the record of a file. Raises BadInput, with the field, if it is no operator."""
    with file_errors(path):
        value = json_object(read_small_file(path), what="operator", key=str(path))
    kernel_type = value.get("op_type")
    if not isinstance(kernel_type, str) or not is_kernel_type(kernel_type):
        raise BadInput(f"op_type: expected a kernel type, got {kernel_type!r}", path=path)
    cells = {OP_STATE: state, ACCELERATOR_CORE: ""}
    for name, columns in (("inputs", INPUT_CELLS), ("outputs", OUTPUT_CELLS)):
        slots = list(_slots(value.get(name), name, path))
        texts = zip(*slots, strict=True) if slots else ((), (), ())
        cells |= {column: ";".join(each) for column, each in zip(columns, texts, strict=True)}
    return CaseRecord(kernel_type, cells, {})


def _slots(value: object, name: str, path: Path) -> Iterator[tuple[str, str, str]]:
    """Yield shape, dtype and format of each tensor, as in a row."""
    if not isinstance(value, list) or len(value) > _MOST_SLOTS:
        raise BadInput(f"{name}: expected a list of tensors, got {value!r}", path=path)
    for at, one in enumerate(value):
        tensors: Iterable[object] = one if isinstance(one, list) else [one]
        for tensor in tensors:
            yield _ABSENT if tensor is None else _slot(tensor, f"{name}[{at}]", path)


def _slot(tensor: Any, place: str, path: Path) -> tuple[str, str, str]:
    members = tensor if isinstance(tensor, dict) else {}
    shape, dtype, layout = (members.get(name) for name in ("shape", "dtype", "format"))
    if not isinstance(dtype, str) or dtype_of(dtype) is None:
        raise BadInput(f"{place}.dtype: expected a dtype such as bf16, got {dtype!r}", path=path)
    if not isinstance(layout, str) or not _FORMAT.fullmatch(layout):
        raise BadInput(f"{place}.format: expected a format such as ND, got {layout!r}", path=path)
    is_list = isinstance(shape, list) and len(shape) <= _MOST_DIMENSIONS
    if not is_list or not all(type(n) is int and 0 <= n <= _MOST_LENGTH for n in shape or ()):
        raise BadInput(f"{place}.shape: expected a list of lengths, got {shape!r}", path=path)
    return ",".join(map(str, shape or ())), normal_dtype(dtype), layout


def _dynamic(record: CaseRecord) -> CaseRecord:
    return CaseRecord(record.kernel_type, {**record.cells, OP_STATE: DYNAMIC}, record.extra)
