"""`opmeter step` of a captured pass, as a user calls it."""

import json
import shutil
from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from collector.database.merge import CREATE, merge_plans
from collector.model.demand import MissedCase
from collector.model.record import CaseRecord
from collector.ops.references import reference_record
from collector.profiles.bundled import write_bundled_profile
from collector.profiles.discovery import find_profiles
from collector.profiles.kernel_details import read_profile
from collector.profiles.step_trace import FILE
from collector.store import open_store
from jobs.planning.captured_pass import PASS_FILE
from jobs.planning.sources import completed_records
from opmeter.misses import MissLog
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    answered,
    write_campaign,
)
from tests.unit.jobs.cli.in_process import invoked

PASS = reference_record("OwnPass", "4,8", "4,8", "FLOAT")
OTHER = reference_record("OwnPass", "8,8", "8,8", "FLOAT")
PASS_US = 4000.0


@pytest.fixture
def captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[CaseRecord]:
    """Captures of two passes with the same operators in `prof`: the database has 5 us and more for
    each operator but products, and a duration of one of the passes."""
    monkeypatch.chdir(tmp_path)
    found = write_bundled_profile("quickstart", tmp_path / "profile")
    (file,) = find_profiles([found])
    (file.parent / FILE).write_text(
        "Step,Computing,Communication(Not Overlapped),Free\n1,900,0,10\n2,900,0,10\n"
    )
    for name, record in (("one", PASS), ("other", OTHER)):
        shutil.copytree(tmp_path / "profile", tmp_path / "prof" / name)
        log = MissLog(tmp_path / "prof" / name / PASS_FILE)
        log.add_case(MissedCase(record.kernel_type, record.cells, "captured", 1, 1.0))
        log.write()
    records = completed_records(read_profile([found]).records)
    known = [one for one in records if not one.kernel_type.startswith("MatMul")]
    sessions = [answered(known, 5.0) | answered([PASS], PASS_US)]
    made = MadePlan([MadeShard("shard", [*known, PASS], sessions)])
    store = open_store(str(tmp_path / "data"))
    write_campaign(store, made)
    merge_plans(store, [made.name], guard=CREATE, author="test")
    return list(records)


def step(*words: str) -> str:
    result = invoked("step", *words, "--root", "data")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_parts_of_a_captured_pass_add_up(captured: list[CaseRecord]) -> None:
    found = json.loads(step("prof/one", "--against", "--json"))
    assert found["fitted_to"] == 0 and found["measured"]["mean_us"] == PASS_US
    assert sum(found["parts_us"].values()) == pytest.approx(found["time_us"])
    launches = sum(one.profile.count for one in captured if one.profile)
    assert found["calls"] == launches / 2  # of one of the two steps
    in_capture_us = sum(
        one.profile.total_us
        for one in captured
        if one.profile and one.kernel_type.startswith("MatMul")
    )
    assert found["parts_us"]["operators, unknown"] == pytest.approx(in_capture_us / 2)
    text = step("prof/one", "--against")
    for word in ("pass", "host", "unknown", "measured", "residual", "MatMul"):
        assert word in text


def test_factors_are_fitted_to_other_passes_alone(captured: list[CaseRecord]) -> None:
    alone = json.loads(step("prof/one", "--fit", "prof/one", "--json"))
    assert alone["fitted_to"] == 0
    fitted = json.loads(step("prof/other", "--fit", "prof", "--json"))
    assert fitted["fitted_to"] == 1 and fitted["measured"] is None
    assert abs(fitted["time_us"] - PASS_US) < abs(alone["time_us"] - PASS_US)


def test_what_is_no_captured_pass_is_refused(captured: list[CaseRecord]) -> None:
    for words in (
        ("prof/other", "--against"),  # not measured
        ("profile",),
        ("prof/one", "--fit", "profile"),
        ("prof/one", "--layout", "tp=4"),
        ("qwen3-32b", "--against"),
    ):
        with pytest.raises(BadInput):
            step(*words)


def test_folder_of_a_model_is_no_capture(captured: list[CaseRecord]) -> None:
    folder = Path("own-model")
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    with pytest.raises(BadInput, match="config.json"):
        step(str(folder))
