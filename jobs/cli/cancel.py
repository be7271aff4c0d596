"""`opmeter cancel`."""

from collector.errors import BadInput
from jobs.cli.options import CampaignNameArgument, NamespaceOption
from jobs.cli.terminal import say


def cancel_verb(campaign: CampaignNameArgument, *, namespace: NamespaceOption = None) -> None:
    """Take a campaign off the cluster. What is committed stays; launching it again goes on."""
    from jobs.kube.cluster import Cluster
    from jobs.kube.errors import ObjectMissing
    from jobs.objects.applied_campaign import config_map_name

    # The Jobs go with the ConfigMap that owns them.
    try:
        Cluster.connect(namespace).delete_config_map(config_map_name(campaign))
    except ObjectMissing as error:
        raise BadInput(f"no campaign {campaign!r} is applied there: {error}") from error
    say(f"{campaign} is cancelled; what was committed stays in the store")
