"""Commands for campaigns on a cluster: launch, cancel, pause, logs, controller and worker."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from jobs.cli.options import CampaignNameArgument, NamespaceOption
from jobs.cli.terminal import say

if TYPE_CHECKING:
    from collector.store.base import Store
    from jobs.campaign.campaign_file import Campaign, RunOptions
    from jobs.kube.cluster import Cluster
    from jobs.objects.deployment import Deployment
    from jobs.planning.sources import LoadedSource


# `opmeter cancel`.


def cancel_verb(campaign: CampaignNameArgument, *, namespace: NamespaceOption = None) -> None:
    """Take a campaign off the cluster. What is committed stays; launching it again goes on."""
    from jobs.kube.cluster import Cluster
    from jobs.kube.errors import ObjectMissing
    from jobs.objects.applied_campaign import config_map_name

    # The Jobs go with the ConfigMap that owns them.
    try:
        Cluster.connect(namespace).delete_config_map(config_map_name(campaign))
    except ObjectMissing as error:
        raise BadInput(f"no campaign {campaign!r} is applied there: {error}") from error
    say(f"{campaign} is cancelled; what was committed stays in the store")


# `opmeter pause`.


def pause_verb(
    campaign: CampaignNameArgument,
    *,
    resume: Annotated[bool, typer.Option("--resume", help="go on")] = False,
    namespace: NamespaceOption = None,
) -> None:
    """Suspend a campaign's Jobs, or let them go on."""
    from jobs.kube.cluster import Cluster
    from jobs.objects.applied_campaign import PAUSED, SELECTOR, config_map_name, is_named

    # Written on the ConfigMap; the controller reads it there.
    cluster = Cluster.connect(namespace)
    name = config_map_name(campaign)
    if not any(map(is_named, cluster.config_maps(f"{SELECTOR}={campaign}"))):
        raise BadInput(f"no campaign {campaign!r} is applied in {cluster.namespace}")
    cluster.annotate_config_map(name, {PAUSED: None if resume else "true"})
    say(f"{campaign} {'goes on' if resume else 'is paused'}")


# `opmeter controller`: it leads, or waits to lead, until a signal ends it.

logger = logging.getLogger(__name__)


def controller_verb(
    *,
    namespace: NamespaceOption = None,
    metrics_port: Annotated[int, typer.Option(help="for Prometheus; 0 for none")] = 9400,
    interval: Annotated[float, typer.Option(help="seconds between two looks")] = 5.0,
    sources_folder: Annotated[
        list[Path] | None,
        typer.Option(help="campaigns may name files below it; may be given again  [none]"),
    ] = None,
) -> int:
    """Move every campaign of a namespace on, for ever: what runs in the cluster."""
    from jobs.cli.stores import Stores
    from jobs.controller.controller import Controller
    from jobs.controller.loop import Changes, run_forever
    from jobs.controller.metrics import Metrics
    from jobs.kube.cluster import Cluster
    from jobs.kube.leader_election import STUCK_S, Election, identity
    from jobs.objects.applied_campaign import SELECTOR

    log_as_json()
    cluster, stop = Cluster.connect(namespace), stop_on_signals()
    metrics = Metrics()
    if metrics_port:
        metrics.serve(metrics_port)
    election = Election(cluster, identity())

    def leads() -> bool:
        found = election.hold()
        metrics.set("opmeter_is_leader", found)
        return found

    logger.info("controller of namespace %s", cluster.namespace)
    changes = Changes(cluster, SELECTOR).start()
    stores = Stores(leads)
    controller = Controller(cluster, stores.open, metrics, leads, folders=sources_folder or ())
    with election.kept(STUCK_S):
        run_forever(controller, leads, stop, changes=changes, interval_s=interval)
    changes.stop()
    return 0


def stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop


class JsonFormatter(logging.Formatter):
    """Time, level, logger and message; a traceback as text."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def log_as_json(level: int = logging.INFO) -> None:
    """Send everything to standard error in this form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)


# `opmeter launch`.

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
    from jobs.campaign.campaign_file import RunOptions
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
    from jobs.controller.launching import as_yaml, campaign_object, first_objects, not_uploaded
    from jobs.objects.site import load_site

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
    from collector.store.waiting import SingleWriterStore
    from jobs.cli.opening import patient
    from jobs.controller.launching import campaign_object, upload
    from jobs.decide.live_objects import LAUNCHED
    from jobs.kube.cluster import Cluster
    from jobs.objects.applied_campaign import rerun_annotations

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
    from jobs.objects.site import load_site
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


# `opmeter work`.


def work_verb() -> int:
    """Do the work of one index of a wave: what runs in a worker pod."""
    from jobs.executor.pid1 import run_as_pid1
    from jobs.executor.worker_pod import work_in_pod

    return run_as_pid1(work_in_pod)


# `opmeter logs`.


def logs_verb(
    shard: Annotated[
        str | None,
        typer.Argument(help="the shard's id, or the beginning of it  [list what there is]"),
    ] = None,
    *,
    root: Annotated[
        str | None, typer.Option(help="the store  [./opmeter-data, or that of the cluster]")
    ] = None,
    campaign: Annotated[str | None, typer.Option(help="of this campaign only")] = None,
    namespace: NamespaceOption = None,
) -> None:
    """Print what the attempts at a shard logged, and its pods where they left nothing."""
    from collector.database.committed import read_commit
    from jobs.cli.opening import find_root, open_root
    from jobs.status.follower import find_shard, places_of, plans_of, shards_there_are, stored_logs
    from jobs.status.why import ClusterView

    view = ClusterView(campaign, namespace)
    store = open_root(find_root(root, campaign, view))
    plans = plans_of(store, campaign)
    if shard is None:
        for line in shards_there_are(store, plans):
            say(line)
        return
    name, found = find_shard(store, plans, shard)
    told = 0
    for whose, text in stored_logs(store, name, found):
        told += 1
        _print(whose, text)
    if not told or read_commit(store, name, found) is None:
        for whose, text in view.pod_logs(name, places_of(store, name, found)):
            told += 1
            _print(whose, [text])
    if not told:
        why = f" ({view.trouble})" if view.trouble else ""
        raise BadInput(
            f"shard {found} of campaign {name}: no attempt has left a log, and no pod of it is "
            f"there{why}"
        )


def _print(whose: str, text: Iterable[str]) -> None:
    say(f"== {whose}")
    for piece in text:
        say(piece)
