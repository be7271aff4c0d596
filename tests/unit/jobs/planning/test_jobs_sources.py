"""How sources become a plan: cases are completed before they are planned."""

import json
from dataclasses import replace

import pytest
import yaml

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput, DamagedObject
from collector.database.commits import find_head
from collector.database.merge import CREATE, merge_plans
from collector.database.pull import pull_version
from collector.model import keys
from collector.model.measurement import Outcome
from collector.model.record import ProfileStatistics, as_neighbour, read_table, write_table
from collector.ops.refusals import refusal
from collector.ops.registry import find_operator
from collector.profiles.bundled import write_bundled_profile
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import campaign_from_text
from jobs.controller.launching import campaign_object
from jobs.objects.deployment import Deployment
from jobs.planning.candidates import distinct_cases
from jobs.planning.sources import completed_records, load_sources
from tests.fixtures.op_rows import rows_of
from tests.fixtures.profiles.variants import ProfileRow, collective, write_profile
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    answered,
    write_campaign,
)
from tests.unit.jobs.printed import missing, numbers, raises_naming

pytestmark = pytest.mark.fast

# The first records its lengths, the sequence lengths of the second are unknown.
WITH_LENGTHS, WITHOUT_LENGTHS = rows_of("FusedInferAttentionScore")[:2]
ROWS = [WITH_LENGTHS]
LENGTHS = "runtime: {kv_length: [8, 16]}\n"


def campaign(cases, more="", backend="cpu"):
    text = f"campaign: c\nsources: [{{cases: {cases}}}]\nbackend: {backend}\n{more}"
    return campaign_from_text(text, path="c.yaml", base=None)


def test_cases_parsed_elsewhere_are_read_from_the_store_and_completed():
    store, table = MemoryStore(), write_table(ROWS)
    store.put(keys.source("c", sha256_hex(table)), table)
    (source,) = load_sources(campaign(sha256_hex(table)), store)
    assert source.table == table and source.planned.rows == len(ROWS)
    for record in source.records:
        assert record.case.attribute("Runtime num_heads")
        assert completed_records([record]) == (record,)


def stored_source(rows, more="", backend="cpu"):
    store, table = MemoryStore(), write_table(rows)
    store.put(keys.source("c", sha256_hex(table)), table)
    (source,) = load_sources(campaign(sha256_hex(table), more, backend), store)
    return source


def test_unknown_lengths_are_refused_and_not_filled_in():
    (record,) = stored_source([WITHOUT_LENGTHS]).records
    assert record == WITHOUT_LENGTHS
    refused = refusal(record.case, find_operator, "cpu")
    assert refused.outcome == Outcome.UNSUPPORTED and "lengths" in refused.why
    assert refusal(WITH_LENGTHS.case, find_operator, "cpu") is None


def test_assumed_lengths_add_one_case_each():
    profile = ProfileStatistics(7, 58.0, 58.0, 1.0)
    source = stored_source([WITH_LENGTHS, replace(WITHOUT_LENGTHS, profile=profile)], LENGTHS)
    reported, unreported, *added = source.records
    assert (
        unreported.profile == profile and refusal(unreported.case, find_operator, "cpu") is not None
    )
    means = [one.case.attribute("Runtime avg_seq_len") for one in added]
    assert means == ["8.000000", "16.000000"]
    assert {one.profile for one in added} == {None} and len({one.case_id for one in added}) == 2
    assert not any(refusal(one.case, find_operator, "cpu") for one in (reported, *added))
    lengths = [one.case.attribute("Runtime actual_seq_lengths_kv_values") for one in added]
    assert lengths == ["8,8,8,8,8", "16,16,16,16,16"]
    assert source.planned.name.startswith("cases (")
    assert numbers(source.planned.name) == ["2", "8", "16"]


