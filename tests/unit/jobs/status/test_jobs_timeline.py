"""The data of the page of a campaign: sessions in time, lost ones, and parts that do not count."""

import json
from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.model import keys
from collector.report.campaign_pages import write_campaign
from collector.report.pages import Folder
from collector.store.opening import open_store
from jobs.cli.report import campaign_report_command
from jobs.status.timeline import CampaignReader, TimelineReader
from jobs.status.why import ClusterView
from tests.browser.campaigns import write_made_campaign

DEVICES, SHARDS_EACH, CASES = 4, 2, 3


@pytest.fixture
def store(tmp_path):
    return open_store(str(write_made_campaign(tmp_path, DEVICES, SHARDS_EACH, CASES)))


def test_every_session_has_its_device_its_times_and_its_cases(store):
    found = TimelineReader(store, "made").read()
    assert len(found.sessions) == DEVICES * SHARDS_EACH
    assert {one.serial for one in found.sessions} == {f"SN{at:04d}" for at in range(DEVICES)}
    assert [one.first_s for one in found.sessions] == sorted(one.first_s for one in found.sessions)
    for one in found.sessions:
        assert len(one.cases) == CASES and one.counts and one.first_s < one.last_s
        begin_s = one.first_s - one.starting_s - one.lost_s
        assert one.usage.wall_s == pytest.approx(one.close_s - begin_s, abs=0.01)
    assert {len(one.readings) for one in found.canaries} == {3}


def test_sessions_without_a_part_and_uncounted_parts_are_listed(store):
    reader = TimelineReader(store, "made")
    (first, *_) = reader.read().sessions
    where = ("made", first.shard)
    store.put(keys.session_cases(*where, "attempt-2", 1), b'["case"]')
    part = store.get(keys.part(*where, first.attempt, first.session))
    other = part.replace(b",attempt-1,", b",attempt-3,")
    store.put(keys.part(*where, "attempt-3", 0), other)
    found = reader.read()
    assert found.without_part == {first.shard: 1}
    assert [(one.attempt, one.counts) for one in found.sessions if one.shard == first.shard] == [
        ("attempt-1", True),
        ("attempt-3", False),
    ]


def test_lost_sessions_are_those_without_a_part_and_passes_of_counters_are_none(tmp_path):
    """`Usage.sessions` also counts a pass for each further group of counters."""
    store = open_store(str(write_made_campaign(tmp_path, 40, 2, 1)))
    sessions = TimelineReader(store, "made").read().sessions
    lost = [one for one in sessions if one.lost_sessions]
    assert 0 < len(lost) < len(sessions)
    for one in sessions:
        assert (one.lost_s > 0) == bool(one.lost_sessions)
    passes = replace(sessions[0], usage=replace(sessions[0].usage, sessions=3), lost_sessions=0)
    assert passes.lost_s == 0.0
    source = CampaignReader(store, "made", ClusterView("made", None)).read()
    with Folder(tmp_path / "page") as folder:
        write_campaign(folder, replace(source, sessions=(*sessions, passes)))
    efficiency = json.loads((tmp_path / "page/index.json").read_text())["efficiency"]
    assert sum(efficiency.values()) == pytest.approx(2 * efficiency["whole"])


def test_a_damaged_part_is_named_and_the_others_are_shown(store, tmp_path):
    (first, *_) = TimelineReader(store, "made").read().sessions
    key = keys.part("made", first.shard, first.attempt, first.session)
    for data in (b"", b"not,a,part\n1,2,3\n", store.get(key)[:-9], b"\xff\0"):
        store.put(key, data)
        found = TimelineReader(store, "made").read()
        assert len(found.sessions) == DEVICES * SHARDS_EACH - 1
        assert len(found.unreadable) == 1 and key in found.unreadable[0]
    campaign_report_command("made", output=tmp_path / "page", root=store.url)
    data = json.loads((tmp_path / "page/index.json").read_text())
    assert len(data["unreadable"]) == 1 and len(data["sessions"]) == DEVICES * SHARDS_EACH - 1


def test_an_unknown_campaign_is_refused(store, tmp_path):
    with pytest.raises(BadInput, match="nightly"):
        campaign_report_command("nightly", output=tmp_path / "page", root=store.url)
    assert not (tmp_path / "page").exists()
