"""How each kernel is proved, as long as no NPU has said so."""

from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collector.ops.registry import all_ops
from collector.ops.releases import proof_of, type_proof_of
from collector.recording.kernels import load, tables
from jobs.cli.app import app
from tests.npu.proofs import RECORDED, proofs_table

pytestmark = pytest.mark.fast


def test_the_list_is_that_of_the_recording_tier():
    held = (files("collector") / "data" / "proofs.csv").read_bytes()
    assert held == proofs_table(), "python -m tests.npu.proofs writes it anew"


def test_every_operator_has_a_proof_of_its_call_and_of_its_type():
    kernels = [op.kernel for op in all_ops()]
    assert [kernel for kernel in kernels if not proof_of(kernel)] == []
    assert [kernel for kernel in kernels if not type_proof_of(kernel)] == []
    assert proof_of("Add") == RECORDED
    assert proof_of("NoSuchKernel") == type_proof_of("NoSuchKernel") == ""


def test_a_call_is_known_by_one_source_and_by_that_of_a_table():
    for path in sorted((Path(__file__).parents[3] / "npu" / "kernels").glob("[!_]*.py")):
        names = [name for kind in ("SEEN", "READ") for name in getattr(load(path), kind, ())]
        assert len(set(names)) == len(names)
        assert set(names) <= {*tables(), "aclnnAdd"}, path  # whose numbers decide


def test_an_operator_that_the_list_lacks_is_told_with_what_writes_it(monkeypatch):
    monkeypatch.setattr("collector.ops.releases._proofs_table", dict)
    said = CliRunner().invoke(app, ["ops", "MoeInitRoutingCustom"]).output
    assert "proofs.csv" in said and "python -m tests.npu.proofs" in said


def test_the_command_says_it():
    said = CliRunner().invoke(app, ["ops", "MoeInitRoutingCustom"]).output
    assert type_proof_of("MoeInitRoutingCustom") in said
    assert proof_of("MoeInitRoutingCustom").partition(";")[0] in said
