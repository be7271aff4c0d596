"""The profile files below a path: `kernel_details*.csv` and `op_summary_*.csv`."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from collector.codec.canonical import json_object
from collector.codec.errors import BadInput
from collector.codec.files import read_small_file
from collector.codec.text import counted
from collector.profiles.databases import is_export

# The names of files that are tables of kernels, and the folders that are searched.

EXPECTED_FILES = "kernel_details*.csv or op_summary_*.csv"


def is_kernel_table(name: str) -> bool:
    """Return whether a file of this name has one row per launch."""
    low = name.lower()
    expected = "kernel_details" in low or low.startswith("op_summary")
    return expected and low.endswith(".csv") and not name.startswith(".")


def folders_below(path: Path) -> Iterator[Path]:
    """Yield a folder and all folders below it, in order of their names.

    Links to folders are followed, because users collect ranks with links. Each folder is yielded
    once."""
    seen: set[Path] = set()
    for name, below, _ in os.walk(path, followlinks=True):
        folder = Path(name)
        if (real := folder.resolve()) in seen:
            below.clear()
            continue
        seen.add(real)
        below.sort()
        yield folder


_OUTPUT = "ASCEND_PROFILER_OUTPUT"
_OUTPUTS = (_OUTPUT, "mindstudio_profiler_output")
RUN_SUFFIX = "_ascend_pt"
CAPTURE_SUFFIXES = (RUN_SUFFIX, "_ascend_ms")  # of torch_npu and of MindSpore
CAPTURE_FACTS = "opmeter_capture_*.json"  # what each process of a capture noted
_RAW_FOLDERS = re.compile(r"FRAMEWORK|device_\d+|host")  # of a capture: what was recorded
_MSPROF_CAPTURE = re.compile(r"PROF_\d+\w*")
_MOST_NAMED = 10
_LONGEST_VERSION = 100
_LEVEL_1 = (
    "torch_npu's profiler writes kernel_details.csv next to trace_view.json with record_shapes and "
    "a level above 0"
)
# Other files that are found in place of a profile, by the ends of their names.
_OTHERS = (
    (
        (".nsys-rep", ".qdrep", ".ncu-rep"),
        "NVIDIA's profilers",
        "opmeter reads launches of Ascend NPUs only",
    ),
    (
        (".db", ".sqlite"),
        "databases that hold no kernels",
        "opmeter reads msprof_*.db, ascend_pytorch*.db and tables of kernels",
    ),
    (
        (".trace.json", ".trace.json.gz"),
        "traces of torch's profiler on a GPU or a CPU",
        "`opmeter trace to-csv FILE --by-kernel FOLDER` reads those of GPUs, with their shapes",
    ),
    (
        ("trace_view.json", ".json.gz"),
        "traces, which hold no shapes",
        _LEVEL_1,
    ),
    ((".bin", ".slice_0"), "raw data", "export it: msprof --export=on --output=PROF_..."),
)


# JSON files of a profiled run, and others, that are given in place of a profile.
_JSON = (
    "JSON: expected a table of kernels, an archive or a database; `opmeter comm --profile` "
    "takes communication.json, `opmeter model show` and `opmeter coverage --model` a config.json"
)


@dataclass(frozen=True, slots=True)
class Unanalysed:
    """A capture that has no table of kernels, in a folder or in an archive.

    `is_raw` is False if it was analysed, and the analysis wrote no kernels."""

    folder: PurePath
    is_raw: bool

    def __str__(self) -> str:
        if not self.is_raw:
            return f"{self.folder}: analysed, without kernels: {_LEVEL_1}"
        if _MSPROF_CAPTURE.fullmatch(self.folder.name):
            how = f"msprof --export=on --output={self.folder}"
        else:
            how = f"opmeter capture analyse {self.folder.parent}"
        return f"{self.folder}: not analysed: run {how}"


@dataclass(frozen=True, slots=True)
class ProfiledSoftware:
    """The software versions in the folder of a run; empty if they are not recorded."""

    folder: Path
    torch_npu: str
    cann: str


def find_profiles(paths: Sequence[Path], unanalysed: Sequence[Unanalysed] = ()) -> tuple[Path, ...]:
    """Return every profile file of the paths, each once; folders are searched.

    An error about a folder without a profile names the `unanalysed` captures.

    The folder of a run (`..._ascend_pt`) may have the same launches twice, as kernel_details and as
    the op_summary that it was made from: then only kernel_details is used. Raises BadInput for a
    path that does not exist or without a profile."""
    found: dict[Path, Path] = {}
    for path in paths:
        for file in _files_of(path, unanalysed):
            found.setdefault(file.resolve(), file)
    files = tuple(found.values())
    runs = {run for file in files if is_kernel_details(file) and (run := run_folder(file))}
    return tuple(
        file
        for file in files
        if is_kernel_details(file) or runs.isdisjoint(file.absolute().parents)
    )


def run_folder(file: Path) -> Path | None:
    """Return the folder of the run that a file belongs to; None if the path does not show it."""
    for folder in file.absolute().parents:
        if folder.name.endswith(RUN_SUFFIX):
            return folder
        if folder.name == _OUTPUT:
            return folder.parent
    return None


def software_of(files: Iterable[Path]) -> tuple[ProfiledSoftware, ...]:
    """Return the software in the `profiler_info*.json` of the files' runs, one entry per folder."""
    folders = dict.fromkeys(run_folder(file) or file.absolute().parent for file in files)
    return tuple(software for folder in folders if (software := _software(folder)) is not None)


