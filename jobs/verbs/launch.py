"""`opmeter launch`."""

import logging
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import typer
import yaml

from collector import keys
from collector.errors import BadInput
from collector.profiles.bundled import bundled_file
from collector.store.base import Store, create_once
from collector.store.single_writer import SingleWriterStore
from jobs.advancing import Wish
from jobs.applied import OP_MAPPING, SELECTOR, SITE, SITE_YAML, config_map
from jobs.campaign import BundledSource, Campaign, CasesSource
from jobs.cluster import Cluster
from jobs.controller import Controller
from jobs.deployment import Deployment, Manifest
from jobs.leader import Election, identity
from jobs.live import LAUNCHED
from jobs.loop import Changes, run_forever
from jobs.merge_lease import MergeLease
from jobs.preparing import op_mapping_of
from jobs.rendering import first_objects
from jobs.site import load_site
from jobs.sources import LoadedSource, load_sources
from jobs.verbs.controller import stop_on_signals
from jobs.verbs.opening import open_bare, open_campaign, patient
from jobs.verbs.stores import Stores
from jobs.wishes import wishes

_NOT_FINISHED = 3


def launch_verb(
    name: str,
    site: str,
    deployment: Deployment,
    root: str | None,
    *,
    dry_run: bool,
    watch: bool,
    unpinned: bool,
    wish: Wish,
) -> int:
    """The exit code: 0, or 3 where the watch was ended before the campaign was merged."""
    campaign = open_campaign(name)
    chosen = load_site(site)
    _check(campaign, chosen.backend, deployment, unpinned=unpinned)
    store = open_bare(root or deployment.root, single_writer=deployment.single_writer)
    loaded = load_sources(campaign, patient(store))
    if dry_run:
        shown = replace(deployment, namespace=deployment.namespace or "default")
        manifest = _object(campaign, name, site, shown, loaded)
        typer.echo(_not_uploaded(campaign, loaded, patient(store)))
        typer.echo(_yaml([manifest, *first_objects(campaign, chosen, shown, store)]))
        return 0
    cluster = Cluster.connect(deployment.namespace or None)
    there = replace(deployment, namespace=cluster.namespace)
    manifest = _object(campaign, name, site, there, loaded)
    token = uuid.uuid4().hex[:12]
    manifest["metadata"]["annotations"] = wishes(wish, token) | {LAUNCHED: token}
    # Their keys follow from their bytes: looking first is enough, where the store knows no more.
    _upload(campaign, loaded, patient(SingleWriterStore(store)))
    cluster.apply_config_map(manifest)
    typer.echo(f"{campaign.name} is applied in namespace {cluster.namespace}")
    if not watch:
        typer.echo(f"follow it with: {_following(campaign.name, there, root)}")
        return 0
    return _watch(cluster, campaign.name, (deployment.root, root or deployment.root))


def _following(campaign: str, there: Deployment, root: str | None) -> str:
    """The command that shows how far it is, from this machine."""
    seen_at = root or there.root
    return f"opmeter status {campaign} --namespace {there.namespace} --root {seen_at} -w"


def _watch(cluster: Cluster, campaign: str, roots: tuple[str, str]) -> int:
    """Lead where nobody does, else wait for who leads. The one Lease is the namespace's, so who
    leads looks at all its campaigns. `roots`: the store as pods reach it, and from here."""
    logging.getLogger("jobs").setLevel(logging.INFO)
    stop, election = stop_on_signals(), Election(cluster, identity())
    changes = Changes(cluster, SELECTOR).start()
    stores = Stores(election.hold, MergeLease(cluster, identity()), roots)
    controller = Controller(cluster, stores.open, stores.guard, may_act=election.hold)
    finished = run_forever(controller, election.hold, stop, changes=changes, until=campaign)
    changes.stop()
    election.release()
    typer.echo("merged" if finished else "stopped; launching it again goes on")
    return 0 if finished else _NOT_FINISHED


def _check(campaign: Campaign, backend: str, deployment: Deployment, *, unpinned: bool) -> None:
    if campaign.backend != backend:
        raise BadInput(
            f"campaign {campaign.name} measures on {campaign.backend}, "
            f"and the site's machines on {backend}"
        )
    if backend == "npu" and "@sha256:" not in deployment.image and not unpinned:
        raise BadInput(
            f"image {deployment.image} has no digest: numbers want one stack, and a tag may move; "
            "name it as NAME@sha256:..., or say --allow-unpinned"
        )


def _object(
    campaign: Campaign,
    name: str,
    site: str,
    deployment: Deployment,
    loaded: tuple[LoadedSource, ...],
) -> Manifest:
    path = Path(site)
    is_file = path.suffix in (".yaml", ".yml")
    more = {SITE_YAML: path.read_text(encoding="utf-8")} if is_file else {SITE: site}
    op_mapping = op_mapping_of(campaign)
    if op_mapping is not None:
        more[OP_MAPPING] = op_mapping
    return config_map(campaign.name, _portable_text(campaign, name, loaded), more, deployment)


def _portable_text(campaign: Campaign, name: str, loaded: tuple[LoadedSource, ...]) -> str:
    """The campaign file with sources that mean the same in the cluster: what lies in a file here
    is parsed here, and named by its key."""
    document = yaml.safe_load(_text_of(name))
    sources: list[dict[str, str]] = []
    for said, source, found in zip(document["sources"], campaign.sources, loaded, strict=True):
        if isinstance(source, BundledSource | CasesSource):
            sources.append(said)
            continue
        stack = {"stack": "target"} if found.planned.same_stack else {}
        sources.append({"cases": found.planned.sha256, **stack})
    document["sources"] = sources
    for of_this_machine in ("store", "op_mapping"):
        document.pop(of_this_machine, None)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _upload(campaign: Campaign, loaded: tuple[LoadedSource, ...], store: Store) -> None:
    """Tables first: a ConfigMap that names one is read at once."""
    for key, table in _tables(campaign, loaded):
        create_once(store, key, table)


def _tables(campaign: Campaign, loaded: tuple[LoadedSource, ...]) -> Iterator[tuple[str, bytes]]:
    """What only this machine has: key in the store -> the cases of a source."""
    for source, found in zip(campaign.sources, loaded, strict=True):
        if not isinstance(source, BundledSource | CasesSource):
            yield keys.source(campaign.name, found.planned.sha256), found.table


def _not_uploaded(campaign: Campaign, loaded: tuple[LoadedSource, ...], store: Store) -> str:
    """What a dry run has left undone, as comments of the YAML that follows."""
    wanted = [key for key, _ in _tables(campaign, loaded)]
    missing = [key for key in wanted if not any(info.key == key for info in store.list(key))]
    lines = ["Nothing is created. A Job of workers is suspended: a controller writes its plan"]
    lines += ["and its wave into the store first, and then lets it go."]
    if missing:
        lines += [f"Not uploaded, so that no plan can be made of it: {key}" for key in missing]
        lines += ["The same command without --dry-run uploads it."]
    return "\n".join(f"# {line}" for line in lines)


def _text_of(name: str) -> str:
    path = Path(name)
    if path.exists():
        return path.read_text(encoding="utf-8-sig")
    return bundled_file(name, "campaign.yaml").decode()


def _yaml(objects: list[Manifest]) -> str:
    return yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True).rstrip()
