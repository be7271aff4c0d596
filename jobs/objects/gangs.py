"""Whether the pods of a site can hold the gangs of a plan. Pure."""

from collector.counting import counted
from collector.errors import BadInput
from collector.plan import Plan, devices_for
from jobs.objects.site import Site


def check_gangs(plan: Plan, site: Site) -> None:
    """Raise BadInput for a plan whose gangs no pod of the site can hold."""
    ranks = max((shard.ranks for shard in plan.shards), default=1)
    needed, there = devices_for(ranks, plan.backend), site.devices_per_worker
    if needed > there:
        raise BadInput(
            f"campaign {plan.campaign} has gangs of {ranks} ranks, and a pod of site {site.name} "
            f"has {counted(there, 'device')}: shape: node is wanted where a node has enough. Gangs "
            "over several nodes are not launched yet: opmeter comm measures them by torchrun"
        )
