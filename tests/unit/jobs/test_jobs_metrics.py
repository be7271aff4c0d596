"""What a controller says to Prometheus and to log collectors."""

import json
import logging
import urllib.request
from dataclasses import replace

import pytest

from collector.measurement import Outcome
from jobs.logformat import JsonFormatter
from jobs.metrics import Metrics
from jobs.nodes import Strike, Strikes
from tests.unit.jobs.test_jobs_decide import PlayedCluster, desired

pytestmark = pytest.mark.fast


def told():
    cluster = PlayedCluster(desired(3))
    cluster.committed["s000"] = Outcome.OK
    observed = replace(cluster.observe(), strikes=Strikes(frozenset({Strike("n1", "s001")})))
    metrics = Metrics()
    metrics.campaign("c", cluster.wanted.plan, observed)
    metrics.looked("c", 0.25, 7)
    metrics.set("opmeter_is_leader", True)
    return metrics


def test_numbers_are_told_in_the_text_format():
    lines = told().text().splitlines()
    assert 'opmeter_shards{campaign="c",state="committed"} 1' in lines
    assert 'opmeter_shards{campaign="c",state="open"} 2' in lines
    assert 'opmeter_node_strikes{campaign="c",node="n1"} 1' in lines
    assert "# TYPE opmeter_api_requests_total counter" in lines
    assert "opmeter_is_leader 1" in lines
    types = [line for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))


def test_a_campaign_that_is_gone_is_told_no_more():
    metrics = told()
    metrics.forget("c")
    assert 'campaign="c"' not in metrics.text() and "opmeter_is_leader" in metrics.text()


def test_a_label_cannot_break_its_line():
    metrics = Metrics()
    metrics.set("x", 1, {"a": 'b"\n\\'})
    assert 'x{a="b\\"\\n\\\\"} 1' in metrics.text()


def test_a_scrape_is_answered():
    server = told().serve(0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert b"opmeter_shards" in answer.read()
    finally:
        server.shutdown()
        server.server_close()


def test_a_log_line_is_one_json_object():
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        information = (type(error), error, error.__traceback__)
    record = logging.LogRecord("jobs.x", logging.INFO, "f", 1, "a %s", ("b",), information)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    said = json.loads(line)
    assert said["message"] == "a b" and "ValueError: two" in said["traceback"]
