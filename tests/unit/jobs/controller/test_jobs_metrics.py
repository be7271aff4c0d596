"""The metrics of a controller, and its lines for log collectors."""

import json
import logging
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import promql_parser
import pytest
import yaml
from prometheus_client import generate_latest

from collector.model.measurement import Outcome
from jobs.cli.cluster import JsonFormatter
from jobs.controller.controller import Controller
from jobs.controller.loop import run_forever
from jobs.controller.metrics import Metrics, WorkDone
from jobs.decide.observed import WORKER, JobView, Observed, PodView
from jobs.kube.errors import ClusterAway
from jobs.kube.leader_election import STUCK_S, Election
from jobs.objects.site import load_site
from jobs.objects.waves import NodeFailure, NodeFailures
from tests.unit.jobs.decide.test_jobs_decision import SimulatedCluster, desired
from tests.unit.jobs.fake_cluster import FakeCluster
from tests.waiting import wait_for

pytestmark = pytest.mark.fast


def prepared():
    cluster = SimulatedCluster(desired(3))
    cluster.committed["s000"] = Outcome.OK
    observed = replace(
        cluster.observe(), node_failures=NodeFailures(frozenset({NodeFailure("n1", "s001")}))
    )
    metrics = Metrics()
    metrics.campaign("c", cluster.expected.plan, observed, load_site("cpu"))
    metrics.reconciled("c", 0.25, 7)
    metrics.set("opmeter_is_leader", True)
    return metrics


def sample(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_metrics_have_the_prometheus_text_format():
    lines = generate_latest(prepared().registry).decode().splitlines()
    assert 'opmeter_shards{campaign="c",state="committed"} 1.0' in lines
    assert 'opmeter_shards{campaign="c",state="open"} 2.0' in lines
    assert 'opmeter_node_failures{campaign="c",node="n1"} 1.0' in lines
    assert "# TYPE opmeter_api_requests_total counter" in lines
    assert "# TYPE opmeter_eta_seconds gauge" in lines
    assert "opmeter_is_leader 1.0" in lines
    assert not any("_created" in line for line in lines)


def test_repeated_cases_are_not_counted_twice():
    cluster = SimulatedCluster(desired(3))
    cluster.committed["s000"] = Outcome.OK
    plan, metrics = cluster.expected.plan, Metrics()
    last = plan.shards[-1].cases
    plan = replace(plan, forecast=replace(plan.forecast, repeats=last))
    metrics.campaign("c", plan, cluster.observe(), load_site("cpu"))
    is_open = {"campaign": "c", "state": "open"}
    assert sample(metrics, "opmeter_cases", **is_open) == plan.shards[1].cases
    assert sample(metrics, "opmeter_repeats", **is_open) == last
    assert sample(metrics, "opmeter_repeats", campaign="c", state="committed") == 0


def job(uid, *succeeded):
    return JobView(uid, uid, WORKER, "w", "h", 9, 4, False, 2, succeeded=frozenset(succeeded))


def pod(uid, phase, code=None):
    return PodView(uid, uid, "j", 0, "n1", phase, exit_code=code)


def test_succeeded_pods_are_counted_though_they_are_not_listed():
    plan = desired(3).plan
    metrics = Metrics()
    jobs = (job("a", 0, 1, 2), replace(job("m", 0), component="merge"))
    observed = Observed(frozenset(), (), jobs=jobs, pods=(pod("p", "Running"),))
    metrics.campaign("c", plan, observed, load_site("cpu"))
    assert sample(metrics, "opmeter_pods", campaign="c", phase="Succeeded") == 3
    assert sample(metrics, "opmeter_pods", campaign="c", phase="Running") == 1
    assert sample(metrics, "opmeter_attempts_total", campaign="c", exit="0") == 3


def test_each_ended_pod_is_one_attempt_by_its_exit_code():
    work, site = WorkDone(lambda: 0.0), load_site("cpu")
    first = (pod("a", "Failed", 44), pod("b", "Failed"), pod("c", "Running"))
    for jobs in ((job("j", 1),), (job("j", 1),), (job("j", 1, 2), job("k", 0))):
        work.count(Observed(frozenset(), (), jobs=jobs, pods=first), site)
    assert work.attempts == {"0": 3, "44": 1, "none": 1}
    work.count(Observed(frozenset(), (), pods=(pod("c", "Failed", 44),)), site)
    assert work.attempts == {"0": 3, "44": 2, "none": 1}


def test_devices_are_counted_while_held_and_the_eta_while_measuring():
    now = [100.0]
    node = replace(load_site("a2-800t"), shape="node", measure_concurrency=2)  # 8 devices, in pairs
    plan = replace(desired(8).plan, devices=16)  # 10 s each
    work = WorkDone(lambda: now[0])
    nothing = Observed(frozenset(), ())
    work.count(nothing, node)
    assert work.eta_s(plan, nothing, node) == 10.0  # the longest of them
    runs = replace(nothing, pods=(pod("a", "Running"),))
    now[0] += 50.0
    work.count(runs, node)
    assert work.device_s == 0.0  # the start time is unknown
    assert work.eta_s(plan, runs, node) == 8 * 10.0 / 2
    now[0] += 60.0
    done = replace(runs, committed=frozenset(f"s{n:03d}" for n in range(4)))
    work.count(done, node)
    assert work.device_s == 8 * 60.0
    # 120 s on two devices for four shards and two halves: 2.4 times the forecast
    assert work.eta_s(plan, done, node) == pytest.approx(2.4 * 4 * 10.0 / 2)


def test_deleted_campaign_has_no_metrics():
    metrics = prepared()
    metrics.forget("c")
    names = {metric.name for metric in metrics.collect()}
    assert names == {"opmeter_api_requests", "opmeter_idle_seconds", "opmeter_is_leader"}


def test_metrics_are_served_over_http():
    server = prepared().serve(0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert b"opmeter_shards" in answer.read()
    finally:
        server.shutdown()
        server.server_close()


class Reconciling:
    """The loop of a controller in its thread, and its liveness probe. The clock of its steps is set
    by hand; `before` is called before every request to the API server, after the first one."""

    def __init__(self, before):
        self.now, self.ended = 0.0, threading.Event()
        cluster = FakeCluster(None)
        self.election = Election(cluster, "one", clock=lambda: self.now)
        assert self.election.hold()
        cluster.before = before
        controller = Controller(cluster, lambda applied: None)
        loop = (controller, self.election.hold, self.ended)
        self.thread = threading.Thread(target=run_forever, args=loop, kwargs={"interval_s": 0})
        self.server = Metrics(lambda: self.election.idle_s).serve(0)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *raised):
        self.ended.set()
        self.thread.join()
        self.server.shutdown()
        self.server.server_close()

    def probe(self):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.server.server_port}/livez").close()
        except urllib.error.HTTPError as refused:
            return refused.code
        return 200


