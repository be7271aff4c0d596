"""Runs that are killed, with a folder as store."""

from pathlib import Path

import pytest

from tests.contract.drills.kills import check_kills
from tests.contract.drills.runs import Runs, short_campaign

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_run_survives_random_kills_with_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")
    place = f"file://{tmp_path}/data"
    check_kills(Runs(tmp_path, place, {"TMPDIR": str(tmp_path)}, short_campaign(tmp_path)), 4)
