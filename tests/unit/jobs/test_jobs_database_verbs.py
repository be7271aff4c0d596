"""What the verbs about a database print, and refuse."""

from pathlib import Path

import pytest

from collector.database.merge import CREATE, merge
from collector.errors import BadInput
from collector.store import open_store
from jobs.verbs.database import path_verb
from jobs.verbs.merge import merge_verb
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


@pytest.mark.parametrize(
    ("name", "numbers", "words"),
    [
        ("nobody", [], "no campaign 'nobody' at .*nothing was planned under that name"),
        ("nobody", [1], "no campaign 'nobody' at "),
        ("made", [7, 1, 3], "campaign 'made' at .* has no plan 3, 7; there are: 1"),
    ],
)
def test_a_merge_of_what_was_not_planned_is_refused(
    tmp_path: Path, name: str, numbers: list[int], words: str
) -> None:
    write_campaign(open_store(str(tmp_path)), MADE)
    with pytest.raises(BadInput, match=words):
        merge_verb(name, str(tmp_path), numbers, False, True, False)
