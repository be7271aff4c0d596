"""What a controller does before the pods of a campaign run, without a cluster:

    python -P first_waves.py CAMPAIGN STORE STACK

STACK is what `opmeter stack` printed in a pod.

It writes the plan and a wave of each kind into the store, and prints the Jobs that would be
created as JSON: those of the workers, then that of the merge. The Python of a product's environment
runs it, with that product's modules alone.
"""

import json
import sys
from pathlib import Path

from collector.database.merge import CREATE
from collector.model import keys
from collector.model.stack import Stack
from collector.store import open_store
from jobs.campaign.campaign_file import RunOptions, campaign_from_text
from jobs.decide.observed import Desired, Observed
from jobs.decide.wave_choice import next_gang_wave, next_wave
from jobs.objects.deployment import Deployment
from jobs.objects.gangs import check_gangs, wide_gangs
from jobs.objects.job_manifest import merge_job, worker_job
from jobs.objects.site import load_site
from jobs.objects.waves import wave_to_json
from jobs.planning.lifecycle import next_plan, read_state

IMAGE = "registry.example.com/opmeter/collector@sha256:" + "a" * 64


def main(campaign_file: str, root: str, stack: str) -> None:
    store, path = open_store(root), Path(campaign_file)
    site = load_site("a2-800t", {"devices_per_node": "1", "shape": "node"})  # as by --set
    campaign = campaign_from_text(path.read_text(), path=path, base=path.parent)
    probed = Stack.from_json(json.loads(stack))
    state = read_state(campaign, store, probed)
    plan = next_plan(state, lambda: CREATE, RunOptions(), lambda line: None).plan
    check_gangs(plan, site)
    workers = campaign.devices // site.devices_per_worker
    wide = wide_gangs(plan, site)
    desired = Desired(plan, workers, site.devices_per_worker, wide=wide, at_once=site.at_once)
    nothing, todo = Observed(frozenset(), ()), [shard.shard_id for shard in plan.shards]
    deployment = Deployment("opmeter", IMAGE, IMAGE, root)
    jobs = []
    for wave in (
        next_wave(desired, nothing, todo, ()),
        next_gang_wave(desired, nothing, todo, (), workers),
    ):
        assert wave is not None, f"expected single shards and a gang, got {plan.shards}"
        store.create(keys.wave(campaign.name, wave.wave_hash), wave_to_json(wave))
        jobs.append(worker_job(wave, plan, site, deployment, cap=workers))
    jobs.append(merge_job(campaign.name, [plan.number], "first", site, deployment, partial=False))
    print(json.dumps(jobs))


if __name__ == "__main__":
    main(*sys.argv[1:])
