"""A tree of another tool is opened like a database; its durations are in a channel of their own."""

from pathlib import Path

import pandas as pd
import pytest

import opmeter
from collector.codec.errors import BadInput
from tests.unit.collector.database.imported_tree import PATH, write_tree

pytestmark = pytest.mark.fast


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(
        tmp_path_factory.mktemp("tree"), {16: "20", 64: "30"}, {163_840: "12.1", 1_310_720: "50"}
    )


def test_a_tree_without_a_marker_is_opened(tree: Path) -> None:
    db = opmeter.open(tree)
    assert db.directories == (PATH,)
    version = db.directory(PATH)
    answer = version.query("Add", [(16, 64), (16, 64)], "bf16")
    assert (answer.value_us, answer.channel, answer.support) == (20.0, "imported", 0)
    queries = pd.DataFrame(
        {"kernel_type": ["Add"] * 2, "Input Shapes": ["16,64;16,64", "32,64;32,64"]}
    )
    assert version.query_many(queries)["channel"].tolist() == ["imported", "interpolated"]
    explained = version.explain("Add", [(16, 64), (16, 64)], "bf16")
    assert explained.rows[0].sessions == 0 and explained.sessions_to_halve is None
    assert sorted(version.frame("hcom_allReduce_")["mean_us"]) == [12.1, 50.0]


def test_a_version_folder_of_a_tree_is_opened_alone(tree: Path) -> None:
    db = opmeter.open(tree / PATH)
    assert db.directories == (PATH,)
    assert "hcom_allReduce_" in db.directory(PATH).kernels


def test_another_folder_is_no_tree(tmp_path: Path) -> None:
    (tmp_path / "a/vllm_ascend/other").mkdir(parents=True)
    with pytest.raises(BadInput, match="no database"):
        opmeter.open(tmp_path)
