"""Where a tree's version lies: what every verb of the single-host flow is told first."""

from pathlib import Path
from typing import Annotated

import typer

from collector.errors import BadInput

DatabasePathOption = Annotated[Path | None, typer.Option(help="the version directory of a tree")]
DeviceOption = Annotated[str | None, typer.Option(help="instead: the device ...")]
VllmOption = Annotated[str, typer.Option(help="... and the versions of its stack")]
VersionOption = Annotated[str, typer.Option()]


def version_folder(
    database_path: Path | None, device: str | None, versions: tuple[str, str, str]
) -> Path:
    """The folder itself, or that of a device and its versions (vllm, torch, CANN) below this one.

    A vllm version that is a whole name (`vllm0.18.0_torch2.9.0_cann8.5`) needs no others.
    """
    from collector.database.layout import is_version_name, version_dir

    if database_path is not None:
        return database_path
    vllm, torch, cann = versions
    if not device or not (torch or is_version_name(vllm)):
        raise BadInput(
            "the tree is not specified: expected --database-path VERSION_DIR, or --device with "
            "--vllm-version, "
            "--torch-version and --cann-version"
        )
    return version_dir(Path.cwd(), device, vllm, torch, cann)
