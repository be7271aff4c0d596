"""`opmeter capture serve` finds the instances of a selector by their pods."""

import pytest
from typer.testing import CliRunner

from collector.codec.errors import BadInput
from collector.store import open_store
from jobs.cli.app import app
from jobs.kube.cluster import Cluster
from jobs.objects.serving_pods import serving_urls
from tests.unit.collector.capture.instances import instance
from tests.unit.jobs.fake_cluster import FakeCluster

pytestmark = pytest.mark.fast


def pod(name, ip="127.0.0.1", phase="Running", ports=(8000,), **labels):
    return {
        "metadata": {"name": name, "namespace": "bench", "labels": labels},
        "spec": {"containers": [{"ports": [{"containerPort": port} for port in ports]}]},
        "status": {"phase": phase, "podIP": ip},
    }


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    simulated = FakeCluster(open_store(f"file://{tmp_path}"))
    monkeypatch.setattr(Cluster, "connect", classmethod(lambda cls, namespace=None: simulated))
    return simulated


def serve(*options):
    command = ["capture", "serve", "--selector", "app=vllm", "--seconds", "0.1", *options]
    return CliRunner().invoke(app, command)


def test_the_pods_of_a_selector_are_started_and_stopped(cluster):
    with instance() as (url, got):
        port = int(url.rpartition(":")[2])
        cluster.foreign = [
            pod("vllm-0", ports=(port,), app="vllm"),
            pod("vllm-old", phase="Failed", app="vllm"),
            pod("proxy-0", ports=(1,), app="proxy"),
        ]
        done = serve()
    assert done.exit_code == 0, done.output
    assert [path for path, _ in got] == ["/start_profile", "/stop_profile"]
    assert "vllm-0" in done.output and "proxy-0" not in done.output


def test_an_instance_without_a_profiler_names_the_missing_option(cluster):
    with instance(404) as (url, _):
        cluster.foreign = [pod("vllm-0", app="vllm")]
        done = serve("--port", url.rpartition(":")[2])
    assert done.exit_code == 1 and "--profiler-config.profiler=torch" in done.output


def test_a_selector_without_running_pods_is_refused(cluster):
    for pods in ([], [pod("vllm-0", phase="Succeeded", app="vllm")]):
        cluster.foreign = pods
        assert isinstance(serve().exception, BadInput)
    both = CliRunner().invoke(app, ["capture", "serve", "http://a:1", "--selector", "app=vllm"])
    neither = CliRunner().invoke(app, ["capture", "serve"])
    assert isinstance(both.exception, BadInput) and isinstance(neither.exception, BadInput)


def test_addresses_come_from_pods_that_run():
    deleted = pod("c")
    deleted["metadata"]["deletionTimestamp"] = "2026-11-27T00:00:00Z"
    found = serving_urls([pod("a"), pod("b", ip="fd00::1", ports=(9, 9)), deleted])
    assert found == {"a": "http://127.0.0.1:8000", "b": "http://[fd00::1]:9"}
    assert serving_urls([pod("a", ports=())], 7) == {"a": "http://127.0.0.1:7"}
    for refused in (
        pod("a", phase="Pending"),
        pod("a", ports=(1, 2)),
        pod("a", ports=()),
        pod("a", ip="host/../x"),
    ):
        with pytest.raises(BadInput):
            serving_urls([refused])
