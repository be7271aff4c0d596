"""`opmeter launch`: start a campaign on a cluster, and watch it."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput, StoreError
from collector.codec.text import counted
from collector.model import keys
from jobs.cli.opening import Stores, open_bare, open_campaign, patient
from jobs.cli.options import (
    AgainOption,
    CampaignArgument,
    NamespaceOption,
    RetryFailedOption,
    SingleWriterOption,
)
from jobs.cli.terminal import say, stop_on_signals
from jobs.objects.deployment import Deployment

if TYPE_CHECKING:
    from collector.store.base import Store
    from jobs.campaign.campaign_file import Campaign
    from jobs.kube.cluster import Cluster
    from jobs.kube.leader_election import LeaderCheck
    from jobs.objects.site import Site
    from jobs.planning.sources import LoadedSource


_NOT_FINISHED = 3


def launch_command(
    campaign: CampaignArgument,
    *,
    image: Annotated[
        str,
        typer.Option(
            help="image of the workers: NAME@sha256:..., or a tag of a CPU image  [required]"
        ),
    ] = "",
    store: Annotated[
        str,
        typer.Option(
            help="store as pods reach it: s3://bucket/prefix or file:///store  [required]"
        ),
    ] = "",
    controller_image: Annotated[
        str, typer.Option(help="image of the merges, without torch  [default: that of the workers]")
    ] = "",
    site: Annotated[
        str, typer.Option(help="site, which describes the machines: a bundled name or a YAML file")
    ] = "cpu",
    set_key: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="KEY=VALUE: key of the site in place of the profile's; may be given again  "
            "[default: none]",
        ),
    ] = None,
    namespace: NamespaceOption = None,
    store_secret: Annotated[
        str,
        typer.Option(help="Secret with the files credentials and config for S3  [default: none]"),
    ] = "",
    worker_secret: Annotated[
        str,
        typer.Option(
            help="Secret of the workers, with fewer rights  [default: that of --store-secret]"
        ),
    ] = "",
    store_claim: Annotated[
        str, typer.Option(help="PersistentVolumeClaim that is mounted as /store  [default: none]")
    ] = "",
    site_packages: Annotated[
        str,
        typer.Option(help="read-only PersistentVolumeClaim that contains torch  [default: none]"),
    ] = "",
    pull_policy: Annotated[
        str, typer.Option(help="pull policy of the images: IfNotPresent, Always or Never")
    ] = "IfNotPresent",
    merge_memory: Annotated[
        str, typer.Option(help="memory of a merge, which loads all rows of the database")
    ] = "8Gi",
    single_writer: SingleWriterOption = False,
    allow_unpinned: Annotated[
        bool, typer.Option("--allow-unpinned", help="accept an NPU image without a digest")
    ] = False,
    root: Annotated[
        str | None,
        typer.Option(help="store as this machine reaches it  [default: same as --store]"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the objects without creating them")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="control the campaign from here until it is merged"),
    ] = False,
    again: AgainOption = False,
    retry_failed: RetryFailedOption = False,
) -> int:
    """Start a campaign on a cluster: upload its cases and apply its ConfigMap.

    A controller in the cluster does the rest; without one, the command warns you. A dry run
    requires neither a cluster nor credentials.
    With --watch this command is the controller of the namespace until the campaign is merged; if
    you interrupt it, it ends with 3, and the same command continues.

    \b
    Examples:
      opmeter launch campaign.yaml --site a2-800t --namespace opmeter \\
          --image registry.example.com/opmeter/collector@sha256:... \\
          --set scheduler=volcano --store s3://bucket/prefix --store-secret store
      opmeter launch quickstart --image opmeter/collector-cpu:dev \\
          --store file:///store --store-claim opmeter-store --dry-run
    """
    from collector.store.waiting import SingleWriterStore
    from jobs.campaign.campaign_file import RunOptions
    from jobs.controller import launching
    from jobs.decide.live_objects import LAUNCHED
    from jobs.kube.cluster import Cluster
    from jobs.objects.applied_campaign import rerun_annotations
    from jobs.objects.site import load_site
    from jobs.planning.sources import static_cases

    _check_reported(image, store)
    changes = _changes(set_key or ())
    machines = load_site(site, changes)
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
    known = _known_cluster(namespace)
    leader = None if watch else _leader_check(known)
    opened, bare, loaded = _opened(campaign, machines, deployment, root, dry_run=dry_run)
    hashes = tuple(file.sha256 for file in opened.planned_operators)
    deployment = replace(deployment, operators=hashes)
    if count := static_cases(opened, loaded):
        what = counted(count, "case of static kernels", "cases of static kernels")
        need = "they require op_compiler of CANN's toolkit and torchair in the image"
        say(f"{what}: {need}; `opmeter doctor` in a pod of it checks that", err=True)
    if dry_run:
        here = known.namespace if known else "default"
        deployment = replace(deployment, namespace=namespace or here)
        manifest = launching.campaign_object(opened, campaign, site, deployment, loaded, changes)
        say("planning the first wave", err=True)
        first = launching.first_objects(opened, machines, deployment, bare)
        typer.echo(launching.not_uploaded(opened, loaded, patient(bare)))
        typer.echo(launching.as_yaml([manifest, *first]))
        _warn_without_leader(leader, deployment.namespace)
        return 0
    cluster = Cluster.connect(namespace)
    deployment = replace(deployment, namespace=cluster.namespace)
    manifest = launching.campaign_object(opened, campaign, site, deployment, loaded, changes)
    token = uuid.uuid4().hex[:12]
    notes = rerun_annotations(RunOptions(again=again, retry_failed=retry_failed), token)
    manifest["metadata"]["annotations"] = notes | {LAUNCHED: token}
    # The keys of cases follow from their bytes, so a check before each write is enough on a store
    # without create-only writes.
    launching.upload(opened, loaded, patient(SingleWriterStore(bare)))
    cluster.apply_config_map(manifest)
    typer.echo(f"launched campaign {opened.name} in namespace {cluster.namespace}")
    from_here = root or store
    if watch:
        return _watch(cluster, opened.name, (store, from_here))
    seen_at = f"--namespace {cluster.namespace} --root {from_here}"
    typer.echo(f"show its progress: opmeter status {opened.name} {seen_at} -w")
    _warn_without_leader(leader, deployment.namespace)
    return 0


def _known_cluster(namespace: str | None) -> Cluster | None:
    """Return the cluster of this machine, for a short look at it; None if it has none."""
    from jobs.kube.cluster import Cluster

    try:
        return Cluster.connect(namespace, patience_s=0.0)
    except BadInput:
        return None


def _leader_check(cluster: Cluster | None) -> LeaderCheck | None:
    """Begin to observe whether a controller leads; None if that cannot be known."""
    from jobs.kube.errors import ClusterError
    from jobs.kube.leader_election import LeaderCheck

    if cluster is None:
        return None
    try:
        return LeaderCheck(cluster)
    except ClusterError as error:
        say(f"controller: not known whether one leads in {cluster.namespace}: {error}", err=True)
        return None


def _warn_without_leader(leader: LeaderCheck | None, namespace: str) -> None:
    from jobs.kube.errors import ClusterError
    from jobs.kube.leader_election import leader_fix

    if leader is None:
        return
    say("checking whether a controller leads", err=True)
    try:
        if complaint := leader.complaint():
            complaint += f": {leader_fix(namespace)}"
    except ClusterError as error:
        complaint = f"not known whether one leads: {error}"
    if complaint:
        say(f"controller: {complaint}", err=True)


def _check_reported(image: str, store: str) -> None:
    """Raise one BadInput that names both options if an image or a store is missing. If the options
    were required, the parser would report only the first one."""
    if image and store:
        return
    missing = [name for name, reported in (("--image", image), ("--store", store)) if not reported]
    raise BadInput(
        f"launch requires {' and '.join(missing)}: the image of the workers (NAME@sha256:..., or a "
        "tag of a CPU image), and the store as pods reach it (s3://bucket/prefix or file:///store)"
    )


def _changes(texts: Iterable[str]) -> dict[str, str]:
    """Return the keys of a site that `--set` gives, by name."""
    found: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or key in found:
            raise BadInput(f"--set: expected KEY=VALUE, each key once, got {text!r}")
        found[key] = value
    return found


def _opened(
    name: str, site: Site, deployment: Deployment, root: str | None, *, dry_run: bool
) -> tuple[Campaign, Store, tuple[LoadedSource, ...]]:
    from collector.store.in_memory import MemoryStore
    from jobs.objects.applied_campaign import check_parts
    from jobs.planning.candidates import check_kernel_types
    from jobs.planning.sources import load_sources

    campaign = open_campaign(name)
    check_parts(campaign, site, deployment)
    try:
        store = open_bare(
            root or deployment.root,
            single_writer=deployment.single_writer,
            location="--root" if root else "--store",
        )
        if dry_run:
            say(f"reading {store.url}", err=True)
            next(iter(store.list(keys.CAMPAIGNS)), None)
    except StoreError as error:
        if not dry_run:
            raise
        say(f"taken as an empty store, because it cannot be read: {error}", err=True)
        store = MemoryStore()
    say(f"reading the sources of {campaign.name}", err=True)
    loaded = load_sources(campaign, patient(store))
    check_kernel_types(chain.from_iterable(one.records for one in loaded), campaign.operators)
    return campaign, store, loaded


def _watch(cluster: Cluster, campaign: str, roots: tuple[str, str]) -> int:
    """Control the namespace until the campaign is merged; return the exit code.

    A namespace has one Lease, so the leader reconciles all its campaigns; while another controller
    leads, this one waits. `roots` are the store as pods reach it and as this machine reaches it.
    """
    from jobs.controller.controller import Controller
    from jobs.controller.loop import Changes, run_forever
    from jobs.kube.leader_election import STUCK_S, Election, identity
    from jobs.objects.applied_campaign import SELECTOR

    logging.getLogger("jobs").setLevel(logging.INFO)
    stop, election = stop_on_signals(), Election(cluster, identity())
    changes = Changes(cluster, SELECTOR).start()
    stores = Stores(election.hold, roots)
    controller = Controller(cluster, stores.open, may_perform=election.hold)
    with election.kept(STUCK_S):
        finished = run_forever(controller, election.hold, stop, changes=changes, until=campaign)
    changes.stop()
    typer.echo("merged" if finished else "stopped; launch it again to continue")
    return 0 if finished else _NOT_FINISHED