def unanalysed_captures(
    paths: Iterable[Path], members: Iterable[Path] = ()
) -> tuple[Unanalysed, ...]:
    """Return the captures below the paths that have no table of kernels, in order of their names.

    `members` are the paths of the files of archives."""
    held = (file for path in paths if path.is_dir() for file in files_below(path))
    raw: set[PurePath] = set()
    analysed: set[PurePath] = set()
    with_kernels: set[PurePath] = set()
    for file in (*held, *members):
        capture = _capture_of(file)
        if capture is None:
            continue
        name, inner = file.name, file.relative_to(capture).parts[:-1]
        if is_kernel_table(name) or is_kernel_table(file.stem) or is_export(name):
            with_kernels.add(capture)
        elif any(part in _OUTPUTS for part in inner):
            analysed.add(capture)
        elif any(map(_RAW_FOLDERS.fullmatch, inner)) or name.startswith("profiler_info"):
            raw.add(capture)
    found = sorted((raw | analysed) - with_kernels)
    return tuple(Unanalysed(capture, capture not in analysed) for capture in found)


def _capture_of(file: PurePath) -> PurePath | None:
    """Return the folder of the capture that a file belongs to, by the names of folders."""
    parents = list(file.parents)
    for folder in parents:
        if folder.name.endswith(CAPTURE_SUFFIXES):
            return folder
    for folder, inner in zip(parents[1:], parents, strict=False):
        if _MSPROF_CAPTURE.fullmatch(folder.name) or inner.name == "FRAMEWORK":
            return folder
    return None


def files_below(path: Path) -> list[Path]:
    """Return the files of a folder and of all folders below it."""
    return [file for folder in folders_below(path) for file in folder.iterdir() if file.is_file()]


def _files_of(path: Path, unanalysed: Sequence[Unanalysed]) -> Iterator[Path]:
    if path.is_file():
        if note := _other_file(path.name):
            raise BadInput(note, path=path)
        yield path
        return
    if not path.is_dir():
        got = "a pipe or a device" if path.exists() else "no such file or folder"
        raise BadInput(f"{got}; expected {EXPECTED_FILES}", path=path)
    held = files_below(path)
    files = sorted(file for file in held if is_kernel_table(file.name))
    if not files:
        note = note_of(unanalysed) or others_note(held)
        raise BadInput(f"no {EXPECTED_FILES} in this folder or below it{note}", path=path)
    yield from files


def note_of(unanalysed: Sequence[Unanalysed]) -> str:
    """Return the part of a message that names captures without kernels; empty if there are none."""
    if not unanalysed:
        return ""
    named = "; ".join(map(str, unanalysed[:_MOST_NAMED]))
    more = len(unanalysed) - _MOST_NAMED
    rest = f"; and {counted(more, 'more capture')}" if more > 0 else ""
    return f"; {counted(len(unanalysed), 'capture')} without kernels: {named}{rest}"


def _other_file(name: str) -> str:
    """Return what a file is and what to do with it, if its name shows that it is no profile."""
    low = name.lower()
    for endings, found, remedy in _OTHERS:
        if low.endswith(endings):
            return f"one of {found}: {remedy}"
    if low.endswith((".yaml", ".yml")):
        return "YAML: expected a table of kernels; `opmeter plan` takes a campaign file"
    return _JSON if low.endswith((".json", ".jsonl")) else ""


def others_note(held: Iterable[Path]) -> str:
    """Return the part of a message that says what other files are, and what reads them; empty if
    they are none that opmeter knows."""
    names = [file.name.lower() for file in held]
    for endings, found, remedy in _OTHERS:
        if count := sum(name.endswith(endings) for name in names):
            return f"; {counted(count, 'file')} of {found}: {remedy}"
    return ""


def is_kernel_details(file: Path) -> bool:
    """Return whether a file is the profiler's own, not the op_summary that it is made from."""
    return "kernel_details" in file.name.lower()


def _software(folder: Path) -> ProfiledSoftware | None:
    for path in sorted(folder.glob("profiler_info*.json")):
        try:
            data = read_small_file(path)
            info = json_object(data, what="the profiler_info of a profiler", key=str(path))
        except (OSError, BadInput):
            continue  # optional information; the rows do not depend on it
        versions = (info.get(f"{name}_version") for name in ("torch_npu", "cann"))
        return ProfiledSoftware(folder, *map(_version, versions))
    return None


def _version(value: object) -> str:
    """Return a version from a file; empty if it is not a valid version."""
    is_one = isinstance(value, str) and len(value) <= _LONGEST_VERSION and value.isprintable()
    return str(value) if is_one else ""
