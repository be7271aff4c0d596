"""Opens the campaign and the store of a command, and chooses the guard of a merge."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from collector.codec.errors import BadInput, OpmeterError
from collector.database.merge import CREATE, SINGLE_WRITER, Guard
from collector.profiles.bundled import bundled_file
from collector.store import open_store
from collector.store.base import Store
from collector.store.probe import probe_store
from collector.store.waiting import PatientStore, SingleWriterStore
from jobs.campaign import campaign_file
from jobs.campaign.campaign_file import Campaign

if TYPE_CHECKING:
    from jobs.status.why import ClusterView

DEFAULT_ROOT = "opmeter-data"
BUNDLED = ("quickstart",)
_PATIENCE_S = 600.0


def open_campaign(name: str, *, collectives: bool = True) -> Campaign:
    """Return the campaign of a file, or a bundled one by its name.

    With `collectives=False`, the campaign's own `collectives` are left out.
    """
    found = _open_campaign(name)
    return found if collectives else campaign_file.without_collectives(found)


def _open_campaign(name: str) -> Campaign:
    if name in BUNDLED and not Path(name).exists():
        text = bundled_file(name, "campaign.yaml").decode()
        return campaign_file.campaign_from_text(
            text, path=f"bundled campaign {name}", base=Path.cwd()
        )
    path = Path(name)
    if not path.exists():
        raise BadInput(
            f"campaign: expected a file or a bundled campaign ({BUNDLED[0]}), got {name!r}"
        )
    return campaign_file.load_campaign(path)


def open_bare(
    root: str | None,
    campaign: Campaign | None = None,
    *,
    single_writer: bool = False,
    said_by: str = "--root",
) -> Store:
    """Return the store of a command, without waiting for it: that of `--root`, else the
    campaign's, else a folder here. `said_by` is the source of `root`, for error messages."""
    url = root or (campaign.store if campaign else None) or DEFAULT_ROOT
    if url.startswith("memory:"):
        raise BadInput(f"--root {url}: a store in memory ends with this command; pass a folder")
    store = open_store(url, location=said_by if root else "store")
    return SingleWriterStore(store) if single_writer else store


def patient(store: Store, stop: threading.Event | None = None) -> Store:
    """Return the same store, which retries while it is unavailable, until `stop` is set."""
    return PatientStore(store, _PATIENCE_S, stop=stop)


def open_root(
    root: str | None, campaign: Campaign | None = None, *, single_writer: bool = False
) -> Store:
    """Return the store of a command, which retries while it is unavailable."""
    return patient(open_bare(root, campaign, single_writer=single_writer))


def choose_guard(store: Store, *, single_writer: bool) -> Guard:
    """Return the guard that keeps concurrent merges into this store apart.

    Raises OpmeterError if the store has no create-only writes and `single_writer` is not set.
    """
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
