"""Where things lie in a tree: `{device}/vllm_ascend/{version}/{KernelType}.csv`, and beside it
collectives in `{device}/hccl/v{cann}/`.

Every part that comes from data is checked before it becomes part of a path.

Consumers read those files with pandas, to which `N/A` and an empty cell are no text but NaN. A row
whose input shapes are that makes them fail at every row of its kernel type, as soon as it has a
duration. Such rows lie in `{version}/unknown_inputs/{KernelType}.csv`, where only we look.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from collector.case import normal_kernel_type
from collector.collective_case import is_collective
from collector.stack import Stack, backend_of, version_name
from collector.vocabulary import INPUT_SHAPES

Row = TypeVar("Row", bound=Mapping[str, str])

UNKNOWN_INPUTS = "unknown_inputs"
OTHER_SETTINGS = "other_settings"  # of collectives
OP_MAPPING = "op_mapping.yaml"
COMMUNICATION_REPORT = "reports/communication.csv"
PARSED_PROFILES = "reports/parsed_profiles.json"

# What pandas takes for NaN, as far as a profiler or a tool writes it.
_NO_SHAPES = frozenset({"N/A", "NA", "NULL", "NONE", "NAN", "<NA>", "#N/A"})
_VERSION_NAME = re.compile(r"vllm[A-Za-z0-9.+-]+_torch[A-Za-z0-9.+-]+_cann[A-Za-z0-9.+-]+")


def is_version_name(text: str) -> bool:
    """Whether a folder is called like a version: `vllm0.18.0_torch2.9.0_cann8.5`."""
    return _VERSION_NAME.fullmatch(text) is not None


def version_dir_name(vllm: str, torch: str, cann: str) -> str:
    """The version's name from its parts; a vllm version that is a whole name is taken as it is.

    Raises BadInput for a part that is no version.
    """
    return vllm if is_version_name(vllm) else version_name(vllm, torch, cann)


def version_dir(root: Path, device: str, vllm: str, torch: str, cann: str) -> Path:
    """The folder of a version below a tree's root. BadInput for a device that is no name."""
    named = Stack(device=device, torch=torch)  # which checks the device
    return root / named.device / "vllm_ascend" / version_dir_name(vllm, torch, cann)


def collective_folder(version_path: str) -> str:
    """Where the collectives of a version directory lie, as consumers have it: by the library that
    ran them. `{device}/hccl/v8.5` of CANN 8.5; of devices without CANN by torch, which brings the
    library along."""
    device, _, name = version_path.partition("/")
    name = name.rpartition("/")[2]
    software, _, cann = name.rpartition("_cann")
    torch = software.rpartition("_torch")[2]
    if backend_of(device) == "cpu":
        return f"{device}/gloo/v{torch}"
    return f"{device}/nccl/v{torch}" if cann == "0" else f"{device}/hccl/v{cann}"


def is_collective_file(path: str, version_path: str) -> bool:
    """Whether a path is that of collectives of a version directory."""
    folder, _, name = path.removesuffix(".csv").rpartition("/")
    where = folder.removesuffix(f"/{OTHER_SETTINGS}")
    is_csv = path.endswith(".csv")
    return is_csv and is_collective(name) and where == collective_folder(version_path)


def kernel_file_name(kernel_type: str) -> str:
    """`Add` -> `Add.csv`. Raises BadInput for a kernel type that could not be a file name."""
    return f"{normal_kernel_type(kernel_type)}.csv"


def by_file(kernel_type: str, rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows of a kernel type by the file of a version folder that they belong into, in their order:
    those of unknown inputs, then the others. Whatever writes rows writes them where this says.
    Raises BadInput for a kernel type that could not be a file name."""
    name = kernel_file_name(kernel_type)
    files: dict[str, list[Row]] = {f"{UNKNOWN_INPUTS}/{name}": [], name: []}
    for row in rows:
        files[name if _has_inputs(row) else f"{UNKNOWN_INPUTS}/{name}"].append(row)
    return {file: found for file, found in files.items() if found}


def _has_inputs(row: Mapping[str, str]) -> bool:
    shapes = row.get(INPUT_SHAPES, "").strip()
    return bool(shapes) and shapes.strip('"').strip().upper() not in _NO_SHAPES


def is_kernel_file_name(name: str) -> bool:
    """Whether a path inside a version folder is that of a kernel type's rows."""
    file = name.removeprefix(f"{UNKNOWN_INPUTS}/")
    return kernel_file_name(file.removesuffix(".csv")) == file


def kernel_files(version: Path) -> list[Path]:
    """The CSVs of a version folder in order of name, those for rows of unknown inputs last; none
    where there is no such folder."""
    folders = (version, version / UNKNOWN_INPUTS)
    files = (sorted(folder.glob("*.csv")) for folder in folders)
    return [path for found in files for path in found if not path.name.startswith(".")]
