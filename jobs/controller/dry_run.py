"""The objects that a campaign begins with, before anything is created: for `launch --dry-run`."""

from collector.canonical import short_hash
from collector.store.base import Store
from jobs.campaign.campaign_file import Campaign
from jobs.campaign.target import resolve_stack_of
from jobs.decide.desired import Desired
from jobs.decide.observed import Observed
from jobs.decide.wave_choice import next_gang_wave, next_wave
from jobs.objects.deployment import Deployment, Manifest
from jobs.objects.gangs import check_gangs, wide_gangs
from jobs.objects.job_manifest import SPEC_HASH, probe_job, worker_job
from jobs.objects.kueue import QUEUE
from jobs.objects.site import Site
from jobs.planning.lifecycle import Continue, Finished, NewPlan
from jobs.planning.situation import choose_step, next_round, survey


def first_objects(
    campaign: Campaign, site: Site, deployment: Deployment, store: Store
) -> list[Manifest]:
    """The Job of the first wave; that of the probe, where the campaign leaves its stack open, so
    that no plan can be made yet; none where nothing is left to measure. Reads the store, and
    writes nothing. Raises BadInput for gangs that no pod of the site can hold."""
    stack = resolve_stack_of(campaign, lambda: None)
    if stack is None:
        return [named_probe(campaign, site, deployment)]
    situation = survey(campaign, store, stack)
    match choose_step(situation, again=False, retry_failed=False):
        case Finished():
            return []
        case NewPlan() as step:
            plan = next_round(situation, step, again=False, retry_failed=False).plan
        case Continue(plan):
            pass
    check_gangs(plan, site)
    todo = [s.shard_id for s in plan.shards if s.shard_id not in situation.committed]
    if not todo:
        return []
    workers = max(1, campaign.devices // site.devices_per_worker)
    desired = Desired(
        plan, workers, site.devices_per_worker, wide=wide_gangs(plan, site), at_once=site.at_once
    )
    nothing = Observed(frozenset(), ())
    wave = next_gang_wave(desired, nothing, todo, (), workers)
    wave = wave or next_wave(desired, nothing, todo, ())
    if wave is None:
        return []
    # Its plan and its wave are not written yet: a pod that came first would find neither, and fail
    # the Job. A controller writes them and lets it go. It names no queue, which would do so before.
    job = worker_job(wave, plan, site, deployment, cap=workers, suspend=True)
    job["metadata"]["labels"].pop(QUEUE, None)
    return [job]


def named_probe(campaign: Campaign, site: Site, deployment: Deployment) -> Manifest:
    """The Job that asks for the stack: its name tells of whom, and by what."""
    device = campaign.target.device if campaign.target else None
    job = probe_job(site, deployment, "probe", device or "")
    kept = short_hash([campaign.name, job["metadata"]["annotations"][SPEC_HASH]], 12)
    job["metadata"]["name"] = f"opmeter-probe-{kept}"
    return job
