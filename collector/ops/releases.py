"""What is known of the calls of operators: releases, proofs, verified devices, C functions."""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

# Which releases of torch_npu and vLLM-Ascend take the calls of the catalogue, from their wheels.
#
# `data/releases.csv` is made by binding every fixture row's call against the schemas that the
# wheels hold as text: nothing was launched. A release that is not in it is not known.

BOUND = "bound"
OTHERWISE = "bound another way"  # the declaration passes what this release takes
UNTOLD = "there, its schema is not told"
ABSENT = "absent"
_TAKEN = (BOUND, OTHERWISE, UNTOLD)
_OF_A_ROW = 2  # columns before those of releases


def known_releases() -> tuple[str, ...]:
    """The releases that are known, as `torch_npu-2.9.0`, each library's oldest first."""
    return tuple(next(iter(_releases_table().values())))


def answers_of(kernel_type: str) -> Mapping[str, str]:
    """How each release of its library takes an operator's calls, and of vLLM-Ascend's where that
    serves by a function of its own; empty for those of torch's own functions, and of what runs over
    ranks."""
    return {
        release: word for release, word in _releases_table().get(kernel_type, {}).items() if word
    }


def refused_on(kernel_type: str, release: str) -> str:
    """Why a release does not take an operator's calls; empty where it does, or is not known."""
    answers = answers_of(kernel_type)
    word = answers.get(release, BOUND)
    if word in _TAKEN:
        return ""
    library, _, version = release.partition("-")
    known = (name.partition("-") for name, other in answers.items() if other in _TAKEN)
    taking = [number for own, _, number in known if own == library]
    needs = f"{library} {' or '.join(taking)} takes it" if taking else f"no {library} takes it"
    said = "has no such function" if word == ABSENT else f"takes it otherwise ({word})"
    return f"{library} {version} {said}: {needs}"


@cache
def _releases_table() -> Mapping[str, Mapping[str, str]]:
    text = (files("collector") / "data" / "releases.csv").read_text(encoding="utf-8")
    header, *rows = csv.reader(io.StringIO(text))
    return {
        row[0]: dict(zip(header[_OF_A_ROW:], row[_OF_A_ROW:], strict=True)) for row in rows if row
    }


# What shows that a call launches its kernel on the tensors of a row, as long as no NPU has said
# so: `data/proofs.csv`, made by the tests' recording tier.


def proof_of(kernel_type: str) -> str:
    """In one line; empty for a kernel type that is not declared."""
    return _proofs_table().get(kernel_type, ("", ""))[0]


def type_proof_of(kernel_type: str) -> str:
    """What shows that the call launches a kernel of this type; empty as above."""
    return _proofs_table().get(kernel_type, ("", ""))[1]


@cache
def _proofs_table() -> Mapping[str, tuple[str, str]]:
    text = (files("collector") / "data" / "proofs.csv").read_text(encoding="utf-8")
    _, *rows = csv.reader(io.StringIO(text))
    return {kernel: (proof, of_type) for kernel, proof, of_type in rows}


# On which devices an operator's call was seen to launch its kernel: what the package knows.

_FILE = "verified_on.yaml"


def verified_on(kernel_type: str) -> tuple[str, ...]:
    """The devices, in order; empty until somebody has sent a report."""
    return tuple(device for device, kernels in sorted(_known().items()) if kernel_type in kernels)


def with_proved(device: str, kernel_types: Iterable[str]) -> str:
    """The package's list with what was proved on a device added, as the file that it comes from."""
    known = _known()
    joined = {**known, device: frozenset(kernel_types) | known.get(device, frozenset())}
    comments = [line for line in _text().splitlines() if line.startswith("#")]
    body = {device: sorted(kernels) for device, kernels in sorted(joined.items()) if kernels}
    return "\n".join((*comments, yaml.safe_dump(body, default_flow_style=False)))


@cache
def _known() -> Mapping[str, frozenset[str]]:
    return {device: frozenset(kernels) for device, kernels in yaml.safe_load(_text()).items()}


def _text() -> str:
    return (files("collector") / "data" / _FILE).read_text(encoding="utf-8")


# Which C function of CANN an operator's call ends in, and with what arguments:
# `data/launched.csv`, made of the recorded calls of the stock torch_npu 2.13.0.
#
#     aclnnSparseFlashAttention, "..........ss.........", some numbers
#
# A `s` is a text, a `.` any other argument but a floating-point number: those travel in registers
# of their own, so that their places are not known.


@dataclass(frozen=True, slots=True)
class CFunction:
    """A function of C as it is called, or declared; without workspace and executor."""

    name: str
    arguments: str
    has_numbers: bool


def launched_by(kernel_type: str) -> tuple[CFunction, ...]:
    """The functions that launch a kernel; empty where none was recorded."""
    return _launched_table().get(kernel_type, ())


@cache
def _launched_table() -> Mapping[str, tuple[CFunction, ...]]:
    text = (files("collector") / "data" / "launched.csv").read_text(encoding="utf-8")
    _, *rows = csv.reader(io.StringIO(text))
    table: dict[str, tuple[CFunction, ...]] = {}
    for kernel, name, arguments, numbers in rows:
        found = CFunction(name, arguments, numbers == "yes")
        table[kernel] = (*table.get(kernel, ()), found)
    return table
