"""`opmeter launch`."""

import logging
from dataclasses import replace
from pathlib import Path

import typer
import yaml

from collector import keys
from collector.errors import BadInput
from collector.store.base import Store, create_once
from jobs.applied import SITE, SITE_YAML, config_map
from jobs.campaign import BundledSource, Campaign, CasesSource
from jobs.cluster import Cluster
from jobs.controller import Controller, run_forever
from jobs.leader import Election
from jobs.podspec import Deployment, Manifest
from jobs.site import load_site
from jobs.sources import load_sources
from jobs.verbs.controller import guard_of, identity, stop_on_signals
from jobs.verbs.opening import open_campaign, open_root

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
) -> int:
    """The exit code: 0, or 3 where the watch was ended before the campaign was merged."""
    campaign = open_campaign(name)
    chosen = load_site(site)
    _check(campaign, chosen.backend, deployment, unpinned=unpinned)
    store = open_root(root or deployment.root, single_writer=deployment.single_writer)
    if dry_run:
        shown = replace(deployment, namespace=deployment.namespace or "default")
        typer.echo(_yaml([_object(campaign, name, site, shown, store, upload=False)]))
        return 0
    cluster = Cluster.connect(deployment.namespace or None)
    there = replace(deployment, namespace=cluster.namespace)
    manifest = _object(campaign, name, site, there, store, upload=True)
    cluster.apply_config_map(manifest)
    typer.echo(f"{campaign.name} is applied in namespace {cluster.namespace}")
    if not watch:
        typer.echo(f"follow it with: opmeter status {campaign.name} --root {deployment.root}")
        return 0
    return _watch(cluster, campaign.name, store)


def _watch(cluster: Cluster, campaign: str, store: Store) -> int:
    logging.getLogger("jobs").setLevel(logging.INFO)
    stop, election = stop_on_signals(), Election(cluster, identity())
    controller = Controller(cluster, lambda applied: store, guard_of)
    finished = run_forever(controller, election.hold, stop, only=campaign, until_finished=True)
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
    campaign: Campaign, name: str, site: str, deployment: Deployment, store: Store, *, upload: bool
) -> Manifest:
    text = _portable_text(campaign, name, store, upload=upload)
    path = Path(site)
    is_file = path.suffix in (".yaml", ".yml")
    kept = {SITE_YAML: path.read_text(encoding="utf-8")} if is_file else {SITE: site}
    return config_map(campaign.name, text, kept, deployment)


def _portable_text(campaign: Campaign, name: str, store: Store, *, upload: bool) -> str:
    """The campaign file with sources that mean the same in the cluster: what lies in a file here
    is parsed here, and named by its key."""
    document = yaml.safe_load(_text_of(name))
    loaded = load_sources(campaign, store)
    sources: list[dict[str, str]] = []
    for said, source, found in zip(document["sources"], campaign.sources, loaded, strict=True):
        if isinstance(source, BundledSource | CasesSource):
            sources.append(said)
            continue
        if upload:
            create_once(store, keys.source(campaign.name, found.planned.sha256), found.table)
        stack = {"stack": "target"} if found.planned.same_stack else {}
        sources.append({"cases": found.planned.sha256, **stack})
    document["sources"] = sources
    document.pop("store", None)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


def _text_of(name: str) -> str:
    from collector.profiles.bundled import bundled_file

    path = Path(name)
    if path.exists():
        return path.read_text(encoding="utf-8-sig")
    return bundled_file(name, "campaign.yaml").decode()


def _yaml(objects: list[Manifest]) -> str:
    return yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True).rstrip()
