"""How each kernel is proved, as long as no NPU has said so."""

from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collector.ops.proofs import proof_of, type_proof_of
from collector.ops.registry import all_ops
from jobs.cli.app import app
from tests.npu.fakecann.kernels import load, tables
from tests.npu.proofs import RECORDED, proofs_table

pytestmark = pytest.mark.fast
PAGE = Path(__file__).parents[4] / "docs/operators.md"


def test_the_list_is_that_of_the_recording_tier():
    held = (files("collector") / "data" / "proofs.csv").read_bytes()
    assert held == proofs_table(), "python -m tests.npu.proofs writes it anew"


def test_every_operator_has_a_proof_and_the_page_counts_those_recorded_whole():
    counts = Counter(proof_of(op.kernel) for op in all_ops())
    assert "" not in counts
    said = f"{counts[RECORDED]} of {len(all_ops())} by a recorded call"
    assert said in PAGE.read_text(), f"docs/operators.md, The file, wants: {said}"
    assert counts["schema in the wheels of vllm_ascend alone"] == 6


def test_every_operator_says_what_shows_its_type():
    counts = Counter(type_proof_of(op.kernel) for op in all_ops())
    page = PAGE.read_text()
    for text, count in counts.items():
        assert f"{text} ({count})" in page, f"docs/operators.md, The file, wants: {text} ({count})"
    assert type_proof_of("NoSuchKernel") == ""


def test_a_call_is_known_by_one_source_and_by_that_of_a_table():
    for path in sorted((Path(__file__).parents[3] / "npu" / "kernels").glob("[!_]*.py")):
        names = [name for kind in ("SEEN", "READ") for name in getattr(load(path), kind, ())]
        assert len(set(names)) == len(names)
        assert set(names) <= {*tables(), "aclnnAdd"}, path  # whose numbers decide


def test_an_operator_that_the_list_lacks_is_told_with_what_writes_it(monkeypatch):
    monkeypatch.setattr("collector.ops.proofs._table", dict)
    said = CliRunner().invoke(app, ["ops", "MoeInitRoutingCustom"]).output
    assert "not in proofs.csv: python -m tests.npu.proofs writes it anew" in said


def test_the_command_says_it():
    said = CliRunner().invoke(app, ["ops", "MoeInitRoutingCustom"]).output
    assert "state        not yet on an NPU; its type by its definition in the wheel; call" in said
    assert proof_of("NoSuchKernel") == ""
