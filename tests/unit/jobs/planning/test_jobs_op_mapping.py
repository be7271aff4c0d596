"""Which op_mapping.yaml a version gets, and that it is copied byte for byte."""

from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from collector.database.merge import CREATE, merge_plans
from collector.database.op_mapping_writing import written_mapping
from collector.database.pull import pull_version
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import RunOptions, campaign_from_text
from jobs.planning.lifecycle import NewPlan, make_next, read_state
from tests.unit.collector.database.campaign_maker import (
    PATH,
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)

pytestmark = pytest.mark.fast

RICH = (Path(__file__).parents[3] / "fixtures" / "op_mapping" / "rich.yaml").read_bytes()
OTHER = b"operator_mappings: {aten.add.Tensor: {kernel_type: Add, query_mode: elementwise}}"
ADD = (
    "OP State,Accelerator Core,Input Shapes,Input Data Types,Input Formats,"
    "Output Shapes,Output Data Types,Output Formats\n"
    'static,AI_VECTOR_CORE,"""8,8;8,8""",FLOAT;FLOAT,ND;ND,"""8,8""",FLOAT,ND\n'
)
TARGET = (
    "target: {device: A3, vllm: 0.18.0, torch: 2.9.0, cann: '8.5.0', driver: '25.5', "
    "firmware: '7.8', torch_npu: 2.9.0}"
)


def tree(base: Path, name: str, op_mapping: bytes | None) -> None:
    (base / name).mkdir()
    (base / name / "Add.csv").write_text(ADD)
    if op_mapping is not None:
        (base / name / "op_mapping.yaml").write_bytes(op_mapping)


def surveyed(base: Path, *trees: str, more: str = "") -> str | None:
    """The content that is planned to become the version's op_mapping."""
    sources = ", ".join(f"{{tree: {name}}}" for name in trees)
    text = f"campaign: c\nsources: [{sources}]\nbackend: npu\n{TARGET}\n{more}"
    state = read_state(campaign_from_text(text, path="c.yaml", base=base), MemoryStore())
    planned = make_next(state, NewPlan(1, ()), RunOptions())
    assert planned.plan.op_mapping == state.op_mapping
    return state.op_mapping


def test_op_mapping_is_absent_without_a_file(tmp_path: Path) -> None:
    tree(tmp_path, "plain", None)
    assert surveyed(tmp_path, "plain") is None


def test_op_mapping_of_a_tree_is_used_unless_the_campaign_names_another(tmp_path: Path) -> None:
    tree(tmp_path, "plain", None)
    tree(tmp_path, "mapped", RICH)
    (tmp_path / "named.yaml").write_bytes(OTHER)
    assert surveyed(tmp_path, "plain", "mapped") == RICH.decode()
    named = surveyed(tmp_path, "plain", "mapped", more="op_mapping: named.yaml")
    assert named == OTHER.decode()


def test_op_mapping_that_opmeter_wrote_is_not_that_of_the_version(tmp_path: Path) -> None:
    tree(tmp_path, "one", written_mapping(["Add"]))
    tree(tmp_path, "two", written_mapping(["Add", "Mul"]))
    assert surveyed(tmp_path, "one", "two") is None
    tree(tmp_path, "mapped", RICH)
    assert surveyed(tmp_path, "one", "mapped", "two") == RICH.decode()


def test_differing_op_mappings_of_trees_require_a_choice(tmp_path: Path) -> None:
    tree(tmp_path, "a", RICH)
    tree(tmp_path, "b", RICH)
    assert surveyed(tmp_path, "a", "b") == RICH.decode()
    tree(tmp_path, "c", OTHER)
    with pytest.raises(BadInput, match=r"c/op_mapping\.yaml: .*a/op_mapping\.yaml"):
        surveyed(tmp_path, "a", "b", "c")
    assert surveyed(tmp_path, "a", "c", more="op_mapping: c/op_mapping.yaml") == OTHER.decode()


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"operator_mappings:\n  aten.x: Add\n", r"op_mapping\.yaml:2: aten\.x: "),
        (
            "operator_mappings: {ä: {kernel_type: Add}}".encode("latin-1"),
            r"op_mapping\.yaml: .*UTF-8",
        ),
    ],
)
def test_unusable_op_mapping_is_refused_before_planning(
    tmp_path: Path, data: bytes, place: str
) -> None:
    tree(tmp_path, "mapped", data)
    with pytest.raises(BadInput, match=place):
        surveyed(tmp_path, "mapped")


def test_missing_named_op_mapping_is_refused(tmp_path: Path) -> None:
    tree(tmp_path, "mapped", RICH)
    with pytest.raises(BadInput, match=r"gone\.yaml: .*No such file"):
        surveyed(tmp_path, "mapped", more="op_mapping: gone.yaml")


@pytest.mark.parametrize(
    "data",
    [
        RICH,
        RICH.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + RICH.rstrip(b"\n"),
        "notes: 'ü \u2028 \U0001f642'\noperator_mappings: {a: {zero_cost: true}}\r\n\n".encode(),
    ],
    ids=["unchanged", "CRLF", "with a byte order mark and no final newline", "beyond ASCII"],
)
def test_pulled_tree_has_the_op_mapping_bytes_of_the_source(tmp_path: Path, data: bytes) -> None:
    tree(tmp_path, "mapped", data)
    text = surveyed(tmp_path, "mapped")
    store, records = MemoryStore(), [add_record(8)]
    shard = MadeShard("shard-1", records, [answered(records, 1.0)])
    plan = write_campaign(store, MadePlan([shard], op_mapping=text))
    head = merge_plans(store, [(plan.campaign, plan.number)], guard=CREATE, author="test").head
    assert head is not None
    pulled = pull_version(store, head, tmp_path / "pulled")
    assert pulled.own_mappings == ()
    assert (tmp_path / "pulled" / PATH / "op_mapping.yaml").read_bytes() == data
