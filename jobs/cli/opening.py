"""Opens the campaign, the stores and the database versions of a command, and chooses the guard of
a merge."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from collector.codec.errors import (
    BadInput,
    DamagedObject,
    NoStore,
    NotFound,
    OpmeterError,
    StoreUnavailable,
)
from collector.model import keys
from collector.profiles.bundled import bundled_file
from collector.store import open_store
from collector.store.base import Store
from collector.store.opening import address_of
from collector.store.probe import probe_store
from collector.store.waiting import PatientStore, SingleWriterStore
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.database.commits import Commit, Log
    from collector.database.merge import Guard
    from jobs.campaign.campaign_file import Campaign
    from jobs.objects.applied_campaign import Applied
    from jobs.status.why import ClusterView

DEFAULT_ROOT = "opmeter-data"
BUNDLED = ("quickstart",)
_FIRST_PATIENCE_S = 60.0  # a person waits at the terminal
_PATIENCE_S = 600.0


def open_campaign(name: str, *, collectives: bool = True) -> Campaign:
    """Return the campaign of a file, or a bundled one by its name.

    With `collectives=False`, the campaign's own `collectives` are left out.
    """
    from jobs.campaign.campaign_file import without_collectives

    found = _open_campaign(name)
    return found if collectives else without_collectives(found)


def _open_campaign(name: str) -> Campaign:
    from jobs.campaign.campaign_file import campaign_from_text, load_campaign

    if name in BUNDLED and not Path(name).exists():
        text = bundled_file(name, "campaign.yaml").decode()
        return campaign_from_text(text, path=f"bundled campaign {name}", base=Path.cwd())
    path = Path(name)
    if not path.exists():
        raise BadInput(
            f"campaign: expected a file or a bundled campaign ({BUNDLED[0]}), got {name!r}"
        )
    return load_campaign(path)


def open_bare(
    root: str | None,
    campaign: Campaign | None = None,
    *,
    single_writer: bool = False,
    location: str = "--root",
) -> Store:
    """Return the store of a command, without waiting for it: that of `--root`, else the
    campaign's, else a folder here. `location` is the source of `root`, for error messages."""
    url = root or (campaign.store if campaign else None) or DEFAULT_ROOT
    if url.startswith("memory:"):
        raise BadInput(f"--root {url}: a store in memory ends with this command; pass a folder")
    store = open_store(url, location=location if root else "store")
    return SingleWriterStore(store) if single_writer else store


def patient(store: Store, stop: threading.Event | None = None) -> Store:
    """Return the same store, which retries while it is unavailable, until `stop` is set."""
    return PatientStore(store, _PATIENCE_S, first_s=_FIRST_PATIENCE_S, stop=stop)


def open_root(
    root: str | None, campaign: Campaign | None = None, *, single_writer: bool = False
) -> Store:
    """Return the store of a command, which retries while it is unavailable."""
    return patient(open_bare(root, campaign, single_writer=single_writer))


def open_existing(root: str | None) -> Store:
    """Return the store of a command that only reads it, which retries while it is unavailable.

    Raises NoStore if its folder does not exist; a bucket that is missing refuses the first request.
    """
    store = open_root(root)
    if store.url.startswith("file:") and not Path(folder := address_of(store.url, "")).is_dir():
        raise NoStore(
            f"{folder}: expected the folder of a store, got none; opmeter run creates it, --root "
            "names another"
        )
    return store


def choose_guard(store: Store, *, single_writer: bool) -> Guard:
    """Return the guard that keeps concurrent merges into this store apart.

    Raises OpmeterError if the store has no create-only writes and `single_writer` is not set.
    """
    from collector.database.merge import CREATE, SINGLE_WRITER

    if single_writer:
        return SINGLE_WRITER
    result = probe_store(store)
    if not result.create_only:
        raise OpmeterError(
            f"{store.url}: the store has no create-only writes (probe: {result.message}); use "
            "another store, or pass --single-writer if no other process ever merges into it; with "
            "a cluster, opmeter launch and opmeter merge --lease NAMESPACE take turns by a Lease"
        )
    return CREATE


def find_root(root: str | None, campaign: str | None, view: ClusterView) -> str | None:
    """Return the store to read: `root`, else the folder here if it has the campaign (or any
    campaign, if none is named), else the store of the pods if this machine can reach it. None
    stands for the folder here."""
    from jobs.planning.stored_plans import campaigns, has_plans

    if root:
        return root
    if Path(DEFAULT_ROOT).is_dir():
        store = open_bare(DEFAULT_ROOT)
        if has_plans(store, campaign) if campaign else campaigns(store):
            return None
    return view.root()


def open_followed(
    campaign: str, root: str | None, namespace: str | None
) -> tuple[Store, str, ClusterView]:
    """Return the store of a campaign that is looked at, its name, and its objects on a cluster.

    `campaign` is a name or a file. Raises BadInput if neither the store nor the cluster has it."""
    from jobs.planning.stored_plans import has_plans, no_campaign
    from jobs.status.why import ClusterView

    described = open_campaign(campaign) if Path(campaign).is_file() else None
    name = described.name if described else campaign
    view = ClusterView(name, namespace)
    if not (described and described.store):
        root = find_root(root, name, view)
    store = open_root(root, described)
    if not has_plans(store, name) and not view.seen():
        raise no_campaign(store, name)
    return store, name, view


# The stores of campaigns as a controller opens them, each for a single writer.

# A store that is unavailable for longer is tried again at the next reconciliation, so that other
# campaigns, the Lease and the Jobs of this campaign do not wait for it.
_RECONCILIATION_PATIENCE_S = 10.0


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
            location=f"root of {applied.campaign.name}",
        )
        if deployment.leased:
            store = SingleWriterStore(store, self._may_perform)
        return PatientStore(store, _RECONCILIATION_PATIENCE_S)

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


def chosen_commit(store: Store, root: str, version: str | int | None) -> Commit:
    """Return a version of a database by its number or a channel, or the newest. Raises BadInput if
    there is none, or it is retired."""
    from collector.database.channels import commit_of
    from collector.database.commits import read_log, readable_log
    from collector.database.retired import check_is_kept

    if version is None:
        return newest(warned(read_log(store)), root)
    text = str(version)
    if text.isdecimal():
        found = _version(store, root, warned(readable_log(store)), int(text))
    else:
        found = commit_of(store, text)
    check_is_kept(store, found.number)
    return found


def warned(log: Log) -> Log:
    """Return the log, after a warning about damage in it."""
    if log.warning:
        say(log.warning, err=True)
    return log


def newest(log: Log, root: str) -> Commit:
    """Return the newest version. Raises BadInput if there is none."""
    if log.head is None and log.fault is not None:
        raise DamagedObject(log.fault)
    if log.head is None:
        raise BadInput(f"no database at {root}: nothing was merged there yet")
    return log.head


def _version(store: Store, root: str, log: Log, number: int) -> Commit:
    from collector.database.commits import read_commit

    try:
        return read_commit(store, number)
    except NotFound as error:
        if log.head is not None and 0 < number < log.head.number:
            what = "missing, although later commits exist"
            raise DamagedObject(what, path=keys.commit(number)) from error
        raise BadInput(f"no version {number} at {root}; `opmeter db log` lists them") from error
