"""Where things lie in a tree: `{device}/vllm_ascend/{version}/{KernelType}.csv`.

Every part that comes from data is checked before it becomes part of a path.
"""

import re
from pathlib import Path

from collector.case import normal_kernel_type
from collector.stack import Stack, version_name

OP_MAPPING = "op_mapping.yaml"
COMMUNICATION_REPORT = "reports/communication.csv"

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


def kernel_file_name(kernel_type: str) -> str:
    """`Add` -> `Add.csv`. Raises BadInput for a kernel type that could not be a file name."""
    return f"{normal_kernel_type(kernel_type)}.csv"


def kernel_files(version: Path) -> list[Path]:
    """The CSVs of a version folder in order of name; none where there is no such folder."""
    return sorted(path for path in version.glob("*.csv") if not path.name.startswith("."))
