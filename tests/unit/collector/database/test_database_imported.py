"""Durations of other tools: rows of the database without a certificate, below all measured ones."""

from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from collector.database.commits import Commit
from collector.database.head_content import HeadContent
from collector.database.imported import tree_imports
from collector.database.merge import CREATE, merge_plans
from collector.database.pull import pull_version
from collector.database.query import case_results
from collector.database.snapshot import load_state
from collector.database.verify import find_problems
from collector.database.version_quality import Need, quality_of, shown_version, verdict_of
from collector.store.base import Store
from collector.store.in_memory import MemoryStore
from collector.worker.complete_results import store_results
from opmeter import Channel
from opmeter import open as open_database
from opmeter.database import database_at
from opmeter.version import Version
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.collector.database.imported_tree import (
    FOLDER_OF_RANKS,
    PATH,
    STACK,
    add_row,
    write_tree,
)

pytestmark = pytest.mark.fast

MEASURED = [add_record(rows) for rows in (64, 256)]
PLAN = MadePlan([MadeShard("shard-1", MEASURED, [answered(MEASURED, 40.0)])], stack=STACK)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    durations = {16: "20", 64: "30", 256: "80.5", 1024: "0"}
    return write_tree(root, durations, {163_840: "12.10", 1_310_720: "50.00"})


def publish(store: Store, *plans: tuple[str, int]) -> Commit | None:
    return merge_plans(store, list(plans), guard=CREATE, author="test").commit


def import_tree(store: Store, tree: Path, head: int = 0) -> Commit | None:
    return publish(store, *(store_results(store, one, head) for one in tree_imports(tree)))


def measure(store: Store, plan: MadePlan = PLAN) -> Commit | None:
    write_campaign(store, plan)
    return publish(store, plan.name)


def version_at(store: Store, commit: Commit | None) -> Version:
    assert commit is not None
    return database_at(store, commit).directory(PATH)


def channel(version: Version, rows: int) -> tuple[float, Channel]:
    answer = version.query("Add", [(rows, 64), (rows, 64)], "bf16")
    return answer.value_us, answer.channel


def test_imported_rows_have_a_channel_an_interval_and_their_origin(tree: Path) -> None:
    store = MemoryStore()
    commit = import_tree(store, tree)
    version = version_at(store, commit)
    assert commit is not None and channel(version, 16) == (20.0, Channel.IMPORTED)
    answer = version.query("Add", [(16, 64), (16, 64)], "bf16")
    assert answer.support == 0 and answer.low_us < 20 < answer.high_us
    assert answer.warnings == ("imported",)
    between = version.query("Add", [(40, 64), (40, 64)], "bf16")
    assert between.channel is Channel.INTERPOLATED and "imported" in between.warnings
    messages = version.frame("hcom_allReduce_")
    assert set(messages["channel"]) == {"imported"} and set(messages["mean_us"]) == {12.1, 50.0}
    (first, *_) = load_state(store, commit).measurements.sort_by("source").to_pylist()
    assert first["source"] == f"{FOLDER_OF_RANKS}/hcom_allReduce_.csv:2"
    assert (first["timed_by"], first["n_observed"], first["raw_key"]) == ("imported", "0", "")


def test_the_same_tree_is_imported_once_and_a_later_one_replaces_it(
    tree: Path, tmp_path: Path
) -> None:
    store = MemoryStore()
    assert import_tree(store, tree) is not None
    assert import_tree(store, tree, 1) is None
    other = write_tree(tmp_path, {16: "25"}, {})
    later = version_at(store, import_tree(store, other, 1))
    assert channel(later, 16) == (25.0, Channel.IMPORTED)
    assert channel(later, 64) == (30.0, Channel.IMPORTED)  # the other tree has no such row


def test_measured_rows_outrank_imported_ones_in_any_order(tree: Path) -> None:
    found = []
    for steps in ((measure, import_tree), (import_tree, measure)):
        store = MemoryStore()
        for step in steps:
            commit = step(store, tree) if step is import_tree else measure(store)
        assert commit is not None and find_problems(store) == []
        version = version_at(store, commit)
        assert channel(version, 64) == (40.0, Channel.MEASURED)
        assert channel(version, 256) == (41.0, Channel.MEASURED)
        assert channel(version, 16) == (20.0, Channel.IMPORTED)
        state = load_state(store, commit)
        assert state.versions[PATH].shown_stack == STACK
        found.append(commit.content_hash)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "tried",
    [
        Tried(44.0, cache="cold"),
        Tried(44.0, warnings=("the session was disturbed: threads waited for a core",)),
    ],
)
def test_a_cold_or_disturbed_measurement_outranks_an_imported_row(tree: Path, tried: Tried) -> None:
    store = MemoryStore()
    import_tree(store, tree)
    session = {MEASURED[0].case_id: tried}
    plan = MadePlan([MadeShard("shard-1", MEASURED[:1], [session])], stack=STACK)
    assert channel(version_at(store, measure(store, plan)), 64) == (44.0, Channel.MEASURED)


