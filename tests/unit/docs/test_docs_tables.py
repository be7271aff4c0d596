"""Tables in the documents have a row for each thing that the program reports."""

import ast
import re
from pathlib import Path

import pytest

from collector.quality import gates
from jobs.controller import performer

ROOT = Path(__file__).parents[3]
SAYERS = {"Announce", "Suspension", "announce", "say"}


def table_of(page, names, column):
    """Return the backquoted names in a column of the table of the page that has most of these
    names."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    cells = [[row.split("|")[column + 1] for row in table.splitlines()[2:]] for table in tables]
    found = [re.findall("`(.+?)`", " ".join(of_table)) for of_table in cells]
    return sorted(max(found, key=lambda one: len(names & set(one))))


def event_reasons(source):
    """The literal reasons with which this program creates Events."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and called(node.func) in SAYERS:
            literals = [one.value for one in node.args if isinstance(one, ast.Constant)]
            yield from (text for text in literals if re.fullmatch("[A-Z][A-Za-z]+", str(text)))


def called(function):
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def all_reasons():
    files = [file for room in ("decide", "controller") for file in (ROOT / "jobs" / room).glob("*")]
    sources = [file.read_text(encoding="utf-8") for file in files if file.suffix == ".py"]
    return {reason for source in sources for reason in event_reasons(source)}


@pytest.mark.fast
def test_the_page_has_a_row_for_each_reason_of_an_event():
    reasons = all_reasons()
    assert len(reasons) > 20
    assert table_of("reference/events.md", reasons, 0) == sorted(reasons)


@pytest.mark.fast
def test_reasons_are_found_in_every_call_that_announces_one():
    assert list(event_reasons('yield Announce("One", f"{x}: no", x)')) == ["One"]
    assert list(event_reasons('self.say(\n"Two", "all of it")')) == ["Two"]
    assert list(event_reasons('announce(cluster, object, memory, "Three", words)')) == ["Three"]


@pytest.mark.thorough
@pytest.mark.fast
def test_reasons_without_a_warning_are_announced_somewhere():
    assert performer._NEWS - all_reasons() == set()


@pytest.mark.fast
def test_page_has_every_gate_that_db_quality_counts():
    counted = {gate for _, gate in (*gates._REFUSALS, *gates._WARNINGS)}
    counted |= {*gates._OUTCOMES.values(), gates.ENVELOPE}
    assert set(table_of("reference/gates.md", counted, 1)) == counted
