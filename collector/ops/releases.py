"""Which releases of torch_npu and vLLM-Ascend take the calls of the catalogue, from their wheels.

`data/releases.csv` is made by binding every fixture row's call against the schemas that the
wheels hold as text: nothing was launched. A release that is not in it is not known.
"""

import csv
import io
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

BOUND = "bound"
OTHERWISE = "bound another way"  # the declaration passes what this release takes
UNTOLD = "there, its schema is not told"
ABSENT = "absent"
_TAKEN = (BOUND, OTHERWISE, UNTOLD)
_OF_A_ROW = 2  # columns before those of releases


def known_releases() -> tuple[str, ...]:
    """The releases that are known, as `torch_npu-2.9.0`, each library's oldest first."""
    return tuple(next(iter(_table().values())))


def answers_of(kernel_type: str) -> Mapping[str, str]:
    """How each release of its library takes an operator's calls, and of vLLM-Ascend's where that
    serves by a function of its own; empty for those of torch's own functions, and of what runs over
    ranks."""
    return {release: word for release, word in _table().get(kernel_type, {}).items() if word}


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
def _table() -> Mapping[str, Mapping[str, str]]:
    text = (files("collector") / "data" / "releases.csv").read_text(encoding="utf-8")
    header, *rows = csv.reader(io.StringIO(text))
    return {
        row[0]: dict(zip(header[_OF_A_ROW:], row[_OF_A_ROW:], strict=True)) for row in rows if row
    }
