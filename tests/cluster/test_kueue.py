"""A gang in the queue of a real Kueue; other actions of Kueue on Jobs: long/test_long_kueue.py.

It is built from its Go modules and run with its own webhooks and permissions, or it is the one of
the cluster that KUBECONFIG names. tests/unit/jobs/decide/test_jobs_queued_waves.py simulates it on
machines without either.
"""

from pathlib import Path

import pytest

from tests.cluster.drill import WORKERS, Drill
from tests.cluster.gangs import as_gang
from tests.cluster.queues import Queue
from tests.cluster.shipped import refusals

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]


def test_gang_is_admitted_completely_or_not_at_all(queue: Queue, drill: Drill, tmp_path: Path):
    parts = ["base", "campaigns/quickstart"]
    shipped = {"resources": parts, "components": ["components/kueue"]}
    assert refusals(drill.namespace, tmp_path / "kueue", {"components/kueue": shipped}) == {}
    as_gang(drill)
    drill.site += "kueue_queue: team\n"
    queue.make("team", cpus=1.2)
    drill.launch()
    drill.wait("its Job waits", lambda: len(queue.jobs()) == 1)
    drill.observe(10)
    (job,) = queue.jobs()
    assert job["spec"]["suspend"] and job["spec"]["parallelism"] == 2
    assert drill.namespace.pods(WORKERS) == []
    queue.change(cpus=2.0)
    drill.finish()
    assert set(drill.outcomes().values()) == {"ok"}
    assert len(drill.waves()) == 1
