"""The collectives of a run's trace, for any length and other contents."""

import json
import os

import pytest

from collector.codec.errors import BadInput
from collector.profiles.transfers import CallParameters, call_parameters, transfer_events
from tests.unit.collector.naming import naming

NAME = "hcom_allReduce__586_0_1"


def event(name=NAME, **args):
    return {"ph": "X", "name": name, "ts": "17.5", "args": args}


@pytest.fixture
def reported(tmp_path):
    """Return the call parameters of a trace of some events, or of a text."""

    def written(content):
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "trace_view.json").write_text(text)
        return call_parameters(tmp_path)

    return written


def test_run_without_a_trace_has_no_call_parameters(tmp_path):
    assert call_parameters(tmp_path) == {}


def test_collectives_among_other_events_are_found(reported):
    call = event("aten::empty", **{"Call stack": "a;\r\n[b], {c} é"})
    requested = event(data_type="FP32", count=4097000, alg_type="MESH-RING")
    newer = event("hcom_allGather__12_3_1", data_type="BFP16", count=7, rank_size=16)
    launched = event("AscendCL@hcom_allReduce_", id="hcom_allReduce_")
    assert reported([call, launched, requested, newer]) == {
        NAME: CallParameters(4097000, "FP32"),
        "hcom_allGather__12_3_1": CallParameters(7, "BFP16", 16),
    }
    assert reported(json.dumps([requested], indent=2) + "\n") == {
        NAME: CallParameters(4097000, "FP32")
    }
    assert reported(" [ ] ") == {}


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"count": "N/A", "data_type": "N/A"},
        {"count": 0, "data_type": "FP32"},
        {"count": (1 << 64) - 1, "data_type": "FP32"},
        {"count": 5, "data_type": "RESERVED"},
    ],
)
def test_incomplete_call_parameters_are_ignored(reported, args):
    assert reported([event(**args)]) == {}


def test_contradicting_parameters_of_one_name_are_ignored(reported):
    one, other = event(data_type="FP32", count=4), event(data_type="FP32", count=8)
    assert reported([one, one]) == {NAME: CallParameters(4, "FP32")}
    assert reported([one, other]) == {}


def test_trace_read_in_pieces_gives_the_same_events(tmp_path):
    filler = "é" * 700_000  # characters of two bytes, across the ends of pieces of one MiB
    events = [
        event(f"hcom_allReduce__1_{at}_1", x=filler, count=at + 1, data_type="FP16")
        for at in range(4)
    ]
    (tmp_path / "trace_view.json").write_text(json.dumps(events, ensure_ascii=False))
    assert [requested.elements for requested in call_parameters(tmp_path).values()] == [1, 2, 3, 4]


ONE = json.dumps(event())


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", ("list",)),
        ("{}", ("list",)),
        (f"[{ONE}, 3]", ("event 2", "object")),
        (f"[{ONE},]", ("event 2", "object")),
        (f"[{ONE}, {ONE[:-5]}", ("event 2", "JSON")),
        (f"[{ONE}, {{'a'}}]", ("event 2", "JSON")),
        (f"[{ONE}", ("event 1", "list", "]")),
        (f"[{ONE}] x", ("event 1", "list")),
        ('[{"a": ' + "[" * 100_000 + "]", ("event 1", "nested")),
        ('[{"a": ' + "7" * 5_000 + "}]", ("event 1", "JSON")),
        ([{"name": NAME, "args": [1]}], ("event 1", NAME, "'args'")),
        ([event(), event(count="4", data_type="FP32")], ("event 2", "'count'")),
        ([event(count=True, data_type="FP32")], ("event 1", "'count'")),
        ([event(count=-1, data_type="FP32")], ("event 1", "'count'")),
        ([event(count=4, data_type=4)], ("event 1", "'data_type'")),
        ([event(count=4, data_type="FP32", rank_size=1.5)], ("event 1", "'rank_size'")),
    ],
)
def test_malformed_trace_is_refused_with_its_event(reported, content, named):
    with pytest.raises(BadInput, match=naming("trace_view.json:", *named)):
        reported(content)


def test_unreadable_trace_is_refused_by_name(tmp_path):
    path = tmp_path / "trace_view.json"
    path.write_bytes(b"[" + ONE.encode() + b', {"name": "\xff"}]')
    with pytest.raises(BadInput, match=naming("trace_view.json:", "UTF-8")):
        list(transfer_events(path))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BadInput, match=naming("trace_view.json:")):
        list(transfer_events(path))


def test_event_without_an_end_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("collector.profiles.transfers._LONGEST_EVENT", 1 << 16)
    path = tmp_path / "trace_view.json"
    path.write_text('[{"a": "' + "x" * (5 << 20))
    with pytest.raises(BadInput, match=naming("trace_view.json:", "event 1", "JSON")):
        list(transfer_events(path))
