"""What shows that a call launches its kernel on the tensors of a row, as long as no NPU has said
so: `data/proofs.csv`, made by the tests' recording tier."""

import csv
import io
from collections.abc import Mapping
from functools import cache
from importlib.resources import files


def proof_of(kernel_type: str) -> str:
    """In one line; empty for a kernel type that is not declared."""
    return _table().get(kernel_type, ("", ""))[0]


def type_proof_of(kernel_type: str) -> str:
    """What shows that the call launches a kernel of this type; empty as above."""
    return _table().get(kernel_type, ("", ""))[1]


@cache
def _table() -> Mapping[str, tuple[str, str]]:
    text = (files("collector") / "data" / "proofs.csv").read_text(encoding="utf-8")
    _, *rows = csv.reader(io.StringIO(text))
    return {kernel: (proof, of_type) for kernel, proof, of_type in rows}
