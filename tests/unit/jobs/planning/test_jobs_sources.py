"""Sources on their way into a plan: cases are told in full before they are planned."""

import json

import pytest
import yaml

from collector import keys
from collector.canonical import sha256_hex
from collector.errors import BadInput
from collector.record import write_table
from collector.store.memory import MemoryStore
from jobs.campaign.campaign_file import campaign_from_text
from jobs.controller.launching import campaign_object
from jobs.objects.deployment import Deployment
from jobs.planning.sources import completed_records, load_sources
from tests.fixtures.op_rows import rows_of
from tests.fixtures.profiles.variants import Told, collective, write_profile

pytestmark = pytest.mark.fast

ROWS = rows_of("FusedInferAttentionScore")[:2]


def campaign(cases):
    text = f"campaign: c\nsources: [{{cases: {cases}}}]\nbackend: cpu\n"
    return campaign_from_text(text, path="c.yaml", base=None)


def test_cases_parsed_elsewhere_are_read_from_the_store_and_told_in_full():
    store, table = MemoryStore(), write_table(ROWS)
    store.put(keys.source("c", sha256_hex(table)), table)
    (source,) = load_sources(campaign(sha256_hex(table)), store)
    assert source.table == table and source.planned.rows == len(ROWS)
    for record in source.records:
        assert record.case.attribute("Runtime num_heads")
        assert completed_records([record]) == (record,)


def test_communication_is_told_by_a_profile_and_by_who_parsed_it_elsewhere(tmp_path):
    path = write_profile(tmp_path, "K5", [Told(duration="2.000"), collective("1.000", "30.000")])
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
    told = f"{parsed.planned.sha256}, communication_us: 30.0"
    (source,) = load_sources(campaign(told), store)
    assert source.planned.communication_us == 30.0
    for key in ("communication_us: 3", "name: x"):
        with pytest.raises(BadInput, match="only of cases that were parsed elsewhere"):
            campaign_from_text(
                f"campaign: c\nsources: [{{bundled: quickstart, {key}}}]\nbackend: cpu\n",
                path="c.yaml",
                base=None,
            )


def test_what_could_not_be_a_case_is_told_where_the_cases_are_planned(tmp_path):
    """A table in the store tells of its cases only: the campaign says what else there was."""
    text = (
        "campaign: c\nbackend: cpu\ndevices: 4\n"
        "sources: [{collectives: {groups: [4], bytes: [6], ranks: 4}}]\n"
    )
    path = campaign_from_text(text, path="c.yaml", base=None)
    (here,) = load_sources(path, MemoryStore())
    assert "left out" in here.planned.name
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


def test_cases_that_nobody_uploaded_are_refused_with_the_command_that_does():
    with pytest.raises(BadInput, match="opmeter launch"):
        load_sources(campaign("0" * 64), MemoryStore())


def test_a_table_under_a_wrong_name_is_refused():
    store = MemoryStore()
    store.put(keys.source("c", "0" * 64), write_table(ROWS))
    with pytest.raises(BadInput, match="not what its name says"):
        load_sources(campaign("0" * 64), store)


def test_the_name_of_a_table_is_a_hash():
    with pytest.raises(BadInput, match="c.yaml:2: .*64 hex digits"):
        campaign("latest")
