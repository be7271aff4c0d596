"""Facts about the calls of operators: releases, proofs, verified devices, C functions."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

# Releases of torch_npu and vLLM-Ascend that accept the calls of the catalog, from their wheels.
#
# `data/releases.csv` is made by binding the call of every fixture row to the schemas that the
# wheels contain as text; no kernel was launched. A release that is not in the file is unknown.
# Kernels that A2 and A3 have too have a line of their own for the fixture rows of Ascend 950.

BOUND = "bound"
BOUND_OTHERWISE = (
    "bound another way"  # the declaration passes the arguments that this release accepts
)
SCHEMA_UNKNOWN = "there, its schema is unknown"
ABSENT = "absent"
_TAKEN = (BOUND, BOUND_OTHERWISE, SCHEMA_UNKNOWN)
ROWS_OF_950 = "Ascend 950"
_OF_A_ROW = 3  # columns before those of releases
_FILE = "verified_on.yaml"


def _text(name: str) -> str:
    return (files("collector") / "data" / name).read_text(encoding="utf-8")


def _rows(name: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(_text(name)))


def known_releases() -> tuple[str, ...]:
    """Return the known releases, as `torch_npu-2.9.0`, the oldest of each library first."""
    return tuple(next(iter(_releases_table().values())))


def release_status(kernel_type: str, rows: str = "") -> Mapping[str, str]:
    """Return how each release of the operator's library accepts its calls: those of all rows, or of
    `rows` if the operator has two kinds.

    Releases of vLLM-Ascend are included if it has its own function for the kernel. Empty for
    torch's own functions and for operations over several ranks."""
    table = _releases_table()
    words = table.get((kernel_type, rows)) or table.get((kernel_type, ""), {})
    return {release: word for release, word in words.items() if word}


def kinds_of_rows(kernel_type: str) -> tuple[str, ...]:
    """Return the kinds of rows that the releases accept in different ways: "" alone, or also
    ROWS_OF_950."""
    return tuple(rows for kernel, rows in _releases_table() if kernel == kernel_type)


def why_unsupported(kernel_type: str, release: str, rows: str = "") -> str:
    """Return why a release does not accept an operator's calls; empty if it does or is unknown."""
    status_of_release = release_status(kernel_type, rows)
    word = status_of_release.get(release, BOUND)
    if word in _TAKEN:
        return ""
    library, _, version = release.partition("-")
    known = (name.partition("-") for name, other in status_of_release.items() if other in _TAKEN)
    taking = [number for own, _, number in known if own == library]
    needs = f"{library} {' or '.join(taking)} accepts it" if taking else f"no {library} accepts it"
    verdict = "has no such function" if word == ABSENT else f"accepts other arguments ({word})"
    return f"{library} {version} {verdict}: {needs}"


@cache
def _releases_table() -> Mapping[tuple[str, str], Mapping[str, str]]:
    header, *rows = _rows("releases.csv")
    return {
        (row[0], row[2]): dict(zip(header[_OF_A_ROW:], row[_OF_A_ROW:], strict=True))
        for row in rows
        if row
    }


# Evidence that a call launches its kernel on the tensors of a row, until an NPU has confirmed it:
# `data/proofs.csv`, made by the tests' recording tier.


def proof_of(kernel_type: str) -> str:
    """Return the evidence in one line; empty for a kernel type that is not declared."""
    return _proofs_table().get(kernel_type, ("", ""))[0]


def type_proof_of(kernel_type: str) -> str:
    """Return the evidence that the call launches a kernel of this type; empty if not declared."""
    return _proofs_table().get(kernel_type, ("", ""))[1]


@cache
def _proofs_table() -> Mapping[str, tuple[str, str]]:
    _, *rows = _rows("proofs.csv")
    return {kernel: (proof, of_type) for kernel, proof, of_type in rows}


# Devices on which an operator's call was observed to launch its kernel, from the package's list.


def verified_on(kernel_type: str) -> tuple[str, ...]:
    """Return the devices, sorted; empty until a report confirms one."""
    return tuple(device for device, kernels in sorted(_known().items()) if kernel_type in kernels)


def with_proved(device: str, kernel_types: Iterable[str]) -> str:
    """Return the text of the package's list with the kernel types that a device confirmed added."""
    known = _known()
    joined = {**known, device: frozenset(kernel_types) | known.get(device, frozenset())}
    comments = [line for line in _text(_FILE).splitlines() if line.startswith("#")]
    body = {device: sorted(kernels) for device, kernels in sorted(joined.items()) if kernels}
    return "\n".join((*comments, yaml.safe_dump(body, default_flow_style=False)))


@cache
def _known() -> Mapping[str, frozenset[str]]:
    return {device: frozenset(kernels) for device, kernels in yaml.safe_load(_text(_FILE)).items()}


# C functions of CANN that an operator's call ends in, with their arguments: `data/launched.csv`,
# made from the recorded calls of the stock torch_npu 2.13.0.
#
#     aclnnSparseFlashAttention, "..........ss.........", some numbers
#
# `s` is a text, `.` any other argument except a floating-point number. Floating-point numbers are
# passed in separate registers, so their positions are unknown.


@dataclass(frozen=True, slots=True)
class CFunction:
    """A C function as it is called or declared, without workspace and executor."""

    name: str
    arguments: str
    has_numbers: bool


def launched_by(kernel_type: str) -> tuple[CFunction, ...]:
    """Return the functions that launch a kernel; empty if none was recorded."""
    return _launched_table().get(kernel_type, ())


@cache
def _launched_table() -> Mapping[str, tuple[CFunction, ...]]:
    _, *rows = _rows("launched.csv")
    table: dict[str, tuple[CFunction, ...]] = {}
    for kernel, name, arguments, numbers in rows:
        found = CFunction(name, arguments, numbers == "yes")
        table[kernel] = (*table.get(kernel, ()), found)
    return table
