"""The page of programs has the share of the time that is measured, and why the rest is not."""

import ast

import pytest

from tools.programs import PROGRAMS, Found, _page

pytestmark = pytest.mark.fast


def case(kernel_type, mean_us, *, is_measured=True):
    return {
        "case_id": kernel_type,
        "kernel_type": kernel_type,
        "in_situ": {"launches": 2, "mean_us": mean_us},
        "isolated": {"mean_us": 1.0} if is_measured else None,
        "why": "" if is_measured else "failed",
    }


def test_page_has_shares_of_the_time_and_reasons():
    cases = [
        case("MatMulV2", 60.0),
        case("aten.gelu_backward", 35.0),
        case("aten.mm", 4.0, is_measured=False),
        case("aten.unique", 1.0, is_measured=False),
    ]
    compared = {
        "cases": cases,
        "steps": {"steps": 2, "computing_us": 200.0, "free_us": 100.0},
        "sum": {"measured_us": 300.0, "isolated_us": 150.0},
    }
    found = Found("made", "A made program", compared, {"aten.mm": "a sparse tensor"})
    page = "".join(_page([found], 0.1))
    assert "|`made`: A made program|4|60.0 %|95.0 %|2|" in page
    assert "|`made`|`aten.mm`|4.0 %|a sparse tensor|" in page
    assert "|`made`|`aten.unique`|1.0 %|failed|" in page
    assert "busy" not in page and "busy" in "".join(_page([found], 3.0))


def test_every_program_says_what_it_is_after():
    paths = sorted(PROGRAMS.glob("*.py"))
    assert len(paths) >= 5
    assert all(ast.get_docstring(ast.parse(path.read_text("utf-8"))) for path in paths)
