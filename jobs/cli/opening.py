"""Opens the campaign, the stores and the database versions of a command, and chooses the guard of
a merge."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from collector.codec.errors import (
    BadInput,
    DamagedObject,
    NoStore,
    NotFound,
    OpmeterError,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from collector.model import keys
from collector.profiles.bundled import bundled_file
from collector.store import open_store
from collector.store.base import Store
from collector.store.opening import DEFAULT_ROOT, address_of, command_on
from collector.store.probe import probe_store
from collector.store.waiting import PatientStore, SingleWriterStore, StoreWrapper
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.database.commits import Commit, Log
    from collector.database.merge import Guard
    from collector.ops.own import OperatorFile
    from jobs.campaign.campaign_file import Campaign
    from jobs.objects.applied_campaign import Applied
    from jobs.status.why import ClusterView

BUNDLED = ("quickstart",)
_FIRST_PATIENCE_S = 60.0  # a person waits at the terminal
_PATIENCE_S = 600.0

T = TypeVar("T")


def open_campaign(name: str, *, collectives: bool = True, executes: bool = True) -> Campaign:
    """Return the campaign of a file, or a bundled one by its name.

    With `collectives=False`, the campaign's own `collectives` are left out. A command that does not
    plan it does not execute its files of operators.
    """
    from jobs.campaign.campaign_file import without_collectives

    found = _open_campaign(name)
    if executes and found.operator_files:
        found = _with_operators(found)
    return found if collectives else without_collectives(found)


def _with_operators(campaign: Campaign) -> Campaign:
    """Execute the campaign's files of operators, whose kernels are among those it names."""
    from collector.ops.own import declare_files, own_operators

    declare_files(campaign.operator_files)
    own = (op.kernel for op in own_operators())
    named = campaign.operators
    return replace(campaign, operators=None if named is None else named.union(own))


def declare_operators(names: Sequence[str] | None) -> tuple[OperatorFile, ...]:
    """Execute the files of operators of `--operators`, and return them."""
    from collector.ops.own import declare_files, find_operator_file

    files = tuple(map(find_operator_file, names or ()))
    if files:
        declare_files(files)
    return files


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


def patient(
    store: Store, stop: threading.Event | None = None, *, patience_s: float = _PATIENCE_S
) -> Store:
    """Return the same store, which retries while it is unavailable, until `stop` is set."""
    return PatientStore(store, patience_s, first_s=_FIRST_PATIENCE_S, stop=stop)


def open_root(
    root: str | None, campaign: Campaign | None = None, *, single_writer: bool = False
) -> Store:
    """Return the store of a command, which retries while it is unavailable."""
    return patient(open_bare(root, campaign, single_writer=single_writer))


def open_database(root: str | None) -> Store:
    """Return the store of a command that only reads versions; of a tree of other tools, a store in
    memory with what is imported from it."""
    from opmeter.database import is_tree

    folder = Path(root or DEFAULT_ROOT).expanduser()
    return _imported(folder) if is_tree(folder) else open_root(root)


@cache
def _imported(folder: Path) -> Store:
    from opmeter.trees import imported_store

    return imported_store(folder)


def open_existing(root: str | None) -> Store:
    """Return the store of a command that only reads it, which retries while it is unavailable.

    Raises NoStore if its folder does not exist; a bucket that is missing refuses the first request.
    """
    store = open_root(root)
    if store.url.startswith("file:") and not Path(folder := address_of(store.url, "")).is_dir():
        raise _no_folder(folder)
    return store


def _no_folder(folder: str, why: str = "") -> NoStore:
    return NoStore(
        f"{why}{folder}: expected the folder of a store, got none; opmeter run creates it, --root "
        "names another"
    )


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
            "a cluster, opmeter launch and opmeter db merge --lease NAMESPACE take turns by a Lease"
        )
    return CREATE


class StoreOfPods(StoreWrapper):
    """A store in a volume of pods, which is no folder of this machine: every call is refused."""

    def __init__(self, url: str):
        self._url = url

    @property
    def url(self) -> str:
        return self._url

    def _call(self, call: Callable[[], T]) -> T:
        raise StoreRefused(
            f"{self._url} is a volume of the pods, and no folder of this machine; --root names the "
            "store as this machine reaches it"
        )


def find_store(root: str | None, campaign: str | None, view: ClusterView) -> Store:
    """Return the store to read, which does not wait: that of `root`, else the folder here if it has
    the campaign (or any campaign, if none is named), else the store of the pods.

    Raises BadInput if there is none; a folder here is named only if it exists, and the user did not
    name a namespace."""
    from jobs.planning.stored_plans import campaigns, has_plans, no_campaign

    if root:
        return open_bare(root)
    is_here = Path(DEFAULT_ROOT).is_dir()
    store = open_bare(DEFAULT_ROOT)
    if is_here and (has_plans(store, campaign) if campaign else campaigns(store)):
        return store
    if there := view.address():
        return open_of_pods(there)
    if view.trouble or (view.namespace and not is_here):
        none = f"no campaign {campaign!r}" if campaign else "no campaign"
        why = view.trouble or f"{none} is applied in namespace {view.namespace}"
        raise BadInput(f"cluster: {why}; --root names the store that has the results")
    if campaign and is_here:
        raise no_campaign(store, campaign)
    raise _no_folder(DEFAULT_ROOT, f"no campaign {campaign!r}: " if campaign else "")


def open_of_pods(root: str) -> Store:
    """Return the store of pods as this machine reaches it, by the same address."""
    if root.startswith("file:") and not Path(address_of(root, "")).is_dir():
        return StoreOfPods(root)
    return open_bare(root)


def open_followed(
    campaign: str, root: str | None, namespace: str | None, *, patience_s: float = _PATIENCE_S
) -> tuple[Store, str, ClusterView]:
    """Return the store of a campaign that is looked at, its name, and its objects on a cluster.

    `campaign` is a name or a file. If the campaign is applied, its store may be away. Raises
    BadInput if neither the store nor the cluster has the campaign."""
    from jobs.planning.stored_plans import has_plans, no_campaign
    from jobs.status.why import ClusterView

    described = open_campaign(campaign, executes=False) if Path(campaign).is_file() else None
    name = described.name if described else campaign
    view = ClusterView(name, namespace)
    of_file = described.store if described else None
    bare = open_bare(root, described) if root or of_file else find_store(root, name, view)
    store = patient(bare, patience_s=patience_s)
    try:
        is_known = has_plans(store, name)
    except StoreError:
        if not view.seen():
            raise
        is_known = True
    if not is_known and not view.seen():
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
        listing = command_on(root, "opmeter db log")
        raise BadInput(f"no version {number} at {root}; `{listing}` lists them") from error
