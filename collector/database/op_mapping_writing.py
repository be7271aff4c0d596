"""The `op_mapping.yaml` of a version folder, written from the declarations of its kernels.

TensorCast (Ascend/msmodeling) reads it to find the CSV of an operator. The names are declared with
the operators (`OpSpec.lookups`) and the collectives (`Operation.lookups`); here are the operators
without a kernel (op_mapping.yaml of its data for vLLM-Ascend 0.18, and the rules of
tests/benchmark/ops/perf_database/test_op_mapping_schema.py, both at 84fec85).

Only kernels of the folder are named, and collectives, which a bench may add to a folder that
several versions share. A kernel without an operator has an entry
`profiling.{Kernel}`, by which nothing is looked up. The first line has a hash of the others: a file
with other lines is a user's, and stays.
"""

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput, file_errors
from collector.codec.files import read_small_file
from collector.database.layout import (
    OP_MAPPING,
    collective_folder,
    is_version_name,
    kernel_files,
)
from collector.model.case import normal_kernel_type
from collector.model.lookup import Lookup
from collector.ops import registry
from collector.ranks.collective import OPERATIONS
from collector.ranks.experts import LOOKUPS as EXPERTS
from collector.store.atomic import write_through

_FIRST_LINE = re.compile(rb"# Written by opmeter; sha256 of the lines below: ([0-9a-f]{64})\n")
_ABOUT = """\
# Each operator of a model, and the CSV in which TensorCast looks its duration up. opmeter writes
# this file again while its lines are unchanged; a changed one stays as it is.
"""

Entry = dict[str, Any]


class _PlainDumper(yaml.SafeDumper):
    """Writes each value in full, instead of aliases to equal ones."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# Operators that change no memory, or that only give a tensor another shape.
_WITHOUT_KERNEL = (
    *("_unsafe_view.default", "alias.default", "detach.default", "expand.default"),
    *("permute.default", "select.int", "slice.Tensor", "split.Tensor"),
    *("split_with_sizes.default", "squeeze.dim", "t.default", "transpose.int"),
    *("unsqueeze.default", "view.default"),
)
_COLLECTIVES = frozenset(one.kernel_type for one in OPERATIONS.values() if one.lookups)


def written_mapping(kernels: Collection[str], version_path: str | None = None) -> bytes:
    """Return the file for the kernel types of a version folder.

    `version_path` is the path of the folder in a tree; None if it is in none, and its collectives
    are in the same folder."""
    content: Entry = {}
    if version_path is not None:
        device, _, name = version_path.partition("/")
        vllm, torch, cann = re.split("_torch|_cann", name.rpartition("/")[2].removeprefix("vllm"))
        content |= {"version": vllm, "device": device}
        content |= {"cann_version": cann, "pytorch_version": torch}
        folder = os.path.relpath(collective_folder(version_path), version_path)
        content["communication_data_ref"] = f"{folder}/"
    content["communication_fallback"] = "analytic"
    policies = {
        kernel: dict(lookup.interpolation)
        for found in _lookups().values()
        for kernel, lookup in found.items()
        if lookup.interpolation and kernel in kernels
    }
    if policies:
        content["interpolation_policy"] = {"kernel_overrides": policies}
    content["operator_mappings"] = dict(_entries(frozenset(kernels)))
    text = yaml.dump(
        content, Dumper=_PlainDumper, sort_keys=False, default_flow_style=None, width=100
    )
    lines = (_ABOUT + text).encode()
    first = f"# Written by opmeter; sha256 of the lines below: {sha256_hex(lines)}\n"
    return first.encode() + lines


def is_written(data: bytes) -> bool:
    """Return whether a file is as opmeter wrote it, and no user changed it."""
    found = _FIRST_LINE.match(data)
    return found is not None and sha256_hex(data[found.end() :]) == found[1].decode()


def write_mapping(folder: Path) -> bool:
    """Write the file of a version folder, if it has kernels. Return False, and write nothing, if a
    user's own is there."""
    stems = (path.stem for path in kernel_files(folder) if path.parent == folder)
    kernels = {stem for stem in stems if _is_kernel(stem)}
    path = folder / OP_MAPPING
    with file_errors(path, "written"):
        held = read_small_file(path) if path.exists() else None
        if held is not None and not is_written(held):
            return False
        data = written_mapping(kernels, _path_in_tree(folder))
        if kernels and data != held:
            write_through(path, data)
    return True


def mapped_operators(kernel_type: str) -> tuple[str, ...]:
    """Return the operators whose duration the consumer takes from a kernel type."""
    return tuple(name for name, found in _lookups().items() if kernel_type in found)


def _path_in_tree(folder: Path) -> str | None:
    """Return the path of a version folder below the root of its tree; None if it is in none."""
    *_, device, backend, name = ("", "", *folder.absolute().parts)
    is_in_tree = backend == "vllm_ascend" and is_version_name(name)
    return f"{device}/{backend}/{name}" if is_in_tree else None


def _is_kernel(name: str) -> bool:
    try:
        return normal_kernel_type(name) == name
    except BadInput:
        return False


def _entries(kernels: frozenset[str]) -> Iterator[tuple[str, Entry]]:
    there, named = kernels | _COLLECTIVES, set[str]()
    for operator, lookups in _lookups().items():
        found = {name: lookup for name, lookup in lookups.items() if name in there}
        others = {one.collective for one in found.values() if one.collective}
        added = [OPERATIONS[name].kernel_type for name in sorted(others)]
        if found and there.issuperset(added):
            named.update(found)
            yield operator, _entry(list(found), added, next(iter(found.values())))
    for operator in _WITHOUT_KERNEL:
        yield f"aten.{operator}", {"zero_cost": True}
    yield from ((f"profiling.{name}", {"kernel_type": name}) for name in sorted(kernels - named))


def _entry(kernels: list[str], added: list[str], lookup: Lookup) -> Entry:
    settings = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in lookup.settings.items()
    }
    if added:
        return {"composite": True, "sub_kernels": [*kernels, *added], **settings}
    first, *others = kernels
    alternates = {"alternate_kernel_types": others} if others else {}
    if lookup.is_part:
        apart: Entry = {"composite": True, "decomposer": True, "primary_kernel_type": first}
        return {**apart, **alternates, **settings}
    return {"kernel_type": first, **alternates, **settings}


@cache
def _lookups() -> Mapping[str, Mapping[str, Lookup]]:
    """Return the lookups of each operator by kernel type, in the order in which they are tried."""
    declared = [
        *registry.lookups(),
        *((kernel, one) for kernel, found in EXPERTS.items() for one in found),
        *((one.kernel_type, lookup) for one in OPERATIONS.values() for lookup in one.lookups),
    ]
    found: dict[str, dict[str, Lookup]] = defaultdict(dict)
    for kernel_type, lookup in sorted(declared, key=lambda one: one[1].order):
        found[lookup.operator][kernel_type] = lookup
    return dict(sorted(found.items()))
