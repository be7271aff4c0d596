"""The stack of the machines that will measure, asked of one of their pods."""

import json
import logging

from collector.canonical import short_hash
from collector.errors import BadInput
from collector.stack import Stack
from jobs.applied import Applied
from jobs.cluster import Cluster
from jobs.live import job_view
from jobs.podspec import SPEC_HASH, probe_job

logger = logging.getLogger(__name__)


def stack_of_workers(cluster: Cluster, applied: Applied) -> Stack | None:
    """The stack that a pod of this site finds; None while the pod has not answered.

    Raises BadInput, with the pod's last words, where it fails.
    """
    job = probe_job(applied.site, applied.deployment, "probe")
    kept = short_hash([applied.campaign.name, job["metadata"]["annotations"][SPEC_HASH]], 12)
    job["metadata"]["name"] = name = f"opmeter-probe-{kept}"
    cluster.create_or_adopt(job)
    selector = f"batch.kubernetes.io/job-name={name}"
    live = [job_view(found) for found in cluster.jobs("app.kubernetes.io/component=probe")]
    state = next((view.state for view in live if view.name == name), "")
    if not state:
        return None
    pods = sorted(cluster.pods(selector), key=lambda pod: pod["metadata"]["creationTimestamp"])
    log = cluster.log(pods[-1]["metadata"]["name"]) if pods else ""
    return _stack_in(log, name, complete=state == "Complete")


def _stack_in(log: str, name: str, *, complete: bool) -> Stack:
    lines = log.strip().splitlines()
    if complete and lines:
        try:
            return Stack.from_json(json.loads(lines[-1]))
        except ValueError as error:
            raise BadInput(f"Job {name} printed no stack: {lines[-1][:300]}") from error
    last = lines[-1] if lines else "it printed nothing"
    raise BadInput(f"Job {name} found no stack on a worker's node: {last[:500]}")
