"""Profilers of serving instances are started together, or none remains running."""

import pytest

from collector.capture.serving import START, STOP, capture_instances
from collector.codec.errors import BadInput
from tests.unit.collector.capture.instances import instance

pytestmark = pytest.mark.fast


def test_capture_starts_and_stops_the_profilers_of_all_instances() -> None:
    with instance() as (first, one), instance() as (second, two):
        waited: list[float] = []

        def wait(seconds: float) -> None:
            waited.append(seconds)
            assert [path for path, _ in (*one, *two)] == [START, START]

        found = capture_instances([first, second, first + "/"], 3.0, limit_s=9, wait=wait)
        assert waited == [3.0] and not any(answer.fault for answer in found)
        assert [path for path, _ in one] == [path for path, _ in two] == [START, STOP]


def test_capture_stops_started_instances_if_another_is_down_or_has_no_profiler() -> None:
    with instance() as (good, got), instance(404) as (bare, _), instance() as (down, _):
        pass
    with instance() as (good, got), instance(404) as (bare, _):
        found = capture_instances(
            [good, bare, down], 3.0, limit_s=9, wait=lambda _: pytest.fail("was recorded")
        )
        faults = {(answer.url, answer.path): answer.fault for answer in found}
        assert faults[good, START] == faults[good, STOP] == ""
        assert "--profiler-config.profiler=torch" in faults[bare, START]
        assert "no answer" in faults[down, START]
        assert [path for path, _ in got] == [START, STOP]


def test_interrupted_capture_leaves_no_profiler_running() -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with instance() as (first, one), instance() as (second, two):
        with pytest.raises(KeyboardInterrupt):
            capture_instances([first, second], 3.0, limit_s=9, wait=interrupted)
        assert [path for path, _ in one] == [path for path, _ in two] == [START, STOP]


def test_sglang_is_requested_to_record_shapes_without_stacks() -> None:
    with instance() as (url, got):
        capture_instances([url], 0.0, limit_s=9, wait=lambda _: None, is_sglang=True)
    assert b'"record_shapes": true' in got[0][1] and b'"with_stack": false' in got[0][1]


def test_invalid_instance_address_is_refused() -> None:
    for url in ("ftp://host", "http://", "http://h:abc", "http://h:999999", "http://bad host/"):
        with pytest.raises(BadInput):
            capture_instances([url], 1.0, limit_s=1.0)