def test_nothing_is_learnt_from_imported_rows(tree: Path) -> None:
    alone, both = MemoryStore(), MemoryStore()
    measured = version_at(alone, measure(alone))
    import_tree(both, tree)
    expected = measured.query("Add", [(64, 64), (64, 64)], "bf16")
    assert version_at(both, measure(both)).query("Add", [(64, 64), (64, 64)], "bf16") == expected


def test_campaigns_do_not_count_imported_rows_as_results(tree: Path) -> None:
    store = MemoryStore()
    import_tree(store, tree)
    commit = measure(store)
    case = add_record(16).case_id
    content = HeadContent.of(store, commit)
    assert case not in content.case_results(PATH, [case])
    assert case not in content.intervals(PATH, [case])
    result = case_results(load_state(store, commit), PATH)[case]
    assert result.is_good and result.is_imported


def test_quality_reports_how_many_durations_are_imported(tree: Path) -> None:
    store = MemoryStore()
    import_tree(store, tree)
    shown = shown_version(load_state(store, measure(store)), PATH)
    quality, verdict = quality_of(shown), verdict_of(shown)
    assert (quality.durations, quality.imported, quality.collectives) == (5, 3, 2)
    assert quality.origins["imported"] == 3 and verdict.needs[Need.MEASUREMENT] == 3


def test_a_pulled_tree_keeps_the_channel(tree: Path, tmp_path: Path) -> None:
    store = MemoryStore()
    import_tree(store, tree)
    commit = measure(store)
    assert commit is not None
    pull_version(store, commit, tmp_path / "pulled")
    version = open_database(tmp_path / "pulled").directory(PATH)
    assert channel(version, 64) == (40.0, Channel.MEASURED)
    assert channel(version, 16) == (20.0, Channel.IMPORTED)
    assert set(version.frame("hcom_allReduce_")["channel"]) == {"imported"}


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7713\n"


@pytest.mark.parametrize(
    ("name", "text", "line", "words"),
    [
        (f"{PATH}/Add.csv", POINTER, None, "git lfs pull"),
        (f"{FOLDER_OF_RANKS}/hcom_allReduce_.csv", POINTER, None, "git lfs pull"),
        (f"{PATH}/Add.csv", "OP State\nx\n", 1, "Input Shapes"),
        (f"{FOLDER_OF_RANKS}/hcom_allReduce_.csv", "message_bytes\n1\n", 1, "num_devices"),
        (
            f"{FOLDER_OF_RANKS}/hcom_allReduce_.csv",
            "message_bytes,num_devices,dtype,topology_tier,Duration(us)\n1024,16,DT_BF16,7,1.5\n",
            2,
            "tier",
        ),
        (
            f"{FOLDER_OF_RANKS}/hcom_allReduce_.csv",
            "message_bytes,num_devices,dtype,topology_tier,Duration(us)\n1024,16,DT_BF16,1,fast\n",
            2,
            "fast",
        ),
    ],
)
def test_a_bad_file_is_named_with_its_line(
    tmp_path: Path, name: str, text: str, line: int | None, words: str
) -> None:
    root = write_tree(tmp_path, {16: "20"}, {163_840: "12.1"})
    (root / name).write_text(text)
    with pytest.raises(BadInput, match=words) as error:
        list(tree_imports(root))
    assert (str(error.value.path), error.value.line) == (str(root / name), line)


def test_a_folder_of_tables_needs_the_name_of_its_version_directory(tmp_path: Path) -> None:
    header = write_tree(tmp_path / "tree", {}, {}) / PATH / "Add.csv"
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/Add.csv").write_text(header.read_text() + add_row(16, "", "21.5"))
    with pytest.raises(BadInput, match="--directory"):
        list(tree_imports(tmp_path / "rows"))
    with pytest.raises(BadInput, match="version directory"):
        list(tree_imports(tmp_path / "rows", "here/vllm_ascend/9.9"))
    (one,) = tree_imports(tmp_path / "rows", PATH)
    assert [row.mean_us for row in one.rows] == [21.5]  # of the profile, as consumers read it
    with pytest.raises(BadInput, match="rows of durations"):
        list(tree_imports(tmp_path / "tree"))
