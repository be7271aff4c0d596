"""The stores of campaigns as a controller reaches them, and what keeps two writers apart there."""

from collections.abc import Callable

from collector.codec.errors import StoreUnavailable
from collector.store.base import Store
from collector.store.waiting import PatientStore, SingleWriterStore
from jobs.cli.opening import open_bare
from jobs.objects.applied_campaign import Applied

# A store that is away for longer than this is looked for again at the next look: other campaigns,
# the Lease and the Jobs of this one do not wait for it.
_PATIENCE_S = 10.0


class Stores:
    """`may_act` says whether this controller leads. A controller outside of the cluster says as
    `outside` how pods reach the store of its campaign, and how it is reached from here."""

    def __init__(
        self,
        may_act: Callable[[], bool],
        outside: tuple[str, str] | None = None,
    ):
        self._may_act, self._outside = may_act, outside

    def open(self, applied: Applied) -> Store:
        """The store of a campaign, not waited for longer than a look may take.

        Where it does not honour create-only writes, the leader's own Lease makes this the only
        controller that writes: it is asked between looking and writing, each time. Raises
        StoreUnavailable for another campaign's volume, which is no folder of this machine.
        """
        deployment = applied.deployment
        store = open_bare(
            self._from_here(applied),
            single_writer=deployment.single_writer,
            said_by=f"root of {applied.campaign.name}",
        )
        if deployment.leased:
            store = SingleWriterStore(store, self._may_act)
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
                f"{root} is a volume of {applied.campaign.name}'s pods: that campaign wants a "
                "controller in the cluster"
            )
        return root