def test_hung_loop_fails_the_liveness_probe():
    hangs, goes_on = threading.Event(), threading.Event()

    def before(number, name):
        if name == "config_maps":
            hangs.set()
            goes_on.wait()

    with Reconciling(before) as loop:
        assert hangs.wait(60)
        loop.now += STUCK_S - 1  # it may be planning
        assert loop.probe() == 200
        loop.now += 2
        assert loop.probe() == 503
        goes_on.set()
        wait_for(lambda: loop.probe() == 200)


def test_loop_that_cannot_reach_the_api_server_passes_the_liveness_probe():
    def before(number, name):
        raise ClusterAway("connection refused")

    with Reconciling(before) as loop:
        for _ in range(3):  # while it still leads, and after that
            loop.now += STUCK_S + 1
            wait_for(lambda: loop.election.idle_s < STUCK_S)
            assert loop.probe() == 200


def test_log_line_is_one_json_object():
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        information = (type(error), error, error.__traceback__)
    record = logging.LogRecord("jobs.x", logging.INFO, "f", 1, "a %s", ("b",), information)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    message = json.loads(line)
    assert message["message"] == "a b" and "ValueError: two" in message["traceback"]


def test_a_node_that_no_longer_counts_is_no_longer_served():
    cluster, metrics = SimulatedCluster(desired(3)), prepared()
    assert sample(metrics, "opmeter_node_failures", campaign="c", node="n1") == 1
    metrics.campaign("c", cluster.expected.plan, cluster.observe(), load_site("cpu"))
    assert sample(metrics, "opmeter_node_failures", campaign="c", node="n1") is None


# The dashboard and the alert rules that the component `metrics` ships.

COMPONENT = Path(__file__).parents[4] / "manifests" / "components" / "metrics"


def shipped_expressions():
    """Yield the place and the text of each expression of the dashboard and of the alert rules."""
    board = json.loads((COMPONENT / "dashboard.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    rules = yaml.safe_load((COMPONENT / "alerts.yaml").read_text())
    for group in rules["spec"]["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def selectors_of(expression):
    """Return the metrics of an expression with the labels that it matches, by Prometheus' grammar;
    the variables of a dashboard are texts."""
    found = []
    promql_parser.walk(
        promql_parser.parse(expression),
        lambda one: found.append(one) if isinstance(one, promql_parser.VectorSelector) else None,
    )
    return [(one.name, [m.name for m in one.matchers.matchers]) for one in found]


def test_dashboard_and_alerts_name_only_metrics_and_labels_that_the_controller_serves():
    families = {}
    for family in prepared().registry.collect():
        for sample_ in family.samples:
            families.setdefault(sample_.name, set()).update(sample_.labels)
    families["opmeter_attempts_total"] = {"campaign", "exit"}  # no pod has ended here
    used = set()
    for place, expression in shipped_expressions():
        selectors = selectors_of(expression)
        assert selectors, place
        for name, labels in selectors:
            assert name in families and set(labels) <= families[name], (place, name, labels)
            used.add(name)
    assert used == set(families)


def test_dashboard_has_a_unit_for_each_panel_and_panels_do_not_overlap():
    board = json.loads((COMPONENT / "dashboard.json").read_text())
    places = set()
    for panel in board["panels"]:
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        at = panel["gridPos"]
        own = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not own & places and at["x"] + at["w"] <= 24, panel["title"]
        places |= own
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
