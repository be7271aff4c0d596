"""The stores of campaigns as a controller opens them, each for a single writer."""

from collections.abc import Callable

from collector.codec.errors import StoreUnavailable
from collector.store.base import Store
from collector.store.waiting import PatientStore, SingleWriterStore
from jobs.cli.opening import open_bare
from jobs.objects.applied_campaign import Applied

# A store that is unavailable for longer is tried again at the next reconciliation, so that other
# campaigns, the Lease and the Jobs of this campaign do not wait for it.
_PATIENCE_S = 10.0


class Stores:
    """Opens the stores of applied campaigns.

    `may_act` returns whether this controller leads. For a controller outside the cluster, `outside`
    is the store of its campaign, as pods reach it and as this machine reaches it.
    """

    def __init__(
        self,
        may_perform: Callable[[], bool],
        outside: tuple[str, str] | None = None,
    ):
        self._may_perform, self._outside = may_perform, outside

    def open(self, applied: Applied) -> Store:
        """Return the store of a campaign, which waits no longer than a reconciliation may take.

        If the store has no create-only writes, the leader's Lease makes this the only controller
        that writes: it is checked between the check of a key and each write. Raises
        StoreUnavailable for the volume of another campaign, which is no folder of this machine.
        """
        deployment = applied.deployment
        store = open_bare(
            self._from_here(applied),
            single_writer=deployment.single_writer,
            said_by=f"root of {applied.campaign.name}",
        )
        if deployment.leased:
            store = SingleWriterStore(store, self._may_perform)
        return PatientStore(store, _PATIENCE_S)

    def _from_here(self, applied: Applied) -> str:
        root = applied.deployment.root
        if self._outside is None:
            return root
        as_pods_reach_it, from_here = self._outside
        if root == as_pods_reach_it:
            return from_here
        if root.startswith("file:"):
            raise StoreUnavailable(
                f"{root} is a volume of {applied.campaign.name}'s pods: that campaign requires a "
                "controller in the cluster"
            )
        return root
