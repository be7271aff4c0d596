"""Two merges, `db verify`, `db gc` and a reader at once, each killed at random, in rounds."""

import os
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from collector.database import delta
from tests.attack import merge_rounds
from tests.attack.merge_rounds import CHECKPOINT_EVERY, ROUNDS_OF_A_DATABASE, MergeRounds
from tests.unit.collector.database.merge_kills import Place
from tests.unit.collector.database.merge_process import MergeProcesses

_ROUNDS = int(os.environ.get("OPMETER_ATTACK_ROUNDS", "5"))


def check_rounds(
    place: Place, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    patch.setattr(delta, "CHECKPOINT_EVERY", CHECKPOINT_EVERY)
    outcomes, commits = Counter[tuple[str, str]](), 0
    with MergeProcesses(merge_rounds.__name__) as processes:
        for begin in range(0, _ROUNDS, ROUNDS_OF_A_DATABASE):
            url = place.url(f"rounds-{begin}")
            rounds = MergeRounds(url, processes, Random(seed + begin), outcomes)
            for _ in range(min(ROUNDS_OF_A_DATABASE, _ROUNDS - begin)):
                rounds.one()
            rounds.end()
            commits += rounds.checked
    with capsys.disabled():
        figures = ", ".join(f"{n} {kind} {end}" for (kind, end), n in sorted(outcomes.items()))
        print(f" {_ROUNDS} rounds, {commits} commits: {figures}", end="")
    assert outcomes["merge", "killed"] and outcomes["merge", "ended"]
    assert outcomes["verify", "killed"] and outcomes["read", "killed"]
    assert outcomes["gc", "ended"]


@pytest.mark.slow
def test_rounds_of_kills_leave_tables_readable_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_rounds(Place(lambda name: (tmp_path / name).as_uri()), monkeypatch, capsys, 1)


@pytest.mark.slow
@pytest.mark.server
def test_rounds_of_kills_leave_tables_readable_on_a_real_server(
    s3_place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_rounds(s3_place, monkeypatch, capsys, 2)