@pytest.mark.parametrize("kernel", ["FlashAttentionScore", "FlashAttentionScoreGrad"])
def test_assumed_masks_are_those_of_the_campaign(kernel):
    compressed, causal, full = rows_of(kernel)
    unreported = replace(causal, extra={})
    refused = refusal(unreported.case, find_operator, "npu")
    assert refused.outcome == Outcome.UNSUPPORTED and "mask" in refused.why
    more = "runtime: {kv_length: [8], mask: [causal, full]}\n"
    source = stored_source([compressed, unreported], more, backend="npu")
    assert source.records == (compressed, unreported, causal, full)
    assert missing(source.planned.name, ["2", "causal", "full"]) == []
    assert not any(refusal(one.case, find_operator, "npu") for one in (compressed, causal, full))
    flops = [find_operator(kernel).flops(one.case) for one in (causal, full)]
    assert 2 * flops[0] == flops[1]


def test_assumed_lengths_are_added_once():
    parsed = stored_source([WITHOUT_LENGTHS], LENGTHS)
    again = stored_source(read_table(parsed.table), LENGTHS)
    assert [one.case_id for one in again.records] == [one.case_id for one in parsed.records]
    assert again.table == parsed.table


@pytest.mark.parametrize(
    "wrong",
    [
        *("{}", "{kv_length: []}", "{kv_length: [0]}", "{kv_length: [8, 8]}", "{length: [8]}"),
        *("{mask: []}", "{mask: [band]}"),
        *("{library: []}", "{library: [atb]}", "{library: [cann, cann]}"),
    ],
)
def test_invalid_runtime_values_are_refused_with_their_line(wrong):
    with pytest.raises(BadInput, match="c.yaml:4"):
        campaign("0" * 64, f"runtime: {wrong}\n", backend="npu")


def test_library_is_accepted_only_for_npus():
    with raises_naming(BadInput, "c.yaml:4: ", "library", "cpu"):
        campaign("0" * 64, "runtime: {library: [cann]}\n")


def test_rows_of_kernels_in_two_libraries_are_requested_from_each_named_one():
    add, gating = rows_of("Add")[0], rows_of("MoeGatingTopK")[0]
    profile = ProfileStatistics(7, 58.0, 58.0, 1.0)
    rows = [add, replace(gating, profile=profile)]
    plain = stored_source(rows, backend="npu")
    source = stored_source(rows, "runtime: {library: [cann, vllm-ascend]}\n", backend="npu")
    requested = [one.case.attribute("Runtime library") for one in source.records]
    assert requested == [None, "cann", "vllm-ascend"]
    assert source.records[0] == plain.records[0]
    assert [one.profile for one in source.records[1:]] == [profile, None]
    assert len({one.case_id for one in (*plain.records, *source.records)}) == 4
    assert missing(source.planned.name, ["2", "cann", "vllm-ascend"]) == []
    again = stored_source(read_table(source.table), "runtime: {library: [cann]}\n", backend="npu")
    assert again.table == source.table, "a row that names a library keeps it"


def test_library_and_lengths_can_be_combined():
    row = rows_of("SparseFlashAttention")[1]
    more = "runtime: {kv_length: [8, 16], library: [cann]}\n"
    _, *added = stored_source([row], more, backend="npu").records
    assert [one.case.attribute("Runtime library") for one in added] == ["cann", "cann"]


def test_communication_time_of_a_profile_is_kept_in_an_uploaded_source(tmp_path):
    path = write_profile(
        tmp_path, "K5", [ProfileRow(duration="2.000"), collective("1.000", "30.000")]
    )
    (parsed,) = load_sources(
        campaign_from_text(
            f"campaign: c\nsources: [{{profile: {path}}}]\nbackend: cpu\n",
            path="c.yaml",
            base=tmp_path,
        ),
        MemoryStore(),
    )
    assert parsed.planned.communication_us == 30.0
    store = MemoryStore()
    store.put(keys.source("c", parsed.planned.sha256), parsed.table)
    reported = f"{parsed.planned.sha256}, communication_us: 30.0"
    (source,) = load_sources(campaign(reported), store)
    assert source.planned.communication_us == 30.0
    assert source.planned.compute_us == parsed.planned.compute_us > 0
    for key, value in (("communication_us", "3"), ("name", "x")):
        with pytest.raises(BadInput, match=rf"c\.yaml:2: sources\[0\]\.{key}: .*cases"):
            campaign_from_text(
                f"campaign: c\nsources: [{{bundled: quickstart, {key}: {value}}}]\nbackend: cpu\n",
                path="c.yaml",
                base=None,
            )


