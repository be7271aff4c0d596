"""Tables of the documents have a row for each thing that the program says."""

import ast
import re
from pathlib import Path

import pytest

from collector.quality import gates
from jobs.controller import performer

ROOT = Path(__file__).parents[3]
SAYERS = {"Announce", "Suspension", "announce", "say"}


def table_of(page, names, column):
    """Return what a column has in backquotes, of the page's table that has most of these names."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    cells = [[row.split("|")[column + 1] for row in table.splitlines()[2:]] for table in tables]
    found = [re.findall("`(.+?)`", " ".join(of_table)) for of_table in cells]
    return sorted(max(found, key=lambda one: len(names & set(one))))


def reasons_said(source):
    """The reasons that calls in this program give to Events, as literals."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and called(node.func) in SAYERS:
            literals = [one.value for one in node.args if isinstance(one, ast.Constant)]
            yield from (text for text in literals if re.fullmatch("[A-Z][A-Za-z]+", str(text)))


def called(function):
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def all_reasons():
    files = [file for room in ("decide", "controller") for file in (ROOT / "jobs" / room).glob("*")]
    sources = [file.read_text(encoding="utf-8") for file in files if file.suffix == ".py"]
    return {reason for source in sources for reason in reasons_said(source)}


@pytest.mark.fast
def test_the_page_has_a_row_for_each_reason_of_an_event():
    reasons = all_reasons()
    assert len(reasons) > 20
    assert table_of("reference/events.md", reasons, 0) == sorted(reasons)


@pytest.mark.fast
def test_reasons_are_found_wherever_they_are_said():
    assert list(reasons_said('yield Announce("One", f"{x}: no", x)')) == ["One"]
    assert list(reasons_said('self.say(\n"Two", "all of it")')) == ["Two"]
    assert list(reasons_said('announce(cluster, object, memory, "Three", words)')) == ["Three"]


@pytest.mark.thorough
@pytest.mark.fast
def test_what_is_no_warning_is_said_somewhere():
    assert performer._NEWS - all_reasons() == set()


@pytest.mark.fast
def test_the_page_has_each_gate_by_which_db_quality_counts():
    counted = {gate for _, gate in (*gates._REFUSALS, *gates._WARNINGS)}
    counted |= {*gates._OUTCOMES.values(), gates.ENVELOPE}
    assert set(table_of("reference/gates.md", counted, 1)) == counted
