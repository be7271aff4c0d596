"""Sessions of a host: rows with certificates and intervals, below devices of their own."""

import pytest

from collector.codec.errors import BadInput
from collector.database.commits import find_head
from collector.database.snapshot import load_state
from collector.database.verify import find_problems
from collector.model.stack import HOST, backend_of
from collector.store.in_memory import MemoryStore
from collector.worker.complete_results import store_results
from jobs.cli.look_up import chosen_directory
from opmeter import Channel
from opmeter.database import database_now
from tests.unit.collector.database.host_maker import (
    DECODE,
    PASSES,
    STACK,
    host_session,
    publish_sessions,
)

pytestmark = pytest.mark.fast

TIMES = {"pass": 50_000.0, "launch": 50.0, "aclnnMatmul": 40.0, "wait": 0.4}


def test_sessions_give_intervals_and_a_certificate():
    store = MemoryStore()
    publish_sessions(store, *(host_session(TIMES, number) for number in range(5)))
    assert find_problems(store) == []
    database = database_now(store)
    assert database.directories == (STACK.version_path,)
    assert backend_of(STACK.version_path) == HOST
    version = database.directory(STACK.version_path)
    for name, us in TIMES.items():
        answer = version.query_record(DECODE.record(name))
        assert answer.channel in (Channel.MEASURED, Channel.POOLED) and answer.support == 5
        assert answer.value_us == pytest.approx(us, rel=0.01)
        assert answer.low_us < answer.value_us < answer.high_us
        assert answer.warnings == ()


def test_one_session_is_stored_once_with_its_load():
    store = MemoryStore()
    one = host_session(TIMES, 1)
    publish_sessions(store, one)
    assert store_results(store, one, 1, "made")[0] == one.campaign  # what exists stays
    head = find_head(store)
    assert head is not None
    rows = load_state(store, head).measurements.to_pylist()
    assert len(rows) == len(TIMES)
    (first, *_) = rows
    assert (first["timed_by"], first["n_observed"]) == (HOST, str(PASSES))
    assert first["assumes"] == "decode of 1 requests of 512 tokens"
    assert first["runtime"] == "real"


def test_other_load_is_recognised():
    store = MemoryStore()
    publish_sessions(store, host_session(TIMES, 1, waited_us=9_000.0))
    version = database_now(store).directory(STACK.version_path)
    assert "disturbed" in version.query_record(DECODE.record("pass")).warnings


def test_modes_and_models_are_different_cases():
    store = MemoryStore()
    graph = type(DECODE)(DECODE.model, DECODE.layout, "graph")
    publish_sessions(
        store, host_session(TIMES, 1), host_session({"pass": 5000.0, "launch": 160.0}, 2, graph)
    )
    version = database_now(store).directory(STACK.version_path)
    assert version.query_record(graph.record("pass")).value_us == pytest.approx(5000, rel=0.01)
    assert version.query_record(graph.record("aclnnMatmul")).channel is Channel.MISS


def test_host_is_chosen_only_by_name_where_a_device_is():
    device = "ATLAS_800_A3_752T_128G_DIE/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5"
    assert chosen_directory([device, STACK.version_path], None) == device
    assert chosen_directory([device, STACK.version_path], STACK.version_path) == STACK.version_path
    assert chosen_directory([STACK.version_path], None) == STACK.version_path
    with pytest.raises(BadInput):
        chosen_directory([device, device.replace("0.18.0", "0.23.0"), STACK.version_path], None)
