"""The table of the measurable share of profiles; and of the real ones, if available."""

import os
import re
from pathlib import Path

import pytest

from tests.fixtures.profiles.variants import ProfileRow, collective, unknown_inputs, write_profile
from tests.truth.shares import NAMED, main, profiles_in
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast

# Device time of real training steps and of a real inference run that can be measured on an NPU.
GOALS = {
    "train_cann8.3rc1_rank0_ascend_pt": 0.97,
    "resnet_2025_rank0_ascend_pt": 0.97,
    "inference_cann9.1_ascend_pt": 0.90,
}


def test_time_is_divided_and_refused_cases_are_named_with_their_rule(tmp_path, capsys):
    start = 1764246877083
    rows = [
        ProfileRow(duration="60.0", start=f"{start}000.000"),
        ProfileRow("Conv3D", duration="30.0", start=f"{start}100.000"),
        ProfileRow("NoSuch", duration="0.1", start=f"{start}200.000"),
        unknown_inputs("MemSet", duration="9.9", start=f"{start}300.000"),
        collective(f"{start}400.000", "100.0"),
    ]
    write_profile(tmp_path, "K5", rows)
    (found,) = profiles_in(tmp_path)
    assert found.measurable_us == {"npu": 60.0, "cpu": 60.0}
    assert (found.compute_us, found.unknown_us, found.communication_us) == (100.0, 9.9, 100.0)
    assert main([str(tmp_path)]) == 0
    whole, backends, *refused = capsys.readouterr().out.splitlines()
    assert names(whole, "kernel_details.csv:", 4, "0.1 ms", "50.0 %", "9.9 %")
    assert re.fullmatch(" *npu 60.0 % .* 25.0 % .*cpu 60.0 % .* 25.0 % .*", backends)
    shares = [re.match(r" *([\d.]+ %)  (\w+): .", line).groups() for line in refused]
    assert shares == [("30.0 %", "Conv3D"), ("9.9 %", "MemSet")]


@pytest.mark.parametrize("name", GOALS)
def test_nearly_all_compute_time_of_a_real_run_can_be_measured(name):
    folder = Path(os.environ.get("OPMETER_TEST_PROFILES", "/nowhere")) / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not available: OPMETER_TEST_PROFILES names a folder of profiles")
    for found in profiles_in(folder):
        assert found.measurable_us["npu"] >= GOALS[name] * found.compute_us


def test_slow_refused_kernels_of_real_profiles_are_named_in_the_docs():
    folder = Path(os.environ.get("OPMETER_TEST_PROFILES", "/nowhere"))
    if not folder.is_dir():
        pytest.skip("OPMETER_TEST_PROFILES names no folder of profiles")
    evaluation = Path(__file__).parents[2] / "docs" / "evaluation"
    page = (evaluation / "operators-real-profiles.md").read_text()
    refused = {
        one.kernel_type
        for found in profiles_in(folder)
        for one in found.refused
        if one.time_us >= NAMED * found.compute_us
    }
    named = {name for name in refused if re.search(rf"\b{re.escape(name)}\b", page)}
    assert named == refused


@pytest.mark.thorough
def test_hint_is_printed_without_profiles(monkeypatch, capsys):
    monkeypatch.delenv("OPMETER_TEST_PROFILES", raising=False)
    assert main([]) == 0
    assert "OPMETER_TEST_PROFILES" in capsys.readouterr().out
