"""What the verbs about a database print, and refuse."""

from pathlib import Path

import pytest

from collector.database.merge import CREATE, merge
from collector.store import open_store
from jobs.verbs.database import path_verb
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)

pytestmark = pytest.mark.fast

RECORDS = [add_record(1), add_record(2)]
MADE = MadePlan([MadeShard("shard", RECORDS, [answered(RECORDS, 5.0)])])


def test_a_versions_path_is_a_folder_to_go_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "a folder"
    store = open_store(str(root))
    write_campaign(store, MADE)
    merge(store, [MADE.name], guard=CREATE, author="test")
    path_verb(str(root), None)
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{root}/db/snapshots/") and line.endswith(PATH)
    assert (Path(line) / "Add.csv").is_file()
