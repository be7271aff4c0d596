"""Which wrong calls a machine without an NPU detects, layer by layer, and which only CANN would.

This shows the limits of this tier: aclnn's own checks are those of CANN.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.npu.fakecann.build import FakeCann, environment

pytestmark = [pytest.mark.npu, pytest.mark.torch, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
BY_SCHEMA = {
    "unknown keyword",
    "missing argument",
    "text for a number",
    "keyword by position",
    "tensor for a list",
}
BY_META_ALONE = {
    "quantised matmul of other K",
    "unknown way to count tokens",
    "impossible order of dimensions",
}
BY_BOTH = {"matmul of other K", "unknown layout", "layout of other rank"}
BY_ARGUMENT_CODE_ALONE = {"tensor of another device"}
BY_CANN_ALONE = {
    "quantised matmul of floats",
    "scales for other tokens",
    "gamma of another size",
    "odd last dimension",
    "more experts than there are",
    "rope of 32",
    "groups as numbers",
}


@pytest.fixture(scope="module", params=["meta", "npu:0"])
def answers(fake: FakeCann, request, tmp_path_factory) -> tuple[str, dict[str, str]]:
    out = tmp_path_factory.mktemp("wrong") / "answers.json"
    subprocess.run(
        [sys.executable, "-m", "tests.npu.wrong_calls", request.param, str(out)],
        cwd=ROOT,
        env=environment(fake),
        capture_output=True,
        timeout=120,
        check=True,
    )
    return request.param, json.loads(out.read_text())


def test_each_layer_refuses_the_errors_it_can_detect(answers):
    device, message = answers
    refused = {name for name, error in message.items() if error}
    seen = {"meta": BY_META_ALONE, "npu:0": BY_ARGUMENT_CODE_ALONE}[device]
    assert refused == BY_SCHEMA | BY_BOTH | seen
    assert set(message) - refused >= BY_CANN_ALONE


def test_twelve_of_nineteen_wrong_calls_are_detected(answers):
    somewhere = BY_SCHEMA | BY_BOTH | BY_META_ALONE | BY_ARGUMENT_CODE_ALONE
    assert set(answers[1]) == somewhere | BY_CANN_ALONE
    assert (len(answers[1]), len(somewhere)) == (19, 12)


def test_refusal_names_the_error(answers):
    device, message = answers
    assert "'eps'" in message["unknown keyword"]
    assert "missing value for argument 'scale'" in message["missing argument"]
    assert {
        "meta": "must have same reduction dim",
        "npu:0": "cannot be multiplied",
    }[device] in message["matmul of other K"]
