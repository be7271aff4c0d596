"""Files that a campaign in a cluster names: read only below folders that the controller was told.

Who writes a ConfigMap chooses the path, and the controller's own files (its token, the store's
credentials) must not become cases, nor words of an Event. So links count by where they lead, and
only regular files are read: a pipe would hold the controller up for ever.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from collector.errors import BadInput
from collector.profiles.discovery import run_folder
from jobs.campaign.campaign_file import Campaign
from jobs.campaign.model_source import ModelSource
from jobs.campaign.source_kinds import ProfileSource, TreeSource


def check_sources(campaign: Campaign, folders: Sequence[Path]) -> None:
    """Raise BadInput where a source or the op_mapping is a file that lies in none of the folders
    from which campaigns may be read here."""
    for path in (*_paths(campaign), *([campaign.op_mapping] if campaign.op_mapping else ())):
        try:
            check_mounted(path, folders)
        except BadInput as error:
            raise BadInput(
                f"campaign {campaign.name}: {error}; on the machine with its files, "
                "opmeter launch CAMPAIGN uploads their cases"
            ) from error


def _paths(campaign: Campaign) -> Iterator[Path]:
    """The files and folders that its sources are read from."""
    for source in campaign.sources:
        if isinstance(source, ProfileSource | TreeSource):
            yield source.path
        elif isinstance(source, ModelSource) and isinstance(source.model, Path):
            yield source.model


def check_mounted(path: Path, folders: Sequence[Path]) -> None:
    """Raise BadInput unless the path, all below it, and what readers look at beside it, are
    regular files and folders below one of `folders`; what lies elsewhere is not even looked for."""
    real = _end_of(path)
    folder = _holding(real, folders)
    if folder is None:
        allowed = ", ".join(map(str, folders)) or "none (set --sources-folder)"
        raise BadInput(
            f"outside the folders of sources that this controller reads: {allowed}", path=path
        )
    if not os.path.exists(real):
        raise BadInput("no such file or folder", path=path)
    for start in {_read_with(path.absolute(), folder), _read_with(real, folder)}:
        for parent, inside, files in os.walk(start):
            for name in (*inside, *files):
                _check(Path(parent, name), folder)


def _end_of(path: Path) -> Path:
    """Where a path leads; of links that lead in a circle, the first."""
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:
        raise BadInput("expected a valid path", path=ascii(path.name)) from error


def _holding(path: Path, folders: Sequence[Path]) -> Path | None:
    resolved = map(_end_of, folders)
    return next((folder for folder in resolved if path.is_relative_to(folder)), None)


def _read_with(path: Path, folder: Path) -> Path:
    """The folder below which a reader of this path looks: of a file its neighbours, too, and what
    lies at the top of its run."""
    run = run_folder(path)
    if run is not None and _end_of(run).is_relative_to(folder):
        return run
    return path if path.is_dir() else path.parent


def _check(path: Path, folder: Path) -> None:
    if not _end_of(path).is_relative_to(folder):
        raise BadInput(f"the link leads out of {folder} and is not followed", path=path)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", path=path) from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise BadInput("expected a regular file", path=path)
