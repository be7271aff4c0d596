"""The stack of a worker's node, as it is read from the log of a pod."""

import json

import pytest

from collector.codec.errors import BadInput
from collector.model.stack import Stack
from jobs.controller.performer import stack_at_work, stack_of_workers
from jobs.objects.applied_campaign import applied_from, config_map
from jobs.objects.deployment import Deployment
from tests.unit.jobs.printed import raises_naming

pytestmark = pytest.mark.fast

STACK = Stack(device="CPU_test_2t", torch="2.13.0+cpu")
LINE = json.dumps(STACK.as_json())
TEXT = "campaign: small\nsources: [{bundled: quickstart}]\nbackend: cpu\n"


class OneProbe:
    """A cluster whose one Job has ended, with one pod and its log."""

    namespace = "bench"

    def __init__(self, log, state="Complete"):
        self._log, self._state, self._job = log, state, None
        self.status = {}

    def jobs(self, selector):
        if self._job is None:
            return []
        how = {"type": self._state, "status": "True"}
        how |= {"reason": "BackoffLimitExceeded", "message": "it failed thrice"}
        ended = {"conditions": [how]}
        return [self._job | {"status": ended}]

    def create_or_adopt(self, job):
        self._job = job | {"metadata": job["metadata"] | {"uid": "1"}}

    def pods(self, selector):
        metadata = {"name": "probe-x", "uid": "2", "creationTimestamp": "2026-01-01T00:00:00Z"}
        return [{"metadata": metadata, "spec": {"nodeName": "n1"}, "status": self.status}]

    def log(self, pod):
        assert self.status.get("phase") != "Failed", "the API server returns an error"
        return self._log


def small():
    deployment = Deployment("bench", "here/collector:1", "here/controller:1", "memory:")
    return applied_from(config_map("small", TEXT, {"site": "cpu"}, deployment))


def stack_of(log, state="Complete"):
    cluster, applied = OneProbe(log, state), small()
    assert stack_of_workers(cluster, applied) is None  # the Job is created first
    return stack_of_workers(cluster, applied)


def test_no_plan_is_read_without_a_running_wave():
    def read():
        raise AssertionError("a large plan takes a second")

    assert stack_at_work(OneProbe(""), small(), read) is None


@pytest.mark.parametrize(
    "log", [f"store s3://x: well\n{LINE}\n", f"{LINE}\nstore s3://x: well\n", LINE]
)
def test_output_streams_of_a_pod_may_be_interleaved(log):
    assert stack_of(log) == STACK


def test_failed_probe_is_reported_with_its_output():
    with pytest.raises(BadInput, match="no torch here"):
        stack_of("store s3://x: well\nno torch here\n", "Failed")


def test_failed_probe_without_output_is_reported_with_its_job_status():
    with pytest.raises(BadInput, match="BackoffLimitExceeded.*it failed thrice"):
        stack_of("", "Failed")


def test_pod_refused_by_a_device_plugin_is_reported_with_a_hint():
    cluster = OneProbe("", "Failed")
    error = "Allocate failed due to rpc error: code = Unknown desc = not get valid pod"
    cluster.status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": error}
    assert stack_of_workers(cluster, small()) is None
    with raises_naming(BadInput, "n1", error, "site.scheduler: volcano", "-volcanoType=false"):
        stack_of_workers(cluster, small())


@pytest.mark.parametrize("log", ["", "store s3://x: well", '{"device": '])
def test_probe_that_prints_no_stack_is_refused(log):
    with pytest.raises(BadInput, match="^Job opmeter-probe-.*stack"):
        stack_of(log)
