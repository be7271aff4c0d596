"""`opmeter selftest npu` passes on the fake NPU, and each falsified result of that NPU fails its
own check and no other. Its sessions run once; results are falsified when their records are exported
again, or, if the device itself must misbehave, in a separate session."""

import json
import os
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collector.engine.wheel import NoRecordingRuntime
from collector.host.stack import local_stack
from collector.model.measurement import Outcome
from jobs.cli.app import app
from jobs.selftest.attribution import verdict_on_outputs
from jobs.selftest.bench import SessionBench
from jobs.selftest.checks import CHECKS, run_checks
from tests.attack.selftest_bench import LyingBench
from tests.lacking import lacking
from tests.npu.fakecann.build import build_fake_cann, npu_host
from tests.npu.fakecann.faults import Fault
from tests.npu.fakecann.physical import PHYSICAL, TIMES
from tests.unit.collector.naming import names

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
OWN = ("Exp", "Sigmoid")  # of the profile that is the user's own
ATTENTION = "FusedInferAttentionScore"
# The falsification of the records by the device, and the check that fails.
LIES = (
    ("profiler", [Fault("hide_counters", kernel="Add")]),
    ("parser", [Fault("refuse_export", kernel="NoSuchKernel", count=1)]),
    ("marks", [Fault("lose", kernel="Neg", nth=900)]),
    ("long", [Fault("wrap", kernel="Add")]),
    ("attribution", [Fault("lose", kernel="Mul", call="f32[512,64]", nth=3)]),
    ("attribution", [Fault("lose", kernel="Sub", call="f64[32,64]", nth=3)]),  # on the AI CPU
    ("attribution", [Fault("lose", kernel=ATTENTION, call="ints(512,512,512,512)", nth=3)]),
    ("operators", [Fault("between", kernel="Tanh", to="casts")]),
    ("layouts", [Fault("plain", kernel=kernel) for kernel in ("MatMulV2", "QuantBatchMatmulV3")]),
    ("physics", [Fault("scale", kernel="MatMulV2", share=3.0)]),
    ("cache", [Fault("ignores", kernel="Add", to="cache")]),
    ("lengths", [Fault("ignores", kernel=ATTENTION, to="lengths")]),
    ("sessions", [Fault("drift", kernel="SwiGlu", share=0.5)]),
    ("profile", [Fault("scale", kernel=kernel, share=4.0) for kernel in OWN]),
)
# The falsification in new runs, or the defect of the host.
LIVE = ("environment", "libraries", "failures")
WITHOUT_RMS_NORM = """
import builtins, sys
plain = builtins.__import__
def importing(name, *others, **more):
    found = plain(name, *others, **more)
    if name == "torch_npu":
        vars(sys.modules[name]).pop("npu_rms_norm", None)
    return found
builtins.__import__ = importing
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    """The environment of a machine with one fake NPU whose times are physical."""
    folder = tmp_path_factory.mktemp("host")
    try:
        fake = build_fake_cann()
        env = npu_host(fake, folder)
    except NoRecordingRuntime as error:
        lacking(str(error))
    env |= {
        TIMES: PHYSICAL,
        "PYTHONPATH": f"{ROOT}:{env['PYTHONPATH']}",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(fake.site))  # where the version of torch_npu is read
        # What lets torch_npu run next to a CUDA build is preloaded in sessions, not in this one.
        patch.setattr("jobs.doctor.machine.is_loaded", lambda mark: True)
        yield folder


@pytest.fixture(scope="module")
def recorded(host):
    """Run a complete self-test, with the rows of two of its kernels as the user's own profile."""
    bench = SessionBench("npu", local_stack("npu"), 0, host / "sessions")
    verdicts = list(run_checks(bench, only=tuple(name for name in CHECKS if name != "profile")))
    sessions = {session.folder.name: session for session in bench.done}
    write_own_profile(sessions["twice-1"].result.summary, host / "own")
    verdicts += run_checks(bench, only=("profile",), profile=host / "own")
    return bench, verdicts


