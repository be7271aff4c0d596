"""The stores of campaigns as a controller reaches them, and what keeps two writers apart there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from collector.database.merge import CREATE, SINGLE_WRITER, Guard
from collector.store.base import Store
from collector.store.patient import PatientStore
from collector.store.single_writer import SingleWriterStore
from jobs.applied import Applied
from jobs.merge_lease import MergeLease
from jobs.verbs.opening import open_bare

# A store that is away for longer than this is looked for again at the next look: other campaigns,
# the Lease and the Jobs of this one do not wait for it.
_PATIENCE_S = 10.0


class Stores:
    """`may_act` says whether this controller leads; `root` is the store's address from here, where
    pods use another one."""

    def __init__(self, may_act: Callable[[], bool], turns: MergeLease, root: str | None = None):
        self._may_act, self._turns, self._root = may_act, turns, root

    def open(self, applied: Applied) -> Store:
        """The store of a campaign, not waited for longer than a look may take.

        Where it does not honour create-only writes, the leader's own Lease makes this the only
        controller that writes: it is asked between looking and writing, each time.
        """
        deployment = applied.deployment
        store = open_bare(self._root or deployment.root, single_writer=deployment.single_writer)
        if deployment.leased:
            store = SingleWriterStore(store, self._may_act)
        return PatientStore(store, _PATIENCE_S)

    @contextmanager
    def guard(self, applied: Applied) -> Iterator[Guard]:
        """How merges into it stay apart. Raises LeaseTaken where it is another's turn."""
        if not applied.deployment.leased:
            yield SINGLE_WRITER if applied.deployment.single_writer else CREATE
            return
        with self._turns.held() as guard:
            yield guard
