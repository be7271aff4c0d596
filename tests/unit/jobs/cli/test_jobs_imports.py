"""`opmeter db import`, and the commands that read a tree of another tool as a database."""

import json
from pathlib import Path

import pytest

from jobs.cli.coverage import covered_lines
from jobs.planning.coverage import CoverageStatus, covered_cases, user_metrics
from jobs.planning.workload import WorkloadCase
from opmeter.answers import Answer, Channel
from tests.unit.collector.database.campaign_maker import add_record
from tests.unit.collector.database.imported_tree import PATH, write_tree
from tests.unit.jobs.cli.in_process import opmeter_here

pytestmark = pytest.mark.fast


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "tree", {16: "20", 64: "30", 256: "0"}, {163_840: "12.1"})


def test_a_tree_is_imported_once_and_then_queried(tree: Path, tmp_path: Path) -> None:
    dry = opmeter_here("db", "import", tree, "--dry-run", "--root", "store", cwd=tmp_path)
    assert dry.returncode == 0 and "3 durations; 1 without" in dry.stdout, dry.stderr
    assert not (tmp_path / "store").exists()
    first = opmeter_here("db", "import", tree, "--root", "store", cwd=tmp_path)
    again = opmeter_here("db", "import", tree, "--root", "store", cwd=tmp_path)
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    assert "version 1: 3 imported" in first.stdout and "nothing new" in again.stdout
    query = ("query", "Add", "--shape", "16,64;16,64", "--json")
    for root in ("store", "tree"):
        answer = opmeter_here(*query, "--root", root, cwd=tmp_path)
        (found,) = json.loads(answer.stdout)
        assert (found["value_us"], found["channel"]) == (20.0, "imported")
    sides = (PATH, PATH, "--root", "tree", "--other-root", "store", "--json")
    (diff,) = json.loads(opmeter_here("db", "diff", *sides, cwd=tmp_path).stdout)
    assert (diff["compared"], diff["imported"]) == (3, 3)
    refused = opmeter_here("db", "promote", "stable", "--root", "store", cwd=tmp_path)
    assert refused.returncode == 1 and "refused  imported" in refused.stdout


def test_what_is_no_tree_is_refused_in_one_line(tree: Path, tmp_path: Path) -> None:
    for words in (("none",), ("tree/..",), ("tree", "--directory", "A/vllm_ascend/B")):
        result = opmeter_here("db", "import", *words, "--root", "store", cwd=tmp_path)
        assert result.returncode == 2 and len(result.stderr.splitlines()) == 1, result.stderr
    assert not (tmp_path / "store").exists()


def test_coverage_counts_imported_cases_apart() -> None:
    records = [add_record(rows) for rows in (16, 32, 64)]
    channels = (Channel.POOLED, Channel.INTERPOLATED, Channel.IMPORTED)
    answers = {
        record.case_id: Answer(1.0, 0.9, 1.1, channel, 1)
        for record, channel in zip(records, channels, strict=True)
    }
    workload = [WorkloadCase(record, 1, 10.0) for record in records]
    found = covered_cases(workload, lambda record: answers[record.case_id])
    assert [one.status for one in found] == [
        CoverageStatus.EXACT,
        CoverageStatus.BETWEEN,
        CoverageStatus.IMPORTED,
    ]
    assert user_metrics(found, ()).m1 == pytest.approx(1 / 3)
    lines = list(covered_lines("made", found, user_metrics(found, ())))
    assert any(line.startswith("imported ") for line in lines)
