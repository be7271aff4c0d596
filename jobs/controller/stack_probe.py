"""The stack of the machines that will measure, asked of one of their pods."""

from collections.abc import Callable, Sequence

from collector.decoding import decode_object
from collector.errors import BadInput
from collector.plan import Plan
from collector.stack import Stack
from jobs.controller.dry_run import named_probe
from jobs.decide.live_objects import job_view
from jobs.decide.observed import WORKER
from jobs.kube.cluster import Cluster
from jobs.objects.applied_campaign import SELECTOR, Applied
from jobs.objects.deployment import COMPONENT_LABEL, JOB_NAME
from jobs.objects.job_manifest import made_of


def stack_at_work(
    cluster: Cluster, applied: Applied, read: Callable[[], Sequence[Plan]]
) -> Stack | None:
    """The stack that a live wave of these very pods measures for; None where there is none: then
    the plans are not read.

    Whoever takes a campaign over asks this first: its own pods may hold every device that a probe
    would wait for.
    """
    selector = f"{SELECTOR}={applied.campaign.name},{COMPONENT_LABEL}={WORKER}"
    wanted = made_of(applied.site, applied.deployment)
    views = map(job_view, cluster.jobs(selector))
    live = {view.plan_hash for view in views if view.is_live and view.made_of == wanted}
    plans = reversed(read()) if live else ()
    return next((plan.stack for plan in plans if plan.plan_hash in live), None)


def stack_of_workers(cluster: Cluster, applied: Applied) -> Stack | None:
    """The stack that a pod of this site finds; None while the pod has not answered.

    Raises BadInput, with the pod's last words, where it fails; the Job is gone soon after, and then
    made again.
    """
    job = named_probe(applied.campaign, applied.site, applied.deployment)
    name = job["metadata"]["name"]
    live = {view.name: view for view in map(job_view, cluster.jobs(f"{COMPONENT_LABEL}=probe"))}
    if name not in live:
        cluster.create_or_adopt(job)
        return None
    found = live[name]
    if not found.state:
        return None
    pods = cluster.pods(f"{JOB_NAME}={name}")
    pods.sort(key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    log = cluster.log(pods[-1]["metadata"]["name"]) if pods else ""
    why = f"{found.reason}: {found.message}" if found.state != "Complete" else ""
    return _stack_in(log, name, why)


def _stack_in(log: str, name: str, why_failed: str) -> Stack:
    """The last line that may be one: a log holds two streams, in whatever order they came."""
    lines = log.strip().splitlines()
    last = lines[-1] if lines else f"it printed no output; {why_failed}".rstrip(";: ")
    if why_failed:
        raise BadInput(
            f"Job {name} detected no stack on a worker's node: {last[:500]}; "
            "it runs again in a few minutes"
        )
    last = next((line for line in reversed(lines) if line.startswith("{")), last)
    where = f"Job {name} printed no stack: {last[:300]}"
    return decode_object(Stack, last.encode(), what="a stack", key=where)
