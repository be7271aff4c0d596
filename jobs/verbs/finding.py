"""Where a campaign's store is, for who did not say it."""

from pathlib import Path

from jobs.status import campaigns, has_plans
from jobs.verbs.cluster_view import ClusterView
from jobs.verbs.opening import DEFAULT_ROOT, open_bare


def find_root(root: str | None, campaign: str | None, view: ClusterView) -> str | None:
    """As said, else the folder here that knows the campaign (or any, where none is named), else
    where the cluster's pods find it, if this machine may too. None stands for the folder here."""
    if root:
        return root
    if Path(DEFAULT_ROOT).is_dir():
        store = open_bare(DEFAULT_ROOT)
        if has_plans(store, campaign) if campaign else campaigns(store):
            return None
    return view.root()