def write_own_profile(summary, folder):
    folder.mkdir()
    header, *rows = summary.read_text().splitlines(keepends=True)
    kept = [row for row in rows if any(f",{kernel}," in row for kernel in OWN)]
    (folder / "op_summary_20261123.csv").write_text("".join((header, *kept)))


def failing(verdicts):
    return {check.name: check.found for check in verdicts if not check.ok}


def test_fake_npu_passes_every_possible_check(recorded):
    _, verdicts = recorded
    assert failing(verdicts) == {}
    assert {check.name for check in verdicts} == set(CHECKS)
    assert [check.name for check in verdicts if check.skipped] == ["outputs", "peaks"]


@pytest.mark.parametrize(("check", "lie"), LIES)
def test_falsified_result_fails_its_own_check_and_no_other(
    check, lie, host, recorded, tmp_path, monkeypatch
):
    monkeypatch.setenv("FAKE_CANN_FAULTS", "")
    bench, _ = recorded
    lying = LyingBench(
        bench.stack,
        {session.folder.name: session for session in bench.done},
        tmp_path / "lies",
        tuple(lie),
    )
    reported = run_checks(lying, only=tuple(set(CHECKS) - set(LIVE)), profile=host / "own")
    assert list(failing(reported)) == [check]


def test_wrong_path_of_custom_operators_fails_only_the_environment_check(
    recorded, host, tmp_path, monkeypatch
):
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", str(tmp_path / "nowhere"))
    assert_fails_alone("environment", recorded, host, tmp_path)


def test_call_missing_in_a_release_fails_only_the_libraries_check(
    recorded, host, tmp_path, monkeypatch
):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_RMS_NORM)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")
    found = assert_fails_alone("libraries", recorded, host, tmp_path)
    assert names(found, "RmsNorm", "torch_npu.npu_rms_norm")


def test_device_without_an_out_of_memory_error_fails_only_the_failures_check(
    recorded, host, tmp_path, monkeypatch
):
    monkeypatch.setenv("FAKE_NPU_MEMORY", "endless")
    found = assert_fails_alone("failures", recorded, host, tmp_path)
    assert names(found, "OpmeterTooLarge", Outcome.OOM, Outcome.REJECTED)


def assert_fails_alone(check, recorded, host, folder):
    """Run the checks that use the machine; the others read sessions that have run."""
    bench, _ = recorded
    repeated = SessionBench("npu", bench.stack, 0, folder / "repeated")
    reported = failing(run_checks(repeated, only=(*LIVE, "profiler", "lengths")))
    assert list(reported) == [check]
    return reported[check]


def test_every_check_has_a_falsified_result():
    assert {*dict(LIES), *LIVE, "outputs", "peaks"} == set(CHECKS)


def test_non_finite_and_wrong_outputs_fail_the_outputs_check(recorded):
    import torch

    from collector.replay.cases import find_difference

    bench, _ = recorded
    good = [m for session in bench.done for m in session.results if m.is_good][:3]
    assert verdict_on_outputs(good).ok
    gated = replace(good[1], outcome=Outcome.GATED, reason="output 0 is not finite")
    assert "output 0 is not finite" in verdict_on_outputs([*good, gated]).found
    difference = find_difference(torch.ones(4), torch.full((4,), 4.0))
    away = replace(good[2], warnings=(difference,))
    assert not verdict_on_outputs([*good, away]).ok


def test_command_writes_one_report_and_exits_with_1_if_a_check_fails(
    host, recorded, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["selftest", "npu", "--only", "lengths"])
    assert done.exit_code == 0, done.output
    assert re.search("^ok +lengths", done.output, re.MULTILINE)
    with zipfile.ZipFile("opmeter-selftest.zip") as report:
        verdicts = json.loads(report.read("selftest.json"))
        assert verdicts["proved"] == ["FusedInferAttentionScore"]
        assert verdicts["checks"][0]["ok"] is True
        assert "lengths/op_summary.csv" in report.namelist()
    monkeypatch.setenv("ASCEND_CUSTOM_OPP_PATH", str(tmp_path / "nowhere"))
    done = CliRunner().invoke(app, ["selftest", "npu", "--only", "environment"])
    assert done.exit_code == 1
    assert re.search("^FAIL +environment.*custom OPP", done.output, re.MULTILINE)
