"""The gangs of a plan that need several pods of a site, and checks of gangs and grids. Pure."""

from collections.abc import Iterator, Mapping
from math import prod

from collector.codec.errors import BadInput
from collector.codec.text import counted
from collector.model.plan import Plan
from collector.ranks.topology import Grid
from jobs.campaign.campaign_file import Campaign
from jobs.campaign.source_kinds import (
    CollectivesSource,
    ModelSource,
    ProfileSource,
    RecordingSource,
)
from jobs.objects.site import Site


def pods_of(ranks: int, site: Site) -> int:
    """Return how many pods of a site hold this many ranks.

    A pod has one rank per device; for a cpu, the site sets the number."""
    of_a_pod = site.ranks_per_pod or ranks if site.backend == "cpu" else site.devices_per_worker
    return -(-ranks // of_a_pod)


def largest_gang(campaign: Campaign) -> int:
    """Return the most ranks that a source of a campaign names; 1 if none does. Gangs of profiles
    are known once they are read."""
    found = (one.ranks for one in campaign.sources if isinstance(one, CollectivesSource))
    return max(found, default=1)


def wide_gangs(plan: Plan, site: Site) -> Mapping[str, int]:
    """Return the gangs that need several pods at once: shard -> number of pods."""
    found = {s.shard_id: pods_of(s.ranks, site) for s in plan.shards if s.is_gang}
    return {shard: pods for shard, pods in found.items() if pods > 1}


def check_gangs(plan: Plan, site: Site) -> None:
    """Raise BadInput for a plan with gangs that the pods of the site cannot hold."""
    for ranks in sorted({shard.ranks for shard in plan.shards}, reverse=True):
        if why := _complaint(ranks, site, plan.devices):
            raise BadInput(
                f"campaign {plan.campaign}: site {site.name} cannot run its gangs of {ranks} "
                f"ranks: {why}"
            )


def check_grids(campaign: Campaign, site: Site) -> None:
    """Raise BadInput if a campaign's grid of ranks does not match the site's nodes.

    The recorded tiers would be wrong. A node of 16 is the `8 2` of the grid `48 8 2`."""
    for grid in _grids(campaign) if site.backend != "cpu" else ():
        extents = grid.extents
        if site.devices_per_node not in {prod(extents[at:]) for at in range(len(extents))}:
            raise BadInput(
                f"campaign {campaign.name}: grid {grid} does not match site {site.name}: a node "
                f"has {site.devices_per_node} devices, which is no product of its inner extents; "
                "set `grid` next to `collectives`: 48 8 2 for nodes of 16, 128 8 for nodes of 8"
            )


def _grids(campaign: Campaign) -> Iterator[Grid]:
    for source in campaign.sources:
        if isinstance(source, CollectivesSource):
            yield source.grid
        elif (
            isinstance(source, ProfileSource | ModelSource | RecordingSource)
            and source.collectives is not None
        ):
            yield source.collectives.grid


def _complaint(ranks: int, site: Site, devices: int) -> str:
    """Return why a site cannot run this many ranks at once; empty if it can."""
    pods = pods_of(ranks, site)
    if pods == 1:
        return ""
    if site.backend != "cpu" and site.shape != "node":
        return (
            f"a pod has {counted(site.devices_per_worker, 'device')}, and pods of shape "
            f"{site.shape} do not communicate; set shape: node"
        )
    if ranks % pods:
        return f"the ranks cannot be divided equally among {pods} pods"
    if pods > (most := max(1, devices // site.devices_per_worker)):
        return f"they need {pods} pods, and the campaign's devices allow {most}"
    return ""
