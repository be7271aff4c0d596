"""Tables of the documents have a row for each thing that the program says."""

import ast
import re
from pathlib import Path

import pytest

from collector.quality import gate_names
from jobs.controller import performer

ROOT = Path(__file__).parents[3]
SAYERS = {"Announce", "Suspension", "announce", "say"}


def section(page, title):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


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
def test_an_events_reason_is_a_row_of_what_it_says():
    rows = re.findall(r"^\| `(\w+)` \|", section("kubernetes.md", "What it says"), re.M)
    assert sorted(rows) == sorted(all_reasons())


@pytest.mark.fast
def test_reasons_are_found_wherever_they_are_said():
    assert list(reasons_said('yield Announce("One", f"{x}: no", x)')) == ["One"]
    assert list(reasons_said('self.say(\n"Two", "all of it")')) == ["Two"]
    assert list(reasons_said('announce(cluster, object, memory, "Three", words)')) == ["Three"]


@pytest.mark.fast
def test_what_is_no_warning_is_said_somewhere():
    assert performer._NEWS - all_reasons() == set()


@pytest.mark.fast
def test_a_name_that_db_quality_counts_by_is_in_the_table_of_gates():
    text = section("quality.md", "What a number passes before it shows").split("\n### ", 1)[0]
    second = [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| ")]
    named = {name for cell in second for name in re.findall("`(.+?)`", cell)}
    told = {gate for _, gate in (*gate_names._REFUSALS, *gate_names._WARNINGS)}
    assert named == told | {*gate_names._OUTCOMES.values(), gate_names.ENVELOPE}
