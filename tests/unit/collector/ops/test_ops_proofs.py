"""How each kernel is proved, as long as no NPU has said so."""

from collections import Counter
from importlib.resources import files

import pytest
from typer.testing import CliRunner

from collector.ops.proofs import proof_of
from collector.ops.registry import all_ops
from jobs.cli.app import app
from tests.npu.proofs import RECORDED, proofs

pytestmark = pytest.mark.fast


def test_the_list_is_that_of_the_recording_tier():
    held = (files("collector") / "data" / "proofs.csv").read_bytes()
    assert held == proofs(), "python -m tests.npu.proofs writes it anew"


def test_every_operator_has_a_proof_and_most_were_recorded_whole():
    counts = Counter(proof_of(op.kernel) for op in all_ops())
    assert "" not in counts
    assert counts[RECORDED] > 100
    assert counts["schema in the wheels of vllm_ascend alone"] == 6


def test_the_command_says_it():
    said = CliRunner().invoke(app, ["ops", "MoeInitRoutingCustom"]).output
    assert (
        "state        not yet on an NPU; call recorded of the stock vllm_ascend 0.18.0 and" in said
    )
    assert proof_of("NoSuchKernel") == ""
