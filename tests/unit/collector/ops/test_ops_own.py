"""Operators in files of users: what is refused, and what identifies their cases."""

from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from collector.model.case import case_from_cells
from collector.model.vocabulary import OPERATOR_FILE
from collector.ops import own
from collector.ops.own import OperatorFile, declare, find_operator, find_unread, load_operator_file
from collector.ops.references import reference_record
from collector.ops.refusals import refusal
from collector.ops.runtime import with_runtime_columns
from collector.ops.small_cases import small_record

pytestmark = pytest.mark.fast

DECLARED = """from opmeter.operators import Operator
A = Operator("OwnRows", "x T:float[*rows, n], w T[n] -> y T[*rows, n]", max)
"""
RECORD = reference_record("OwnRows", "4,8;8", "4,8", "FLOAT")


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch) -> OperatorFile:
    """A file whose operators this process has."""
    monkeypatch.setattr(own, "_loaded", {})
    file = OperatorFile("my_ops.py", DECLARED)
    own.declare_files([file])
    return file


def declaration(*words: str) -> str:
    return f"from opmeter.operators import Operator\n\nA = Operator({', '.join(words)})\n"


GOOD = ("'Own1'", "'x T -> y T'", "max")


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        ("x = (\n", 1, "Python"),
        ("\n1 / 0\n", 2, "ZeroDivisionError"),
        ("import not_installed_anywhere\n", 1, "not_installed_anywhere"),
        ("raise SystemExit(0)\n", 1, "SystemExit"),
        ("x = 1\n", None, "Operator"),
        (declaration("'Own 1'", *GOOD[1:]), 3, "kernel"),
        (declaration("'Add'", *GOOD[1:]), 3, "Add"),
        (declaration("'hcom_allReduce_'", *GOOD[1:]), 3, "hcom_allReduce_"),
        (declaration(GOOD[0], "'x y z'", GOOD[2]), 3, "signature"),
        (declaration(GOOD[0], "'x T[pages, n] -> y T[n]'", GOOD[2]), 3, "pages"),
        (declaration(*GOOD[:2], "7"), 3, "call"),
        (declaration(*GOOD, "reference=7"), 3, "reference"),
        (declaration(*GOOD, "operations='2 * k'"), 3, "'k'"),
        (declaration(*GOOD, "examples='8,8 fp32'"), 3, "examples"),
        (declaration(*GOOD) + f"B = Operator({', '.join(GOOD)})\n", 4, "twice"),
    ],
)
def test_bad_file_is_named_with_its_line(text: str, line: int | None, named: str) -> None:
    with pytest.raises(BadInput) as refused:
        load_operator_file(OperatorFile("my_ops.py", text))
    place = "my_ops.py" if line is None else f"my_ops.py:{line}"
    assert str(refused.value).startswith(f"{place}: ") and named in str(refused.value)


def test_two_files_cannot_declare_one_kernel(file: OperatorFile) -> None:
    with pytest.raises(BadInput, match="OwnRows"):
        own.declare_files([file, OperatorFile("other.py", DECLARED)])


def test_entry_points_name_modules_of_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_package_ops.py").write_text(DECLARED)
    info = tmp_path / "own_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-package\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[opmeter.operators]\nmine = own_package_ops\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert own.find_operator_file("mine") == OperatorFile(
        str(tmp_path / "own_package_ops.py"), DECLARED
    )
    with pytest.raises(BadInput, match="mine"):
        own.find_operator_file("other")


def test_identity_needs_no_file_and_changes_with_it(
    file: OperatorFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    op = find_operator("OwnRows")
    assert op is not None
    record = with_runtime_columns(RECORD, op)
    assert record.extra == {OPERATOR_FILE: file.hash}
    changed = OperatorFile("my_ops.py", DECLARED + "\n")
    other = with_runtime_columns(RECORD, load_operator_file(changed)[0].spec(changed))
    assert len({record.case_id, other.case_id, RECORD.case_id}) == 3
    assert refusal(record.case, find_operator, "cpu") is None
    for case in (other.case, RECORD.case):
        found = refusal(case, find_operator, "cpu")
        assert found is not None and file.hash in found.reason
    monkeypatch.setattr(own, "_loaded", {})
    cells = {**record.cells, **record.extra}
    assert case_from_cells("OwnRows", cells).case_id == record.case_id
    assert (
        found := refusal(record.case, find_operator, "cpu")
    ) is not None and file.hash in found.reason


def test_plain_formats_are_one_case(file: OperatorFile) -> None:
    op = find_operator("OwnRows")
    assert op is not None
    record = with_runtime_columns(RECORD, op)
    named = {**record.cells, "Input Formats": "NCL;ND", **record.extra}
    assert case_from_cells("OwnRows", named).case_id == record.case_id


def test_bundled_kernel_is_not_measured_for_a_file() -> None:
    record = reference_record("Add", "4,8;4,8", "4,8", "FLOAT")
    cells = {**record.cells, OPERATOR_FILE: "0" * 16}
    found = refusal(case_from_cells("Add", cells), find_operator, "cpu")
    assert found is not None and "0" * 16 in found.reason


def test_worker_accepts_cases_of_the_files_that_it_passes_on(file: OperatorFile) -> None:
    op = find_operator("OwnRows")
    assert op is not None
    case = with_runtime_columns(RECORD, op).case
    declare(())
    assert refusal(case, find_unread([case], [file]), "cpu") is None
    assert refusal(case, find_unread([case], []), "cpu") is not None


@pytest.mark.parametrize(
    ("signature", "shapes"),
    [
        ("x T:float[*rows, n], w T[n] -> y T[*rows, n]", [(2, 3, 16), (16,)]),
        ("x T:half[m, k], w T[k, 2 * n], b FLOAT[n]? -> y T[m, n]", [(16, 32), (32, 96), (48,)]),
        ("i integer[n], x T[#], -old T[n] -> y T[n]", [(16,), None]),
        ("x T[&s], y T[&s] -> z BOOL[*s]", [(2, 3), (2, 3)]),
        ("x T[n, k] -> y T[n] where k == 8, n < k", [(1, 8)]),
    ],
)
def test_small_case_fits_its_signature(
    signature: str, shapes: list[tuple[int, ...] | None]
) -> None:
    text = f"from opmeter.operators import Operator\nA = Operator('Own1', {signature!r}, max)\n"
    file = OperatorFile("my_ops.py", text)
    (op,) = (one.spec(file) for one in load_operator_file(file))
    case = small_record(op).case
    assert not op.rejection_reason(case, "cpu")
    assert [slot.shape for slot in case.inputs or ()] == shapes
    assert case.outputs


def test_signature_that_no_small_size_fits_is_refused() -> None:
    text = "from opmeter.operators import Operator\n"
    text += "A = Operator('Own1', 'x T[n] -> y T[n] where n > 1000', max)\n"
    file = OperatorFile("my_ops.py", text)
    (op,) = (one.spec(file) for one in load_operator_file(file))
    with pytest.raises(BadInput, match="examples"):
        small_record(op)