def test_excluded_cases_of_an_uploaded_source_are_reported(tmp_path):
    """A table in the store has only its cases: the campaign records the rest of the source."""
    text = (
        "campaign: c\nbackend: cpu\ndevices: 4\n"
        "sources: [{collectives: {groups: [4], bytes: [6], ranks: 4}}]\n"
    )
    path = campaign_from_text(text, path="c.yaml", base=None)
    (here,) = load_sources(path, MemoryStore())
    assert here.planned.name.startswith("collectives (")
    store = MemoryStore()
    store.put(keys.source("c", here.planned.sha256), here.table)
    name = here.planned.name
    text_file = tmp_path / "c.yaml"
    text_file.write_text(text)
    applied = campaign_object(path, str(text_file), "cpu", Deployment(*"nwcs"), (here,))
    assert yaml.safe_load(applied["data"]["campaign.yaml"])["sources"][0]["name"] == name
    (there,) = load_sources(campaign(f"{here.planned.sha256}, name: {json.dumps(name)}"), store)
    assert there.planned == here.planned
    (unnamed,) = load_sources(campaign(here.planned.sha256), store)
    assert unnamed.planned.name == "cases"


def test_missing_uploaded_cases_are_refused_with_the_command_that_uploads_them():
    with pytest.raises(BadInput, match="opmeter launch"):
        load_sources(campaign("0" * 64), MemoryStore())


def test_table_under_a_wrong_name_is_refused():
    store = MemoryStore()
    store.put(keys.source("c", "0" * 64), write_table(ROWS))
    with pytest.raises(DamagedObject, match=keys.source("c", "0" * 64)):
        load_sources(campaign("0" * 64), store)


def test_name_of_a_table_is_a_hash():
    with raises_naming(BadInput, "c.yaml:2: sources[0].cases: ", "sha256", "64"):
        campaign("latest")


def test_source_reports_its_number_of_skipped_bad_rows(tmp_path):
    write_profile(tmp_path, "K5", [ProfileRow(), ProfileRow(kernel="0")])
    text = f"campaign: c\nsources: [{{profile: {tmp_path}, bad_rows: skip}}]\nbackend: cpu\n"
    (source,) = load_sources(campaign_from_text(text, path="c.yaml", base=tmp_path), MemoryStore())
    assert source.planned.name.startswith("profile (")  # which a plan prints
    assert numbers(source.planned.name) == ["1"]
    strict = text.replace(", bad_rows: skip", "")
    with pytest.raises(BadInput, match=r"\.csv:\d+: .*Type"):
        load_sources(campaign_from_text(strict, path="c.yaml", base=tmp_path), MemoryStore())


CONTEXT = "measure: {cache: context}\n"


@pytest.mark.thorough
def test_context_launches_are_read_from_a_profile_only_on_request(tmp_path):
    folder = write_bundled_profile("quickstart", tmp_path)

    def loaded(more=""):
        text = f"campaign: c\nsources: [{{profile: {folder}}}]\nbackend: cpu\n{more}"
        (source,) = load_sources(campaign_from_text(text, path="c", base=tmp_path), MemoryStore())
        return source

    alone, behind = loaded(), loaded(CONTEXT)
    assert not any(record.before for record in alone.records)
    assert [replace(record, before=()) for record in behind.records] == list(alone.records)
    first, *others = behind.records
    assert all(record.before for record in others)
    # A table made with them reports them without a profile; without a request they are omitted.
    rows = read_table(behind.table)
    again = stored_source(rows, CONTEXT)
    assert (again.table, again.records) == (behind.table, behind.records)
    assert stored_source(rows).records == alone.records
    with pytest.raises(BadInput, match="measure.cache: context"):
        stored_source(read_table(alone.table), CONTEXT)


