"""`opmeter pause`."""

from typing import Annotated

import typer

from collector.errors import BadInput
from jobs.cli.options import CampaignNameArgument, NamespaceOption
from jobs.cli.terminal import say


def pause_verb(
    campaign: CampaignNameArgument,
    *,
    resume: Annotated[bool, typer.Option("--resume", help="go on")] = False,
    namespace: NamespaceOption = None,
) -> None:
    """Suspend a campaign's Jobs, or let them go on."""
    from jobs.kube.cluster import Cluster
    from jobs.objects.applied_campaign import PAUSED, SELECTOR, config_map_name, is_named

    # Written on the ConfigMap; the controller reads it there.
    cluster = Cluster.connect(namespace)
    name = config_map_name(campaign)
    if not any(map(is_named, cluster.config_maps(f"{SELECTOR}={campaign}"))):
        raise BadInput(f"no campaign {campaign!r} is applied in {cluster.namespace}")
    cluster.annotate_config_map(name, {PAUSED: None if resume else "true"})
    say(f"{campaign} {'goes on' if resume else 'is paused'}")
