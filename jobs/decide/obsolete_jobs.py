"""Jobs of workers that are of no more use are deleted, with their pods. Pure."""

from collections.abc import Iterator

from jobs.decide.actions import Delete
from jobs.decide.desired import Desired
from jobs.decide.observed import WORKER, JobView, Observed


def obsolete(desired: Desired, observed: Observed) -> Iterator[Delete]:
    """Delete those of older plans, whose commits were merged before this plan was made; those of
    another image or site than the campaign has now; and those that have ended, and whose wave is
    not in the store."""
    for job in observed.jobs:
        if job.component != WORKER or job.deleting:
            continue
        if why := why_obsolete(job, desired):
            yield Delete(job.name, why)
        elif job.state and job.wave not in observed.by_hash:
            yield Delete(job.name, "its wave is not in the store")


def why_obsolete(job: JobView, desired: Desired) -> str:
    """Why a Job is of no more use, whatever became of it; empty where it may be of use."""
    if job.plan_hash != desired.plan_hash:
        return "its plan is not the current plan of the campaign"
    if job.made_of != desired.made_of:
        return "the campaign's image, store or site has changed"
    if desired.queue and not job.queue:
        return "it lacks the label of the site's queue, so Kueue would not start it"
    # Its image was wrong, and whoever launched the campaign again may have mended that.
    if job.reason == "PodFailurePolicy" and job.launched != desired.launched:
        return "the campaign was launched again"
    return ""