def test_plan_has_the_completed_context_launches_of_its_cases(tmp_path):
    (before,) = completed_records([as_neighbour(WITH_LENGTHS)])
    add = replace(
        rows_of("Add")[0], before=(as_neighbour(WITH_LENGTHS), as_neighbour(WITHOUT_LENGTHS))
    )
    source = stored_source([add, WITH_LENGTHS], CONTEXT)
    assert source.records[0].before == (before, as_neighbour(WITHOUT_LENGTHS))
    other = (source.planned, (replace(add, before=()),))
    (found,) = [
        one.planned_record
        for one in distinct_cases([other, (source.planned, source.records)])
        if one.record.case_id == add.case_id
    ]
    assert found.before == source.records[0].before


def test_source_without_op_states_has_the_cases_of_the_others(tmp_path):
    places = []
    for name, layout in (("a", "K1"), ("b", "K5")):  # K1 has no OP State
        rows = [ProfileRow(state="static", name="Add_17"), ProfileRow("Mul")]
        places.append(f"{{profile: {write_profile(tmp_path / name, layout, rows)}}}")
    text = f"campaign: c\nsources: [{', '.join(places)}]\nbackend: cpu\n"
    loaded = load_sources(campaign_from_text(text, path="c.yaml", base=tmp_path), MemoryStore())
    one, other = ({record.case_id for record in source.records} for source in loaded)
    assert one == other and len(one) == 2


def tree_source(folder):
    text = f"campaign: c\nsources: [{{tree: {folder}}}]\nbackend: cpu\n"
    (source,) = load_sources(campaign_from_text(text, path="c.yaml", base=folder), MemoryStore())
    return source


def test_a_misspelt_column_of_a_tree_is_refused_with_its_file(tmp_path):
    header = "Input Shapes,%s,Input Formats,Output Shapes,Output Data Types,Output Formats,%s"
    row = '"8,8",FLOAT,ND,"8,8",FLOAT,ND,x'
    file = tmp_path / "Abs.csv"
    for own, other in (("Input Data Types", "Type"), ("Input Data Types", "dtype")):
        file.write_text(f"{header % (own, other)}\n{row}\n")  # of no meaning here
        assert tree_source(tmp_path).planned.rows == 1
    for own, other in (("Input Data Type", "Note"), ("dtype", "Note"), ("Note", "Input DataTypes")):
        file.write_text(f"{header % (own, other)}\n{row}\n")
        with raises_naming(BadInput, "Input Data Types") as refused:
            tree_source(tmp_path)
        assert (refused.value.path, refused.value.line) == (file, 1)


def test_a_pulled_tree_is_a_source_as_long_as_it_is_as_it_was_pulled(tmp_path):
    store, records = MemoryStore(), [add_record(1), add_record(2, kernel="Mul")]
    write_campaign(store, MadePlan([MadeShard("s", records, [answered(records, 5.0)])]))
    merge_plans(store, [("made", 1)], guard=CREATE, author="test")
    pull_version(store, find_head(store), tmp_path)
    (add,) = tmp_path.rglob("Add.csv")
    assert tree_source(add.parent).planned.rows == 2
    pulled = add.read_text()
    add.write_text(pulled.replace("5.000000", "4.000000"))
    with pytest.raises(BadInput) as refused:
        tree_source(add.parent)
    assert refused.value.path == add
    add.unlink()
    with pytest.raises(BadInput) as refused:
        tree_source(add.parent)
    assert refused.value.path == add
