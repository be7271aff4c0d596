"""The skeleton of a file of operators follows from the rows of kernels without a declaration."""

from dataclasses import replace

import pytest

from collector.model.record import CaseRecord
from collector.ops.draft import draft
from collector.ops.own import OperatorFile, load_operator_file
from collector.ops.references import reference_record

pytestmark = pytest.mark.fast


def rows(*made: tuple[str, str, str, str]) -> list[CaseRecord]:
    return [reference_record(*one) for one in made]


@pytest.mark.parametrize(
    ("made", "signature"),
    [
        (
            rows(("My", "64,512;512", "64,512", "FLOAT"), ("My", "8,32;32", "8,32", "DT_BF16")),
            "x1 T0:float[n1, n2], x2 T0[n2] -> y1 T0[n1, n2]",
        ),
        (
            rows(("My", "1,512;512,8", "1,8", "FLOAT"), ("My", "1,32;32,8", "1,8", "FLOAT")),
            "x1 FLOAT[1, n1], x2 FLOAT[n1, n2] -> y1 FLOAT[1, n2]",
        ),
        (
            rows(("My", "4,8", "4,8", "INT32"), ("My", "2,4,8", "2,4,8", "INT32")),
            "x1 INT32[*] -> y1 INT32[*]",
        ),
        (
            rows(("My", "4,8;8", "4", "FLOAT"), ("My", "4,8", "4", "FLOAT")),
            "x1 FLOAT[n1, n2], x2 FLOAT[n3]? -> y1 FLOAT[n1]",
        ),
    ],
)
def test_signature_accepts_its_rows(made: list[CaseRecord], signature: str) -> None:
    text, count = draft([*made, reference_record("Add", "4;4", "4")], "profile")
    assert count == 1
    file = OperatorFile("draft.py", text)
    (operator,) = load_operator_file(file)
    assert operator.signature == signature
    spec = operator.spec(file)
    for record in made:
        case = replace(record.case, attributes=(("Runtime operator_file", file.hash),))
        assert not spec.rejection_reason(case, "cpu")


def test_texts_of_a_profile_are_no_code() -> None:
    row = reference_record("My", "4,8", "4,8", 'A"\n1 / 0\n')
    text, _ = draft([row], "'" * 3 + '"' * 3 + "\n1 / 0\n")
    assert not [line for line in text.splitlines() if line.startswith("1 / 0")]
    compile(text, "draft.py", "exec")


def test_profile_with_declarations_for_all_kernels_has_no_draft() -> None:
    assert draft(rows(("Add", "4;4", "4", "FLOAT")), "profile") == ("", 0)
