"""The result of an undisturbed campaign, with which those of the kill drills are compared. It is
one shard; several shards of several sessions each are the final state of the kill drills."""

import re
from pathlib import Path

import pytest

from tests.contract.drills.runs import CASES, Runs, short_campaign

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_undisturbed_run_measures_every_case_once(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")
    place, campaign = f"file://{tmp_path}/data", short_campaign(tmp_path)
    one = "shards: {target_s: 60, session_s: 60}"
    campaign.write_text(re.sub("shards: .*", one, campaign.read_text()))
    runs = Runs(tmp_path, place, {"TMPDIR": str(tmp_path)}, campaign)
    runs.finish()
    finals = runs.finals()
    assert len(finals) == CASES and set(finals.values()) == {1}
    assert {case for _, case in finals} == runs.source_cases()
    launched = {case for _, case in runs.launched(but_not=set())}
    assert len({case for _, case in finals} - launched) == 1  # the inputs of MemSet are unknown
    runs.command("db", "verify")  # which fails if anything is damaged
    attempts = runs.attempts()
    runs.finish()
    assert runs.attempts() == attempts
