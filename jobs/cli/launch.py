"""`opmeter launch`."""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from collector.errors import BadInput
from jobs.cli.controller import stop_on_signals
from jobs.cli.options import NamespaceOption

if TYPE_CHECKING:
    from collector.store.base import Store
    from jobs.campaign.campaign_file import Campaign
    from jobs.campaign.run_options import RunOptions
    from jobs.kube.cluster import Cluster
    from jobs.objects.deployment import Deployment
    from jobs.planning.sources import LoadedSource

_NOT_FINISHED = 3


def launch_verb(
    campaign: Annotated[str, typer.Argument(help="a campaign.yaml, or quickstart")],
    *,
    image: Annotated[str, typer.Option(help="the workers' image, by digest  [required]")] = "",
    store: Annotated[
        str, typer.Option(help="the store, as pods reach it: s3:// or file:///store  [required]")
    ] = "",
    controller_image: Annotated[
        str, typer.Option(help="the image of merges, without torch  [the workers']")
    ] = "",
    site: Annotated[
        str, typer.Option(help="the machines: a bundled profile, or a YAML file")
    ] = "cpu",
    namespace: NamespaceOption = None,
    store_secret: Annotated[
        str, typer.Option(help="a Secret of the files credentials and config")
    ] = "",
    worker_secret: Annotated[
        str, typer.Option(help="the Secret of workers, who write less  [store-secret]")
    ] = "",
    store_claim: Annotated[str, typer.Option(help="a volume claim for file:///store")] = "",
    site_packages: Annotated[
        str, typer.Option(help="a read-only volume claim that holds torch")
    ] = "",
    pull_policy: Annotated[
        str, typer.Option(help="IfNotPresent, Always or Never")
    ] = "IfNotPresent",
    merge_memory: Annotated[
        str, typer.Option(help="what a merge may take: it holds the rows of the database")
    ] = "8Gi",
    single_writer: Annotated[bool, typer.Option("--single-writer")] = False,
    allow_unpinned: Annotated[
        bool, typer.Option("--allow-unpinned", help="take an NPU image without a digest")
    ] = False,
    root: Annotated[
        str | None,
        typer.Option(help="the store, as this machine reaches it  [as pods reach it]"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the objects and create none")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="be the controller until it is merged")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="measure all of it once more")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="measure what has no good answer once more")
    ] = False,
) -> int:
    """Start a campaign on a cluster: upload its cases, and apply its ConfigMap.

    A controller in the cluster does the rest; with --watch this command is one.
    """
    from jobs.campaign.run_options import RunOptions
    from jobs.objects.deployment import Deployment

    _check_said(image, store)
    deployment = Deployment(
        namespace=namespace or "",
        image=image,
        controller_image=controller_image or image,
        root=store,
        store_secret=store_secret,
        worker_secret=worker_secret,
        store_claim=store_claim,
        site_packages=site_packages,
        single_writer=single_writer,
        allow_unpinned=allow_unpinned,
        pull_policy=pull_policy,
        merge_memory=merge_memory,
    )
    if dry_run:
        return _show(campaign, site, deployment, root)
    options = RunOptions(again=again, retry_failed=retry_failed)
    return _launch(campaign, site, deployment, root, options, watch=watch)


def _check_said(image: str, store: str) -> None:
    """Raises BadInput, once for both, where there is no image or no store: a parser that knew them
    as required would ask for the second only when the first is there."""
    if image and store:
        return
    missing = [name for name, said in (("--image", image), ("--store", store)) if not said]
    raise BadInput(
        f"launch wants {' and '.join(missing)}: the workers' image, NAME@sha256:... or a tag of a "
        "CPU image, and the store as pods reach it, s3://bucket/prefix or file:///store"
    )


def _show(name: str, site: str, deployment: Deployment, root: str | None) -> int:
    """Print what would be created, and create nothing."""
    from jobs.cli.opening import patient
    from jobs.controller.dry_run import first_objects
    from jobs.controller.launching import as_yaml, campaign_object, not_uploaded
    from jobs.objects.site_profile import load_site

    shown = replace(deployment, namespace=deployment.namespace or "default")
    campaign, store, loaded = _opened(name, site, deployment, root)
    manifest = campaign_object(campaign, name, site, shown, loaded)
    typer.echo(not_uploaded(campaign, loaded, patient(store)))
    typer.echo(as_yaml([manifest, *first_objects(campaign, load_site(site), shown, store)]))
    return 0


def _launch(
    name: str,
    site: str,
    deployment: Deployment,
    root: str | None,
    options: RunOptions,
    *,
    watch: bool,
) -> int:
    """The exit code: 0, or 3 where the watch was ended before the campaign was merged."""
    from collector.store.single_writer import SingleWriterStore
    from jobs.cli.opening import patient
    from jobs.controller.launching import campaign_object, upload
    from jobs.decide.live_objects import LAUNCHED
    from jobs.kube.cluster import Cluster
    from jobs.objects.reruns import rerun_annotations

    campaign, store, loaded = _opened(name, site, deployment, root)
    cluster = Cluster.connect(deployment.namespace or None)
    there = replace(deployment, namespace=cluster.namespace)
    manifest = campaign_object(campaign, name, site, there, loaded)
    token = uuid.uuid4().hex[:12]
    manifest["metadata"]["annotations"] = rerun_annotations(options, token) | {LAUNCHED: token}
    # Their keys follow from their bytes: looking first is enough, where the store knows no more.
    upload(campaign, loaded, patient(SingleWriterStore(store)))
    cluster.apply_config_map(manifest)
    typer.echo(f"{campaign.name} is applied in namespace {cluster.namespace}")
    if not watch:
        typer.echo(f"follow it with: {_following(campaign.name, there, root)}")
        return 0
    return _watch(cluster, campaign.name, (deployment.root, root or deployment.root))


def _opened(
    name: str, site: str, deployment: Deployment, root: str | None
) -> tuple[Campaign, Store, tuple[LoadedSource, ...]]:
    """The campaign, the store as this machine reaches it, and what its sources hold."""
    from jobs.cli.opening import open_bare, open_campaign, patient
    from jobs.objects.applied_campaign import check_parts
    from jobs.objects.site_profile import load_site
    from jobs.planning.sources import load_sources

    campaign = open_campaign(name)
    check_parts(campaign, load_site(site), deployment)
    store = open_bare(
        root or deployment.root,
        single_writer=deployment.single_writer,
        said_by="--root" if root else "--store",
    )
    return campaign, store, load_sources(campaign, patient(store))


def _following(campaign: str, there: Deployment, root: str | None) -> str:
    """The command that shows how far it is, from this machine."""
    seen_at = root or there.root
    return f"opmeter status {campaign} --namespace {there.namespace} --root {seen_at} -w"


def _watch(cluster: Cluster, campaign: str, roots: tuple[str, str]) -> int:
    """Lead where nobody does, else wait for who leads. The one Lease is the namespace's, so who
    leads looks at all its campaigns. `roots`: the store as pods reach it, and from here."""
    from jobs.cli.stores import Stores
    from jobs.controller.controller import Controller
    from jobs.controller.loop import Changes, run_forever
    from jobs.kube.leader_election import STUCK_S, Election, identity
    from jobs.objects.applied_campaign import SELECTOR

    logging.getLogger("jobs").setLevel(logging.INFO)
    stop, election = stop_on_signals(), Election(cluster, identity())
    changes = Changes(cluster, SELECTOR).start()
    stores = Stores(election.hold, roots)
    controller = Controller(cluster, stores.open, may_act=election.hold)
    with election.kept(STUCK_S):
        finished = run_forever(controller, election.hold, stop, changes=changes, until=campaign)
    changes.stop()
    typer.echo("merged" if finished else "stopped; launching it again goes on")
    return 0 if finished else _NOT_FINISHED
