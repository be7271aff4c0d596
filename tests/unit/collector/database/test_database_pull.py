"""A pulled snapshot is a folder that consumers read by name, and that never replaces their work."""

from pathlib import Path

import pandas as pd
import pytest

from collector import keys
from collector.database.commits import Commit, find_head
from collector.database.merge import CREATE, merge
from collector.database.pull import MARKER, pull
from collector.errors import BadInput
from collector.store.memory import MemoryStore
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    answered,
    record_of_shapes,
    write_campaign,
)

pytestmark = pytest.mark.fast

RECORDS = [
    add_record(1),
    add_record(2),
    record_of_shapes("Add", '"16"', '"16"'),
    record_of_shapes("Gelu", "N/A", "N/A"),
]


def database(op_mapping: str | None = "a: 1\n") -> tuple[MemoryStore, Commit]:
    """Two good Adds, a failed one, and a Gelu whose inputs nobody knows; Adds also taken cold."""
    store = MemoryStore()
    tried = answered(RECORDS[:2], 5.0) | {r.case_id: Tried() for r in RECORDS[2:]}
    write_campaign(store, MadePlan([MadeShard("s", RECORDS, [tried])], op_mapping=op_mapping))
    cold = MadeShard("cold", RECORDS[:1], [answered(RECORDS[:1], 77.0)])
    write_campaign(store, MadePlan([cold], number=2, head_commit=1, cache="cold"))
    merge(store, [("made", 1), ("made", 2)], guard=CREATE, author="test")
    head = find_head(store)
    assert head is not None
    return store, head


def read(target: Path, kernel: str) -> pd.DataFrame:
    return pd.read_csv(target / PATH / f"{kernel}.csv")


def test_a_pulled_tree_is_read_by_name_with_quotes_kept_inside_shapes(tmp_path: Path) -> None:
    store, head = database()
    pulled = pull(store, head, tmp_path / "tree")
    assert (pulled.files, pulled.rows, pulled.without_mapping) == (3, 4, ())
    add = read(tmp_path / "tree", "Add")
    assert list(add["Input Shapes"]) == ['"1,64;1,64"', '"16"', '"2,64;2,64"']
    durations = add["Average Duration(us)"]
    assert durations[[0, 2]].tolist() == [5.0, 6.0] and durations.isna()[1]
    assert len(add.columns) == 62
    assert (tmp_path / "tree" / PATH / "op_mapping.yaml").read_text() == "a: 1\n"


def test_a_case_of_unknown_inputs_has_a_row(tmp_path: Path) -> None:
    store, head = database()
    pull(store, head, tmp_path)
    text = (tmp_path / PATH / "Gelu.csv").read_text()
    assert text.splitlines()[1].startswith("dynamic,AI_VECTOR_CORE,N/A,DT_BF16")


def test_a_missing_op_mapping_is_told(tmp_path: Path) -> None:
    store, head = database(op_mapping=None)
    assert pull(store, head, tmp_path).without_mapping == (PATH,)


def test_empty_durations_can_be_left_out(tmp_path: Path) -> None:
    store, head = database()
    pulled = pull(store, head, tmp_path, prune_empty=True)
    assert pulled.rows == 2
    assert read(tmp_path, "Add")["Average Duration(us)"].tolist() == [5.0, 6.0]


def test_the_other_cache_state_can_be_shown(tmp_path: Path) -> None:
    store, head = database()
    pull(store, head, tmp_path, cache="cold")
    durations = read(tmp_path, "Add")["Average Duration(us)"]
    assert durations[0] == 77.0 and durations.isna().tolist() == [False, True, True]


def test_a_pull_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    store, head = database()
    target = tmp_path / "tree"
    pull(store, head, target, prune_empty=True)
    pull(store, head, target)
    assert len(read(target, "Add")) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]


@pytest.mark.parametrize("name", ["mine.txt", f"{PATH}/Mul.csv", f"{PATH}/Add.csv"])
def test_what_somebody_put_into_a_pulled_folder_is_kept(tmp_path: Path, name: str) -> None:
    store, head = database()
    pull(store, head, tmp_path)
    (tmp_path / name).write_text("mine")
    with pytest.raises(BadInput, match=f"{name}: it was added or changed after the last pull"):
        pull(store, head, tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_a_folder_that_no_pull_made_is_refused(tmp_path: Path) -> None:
    store, head = database()
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(BadInput, match="no earlier pull made it"):
        pull(store, head, tmp_path)
    with pytest.raises(BadInput, match="a folder is wanted"):
        pull(store, head, tmp_path / "notes")
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_a_damaged_snapshot_leaves_the_earlier_pull_untouched(tmp_path: Path) -> None:
    store, head = database()
    pull(store, head, tmp_path)
    key = keys.snapshot(head.snapshot) + f"{PATH}/Add.csv"
    store.put(key, store.get(key).replace(b"5.0", b"4.0"))
    with pytest.raises(BadInput, match="changed after it was written"):
        pull(store, head, tmp_path)
    assert read(tmp_path, "Add")["Average Duration(us)"][0] == 5.0
    assert (tmp_path / MARKER).exists()
