"""The proof of each kernel until an NPU confirms it."""

from importlib.resources import files

import pytest
from typer.testing import CliRunner

from collector.engine.calls import parse_call
from collector.engine.choices import CHOSEN
from collector.engine.kernels import kernel_of
from collector.ops.registry import all_ops, find_operator
from collector.ops.releases import proof_of, type_proof_of
from jobs.cli.app import app
from tools.operators.proofs import READ, RECORDED, SEEN, proofs_table

pytestmark = pytest.mark.fast


def test_proofs_table_equals_the_recorded_proofs():
    held = (files("collector") / "data" / "proofs.csv").read_bytes()
    assert held == proofs_table(), "python -m tools proofs writes it"


def test_every_operator_has_a_proof_of_its_call_and_kernel_type():
    kernels = [op.kernel for op in all_ops()]
    assert [kernel for kernel in kernels if not proof_of(kernel)] == []
    assert [kernel for kernel in kernels if not type_proof_of(kernel)] == []
    assert proof_of("Add") == RECORDED
    assert proof_of("NoSuchKernel") == type_proof_of("NoSuchKernel") == ""


def test_each_call_has_one_source_and_a_declared_kernel():
    assert not SEEN & READ
    for name in {f"aclnn{name}" for name in SEEN | READ if not name.startswith("npu_")}:
        known = name in CHOSEN or find_operator(kernel_of(parse_call(f"ACLNN {name}(f32[4]:ND)")))
        assert known, name


def test_operator_without_a_proof_is_reported_with_the_command_that_writes_it(monkeypatch):
    monkeypatch.setattr("collector.ops.releases._proofs_table", dict)
    message = CliRunner().invoke(app, ["ops", "MoeInitRoutingCustom"]).output
    assert "proofs.csv" in message and "python -m tools proofs" in message


def test_ops_command_shows_the_proofs():
    message = CliRunner().invoke(app, ["ops", "MoeInitRoutingCustom"]).output
    assert type_proof_of("MoeInitRoutingCustom") in message
    assert proof_of("MoeInitRoutingCustom").partition(";")[0] in message
