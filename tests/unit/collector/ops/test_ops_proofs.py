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


def test_the_list_is_that_of_the_recording_tier():
    held = (files("collector") / "data" / "proofs.csv").read_bytes()
    assert held == proofs_table(), "python -m tests.npu.proofs writes it anew"


def test_every_operator_has_a_proof_and_most_were_recorded_whole():
    counts = Counter(proof_of(op.kernel) for op in all_ops())
    assert "" not in counts
    assert counts[RECORDED] > 100
    assert counts["schema in the wheels of vllm_ascend alone"] == 6


def test_every_operator_says_what_shows_its_type():
    counts = Counter(type_proof_of(op.kernel) for op in all_ops())
    page = (Path(__file__).parents[4] / "docs/operators.md").read_text()
    for text, count in counts.items():
        assert f"{text} ({count})" in page, "docs/operators.md says of how many this is so"
    assert type_proof_of("NoSuchKernel") == ""


def test_a_call_is_known_by_one_source_and_by_that_of_a_table():
    for path in sorted((Path(__file__).parents[3] / "npu" / "kernels").glob("[!_]*.py")):
        names = [name for kind in ("SEEN", "READ") for name in getattr(load(path), kind, ())]
        assert len(set(names)) == len(names)
        assert set(names) <= {*tables(), "aclnnAdd"}, path  # whose numbers decide


def test_the_command_says_it():
    said = CliRunner().invoke(app, ["ops", "MoeInitRoutingCustom"]).output
    assert "state        not yet on an NPU; its type by its definition in the wheel; call" in said
    assert proof_of("NoSuchKernel") == ""
