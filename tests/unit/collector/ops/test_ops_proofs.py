"""The proof of each kernel until an NPU confirms it."""

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


def test_proofs_table_equals_the_recorded_proofs():
    held = (files("collector") / "data" / "proofs.csv").read_bytes()
    assert held == proofs_table(), "python -m tests.npu.proofs writes it"


def test_every_operator_has_a_proof_of_its_call_and_kernel_type():
    kernels = [op.kernel for op in all_ops()]
    assert [kernel for kernel in kernels if not proof_of(kernel)] == []
    assert [kernel for kernel in kernels if not type_proof_of(kernel)] == []
    assert proof_of("Add") == RECORDED
    assert proof_of("NoSuchKernel") == type_proof_of("NoSuchKernel") == ""


def test_each_call_has_one_source_and_a_kernel_table():
    for path in sorted((Path(__file__).parents[3] / "npu" / "kernels").glob("[!_]*.py")):
        names = [name for kind in ("SEEN", "READ") for name in getattr(load(path), kind, ())]
        assert len(set(names)) == len(names)
        assert set(names) <= {*tables(), "aclnnAdd"}, path  # which is chosen by its numbers


def test_operator_without_a_proof_is_reported_with_the_command_that_writes_it(monkeypatch):
    monkeypatch.setattr("collector.ops.releases._proofs_table", dict)
    message = CliRunner().invoke(app, ["ops", "MoeInitRoutingCustom"]).output
    assert "proofs.csv" in message and "python -m tests.npu.proofs" in message


def test_ops_command_shows_the_proofs():
    message = CliRunner().invoke(app, ["ops", "MoeInitRoutingCustom"]).output
    assert type_proof_of("MoeInitRoutingCustom") in message
    assert proof_of("MoeInitRoutingCustom").partition(";")[0] in message
