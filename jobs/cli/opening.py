"""What every verb opens first: the campaign, the store, and the guard of a merge."""

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
from jobs.campaign.campaign_file import (
    Campaign,
    campaign_from_text,
    load_campaign,
    without_collectives,
)

if TYPE_CHECKING:
    from jobs.status.why import ClusterView

DEFAULT_ROOT = "opmeter-data"
BUNDLED = ("quickstart",)
_PATIENCE_S = 600.0


def open_campaign(name: str, *, collectives: bool = True) -> Campaign:
    """The campaign of a file, or a bundled one by its name; without its own `collectives`."""
    found = _open_campaign(name)
    return found if collectives else without_collectives(found)


def _open_campaign(name: str) -> Campaign:
    if name in BUNDLED and not Path(name).exists():
        text = bundled_file(name, "campaign.yaml").decode()
        return campaign_from_text(text, path=f"bundled campaign {name}", base=Path.cwd())
    path = Path(name)
    if not path.exists():
        raise BadInput(f"no file {name!r}, and no bundled campaign of that name ({BUNDLED[0]})")
    return load_campaign(path)


def open_bare(
    root: str | None,
    campaign: Campaign | None = None,
    *,
    single_writer: bool = False,
    said_by: str = "--root",
) -> Store:
    """The store of a command: `--root`, else the campaign's, else a folder here. It is not
    waited for. `said_by` is where `root` comes from, which a refusal of it names."""
    url = root or (campaign.store if campaign else None) or DEFAULT_ROOT
    if url.startswith("memory:"):
        raise BadInput(f"--root {url}: a store in memory ends with this command; name a folder")
    store = open_store(url, said_by=said_by if root else "store")
    return SingleWriterStore(store) if single_writer else store


def patient(store: Store, stop: threading.Event | None = None) -> Store:
    """The same store, waited for while it does not answer, and until `stop` is set."""
    return PatientStore(store, _PATIENCE_S, stop=stop)


def open_root(
    root: str | None, campaign: Campaign | None = None, *, single_writer: bool = False
) -> Store:
    """The store of a command, waited for while it does not answer."""
    return patient(open_bare(root, campaign, single_writer=single_writer))


def choose_guard(store: Store, *, single_writer: bool) -> Guard:
    """How merges into this store stay apart. Raises where the store cannot tell two writers
    apart and nobody vouches for there being one."""
    if single_writer:
        return SINGLE_WRITER
    result = probe_store(store)
    if not result.create_only:
        raise OpmeterError(
            f"{store.url} does not honour create-only writes (probe: {result.message}); "
            "use another store, or say --single-writer if nobody else ever merges into it; where "
            "a cluster is at hand, opmeter launch and opmeter merge --lease NAMESPACE take turns "
            "by a Lease"
        )
    return CREATE


def find_root(root: str | None, campaign: str | None, view: ClusterView) -> str | None:
    """As said, else the folder here that knows the campaign (or any, where none is named), else
    where the cluster's pods find it, if this machine may too. None stands for the folder here."""
    from jobs.planning.stored_plans import campaigns, has_plans

    if root:
        return root
    if Path(DEFAULT_ROOT).is_dir():
        store = open_bare(DEFAULT_ROOT)
        if has_plans(store, campaign) if campaign else campaigns(store):
            return None
    return view.root()
