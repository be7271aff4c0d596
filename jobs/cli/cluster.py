"""`opmeter pause`, `cancel`, `logs`, `controller` and `work`: campaigns on a cluster."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from jobs.cli.opening import Stores, find_store, patient
from jobs.cli.options import (
    CampaignNameArgument,
    NamespaceOption,
)
from jobs.cli.terminal import say, say_lines, stop_on_signals

if TYPE_CHECKING:
    pass


# `opmeter cancel`.


def cancel_command(campaign: CampaignNameArgument, *, namespace: NamespaceOption = None) -> None:
    """Remove a campaign from the cluster.

    Committed results stay in the store. To continue the campaign, launch it again.

    \b
    Examples:
      opmeter cancel quickstart --namespace opmeter
    """
    from jobs.kube.cluster import Cluster
    from jobs.kube.errors import ObjectMissing
    from jobs.objects.applied_campaign import config_map_name

    # The ConfigMap owns the Jobs, so Kubernetes deletes them with it.
    try:
        Cluster.connect(namespace).delete_config_map(config_map_name(campaign))
    except ObjectMissing as error:
        raise BadInput(f"no campaign {campaign!r} is on the cluster: {error}") from error
    say(f"campaign {campaign} is cancelled; committed results stay in the store")


# `opmeter pause`.


def pause_command(
    campaign: CampaignNameArgument,
    *,
    resume: Annotated[bool, typer.Option("--resume", help="resume the Jobs instead")] = False,
    namespace: NamespaceOption = None,
) -> None:
    """Suspend the Jobs of a campaign, or resume them.

    Pods get two minutes to store their results. Running Jobs that Kueue owns end by themselves.

    \b
    Examples:
      opmeter pause quickstart --namespace opmeter
      opmeter pause quickstart --namespace opmeter --resume
    """
    from jobs.kube.cluster import Cluster
    from jobs.objects.applied_campaign import PAUSED, SELECTOR, config_map_name, is_named

    # The controller reads this annotation of the ConfigMap.
    cluster = Cluster.connect(namespace)
    name = config_map_name(campaign)
    if not any(map(is_named, cluster.config_maps(f"{SELECTOR}={campaign}"))):
        raise BadInput(f"no campaign {campaign!r} is in namespace {cluster.namespace}")
    cluster.annotate_config_map(name, {PAUSED: None if resume else "true"})
    say(f"campaign {campaign} is {'resumed' if resume else 'paused'}")


# `opmeter controller`.

logger = logging.getLogger(__name__)


def controller_command(
    *,
    namespace: NamespaceOption = None,
    metrics_port: Annotated[
        int, typer.Option(help="port of the Prometheus metrics; 0 for none")
    ] = 9400,
    interval: Annotated[float, typer.Option(help="seconds between two reconciliations")] = 5.0,
    sources_folder: Annotated[
        list[Path] | None,
        typer.Option(
            help="folder whose files campaigns may name; may be given again  [default: none]"
        ),
    ] = None,
) -> int:
    """Run the controller of all campaigns of a namespace, until a signal ends it.

    One controller of a namespace leads by a Lease; the others wait to lead.

    \b
    Examples:
      opmeter controller --namespace opmeter
    """
    from jobs.controller.controller import Controller
    from jobs.controller.loop import Changes, run_forever
    from jobs.controller.metrics import Metrics
    from jobs.kube.cluster import Cluster
    from jobs.kube.leader_election import STUCK_S, Election, identity
    from jobs.objects.applied_campaign import SELECTOR

    log_as_json()
    cluster, stop = Cluster.connect(namespace), stop_on_signals()
    election = Election(cluster, identity())
    metrics = Metrics(lambda: election.idle_s)
    if metrics_port:
        metrics.serve(metrics_port)

    def leads() -> bool:
        found = election.hold()
        metrics.set("opmeter_is_leader", found)
        return found

    logger.info("running the controller of namespace %s", cluster.namespace)
    changes = Changes(cluster, SELECTOR).start()
    stores = Stores(leads)
    controller = Controller(cluster, stores.open, metrics, leads, folders=sources_folder or ())
    with election.kept(STUCK_S):
        run_forever(controller, leads, stop, changes=changes, interval_s=interval)
    changes.stop()
    return 0


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time, level, logger, message and traceback."""

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


def log_as_json() -> None:
    """Log to standard error, one JSON object a line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


# `opmeter work`.


def work_command() -> int:
    """Measure the shards of one index of a wave, in a worker pod.

    The Jobs of a campaign run this command; their environment names the wave.
    """
    from jobs.executor.pid1 import run_as_pid1
    from jobs.executor.worker_pod import work_in_pod

    return run_as_pid1(work_in_pod)


# `opmeter logs`.


def logs_command(
    shard: Annotated[
        str | None,
        typer.Argument(help="id of the shard, or a prefix of it  [default: list all shards]"),
    ] = None,
    *,
    root: Annotated[
        str | None, typer.Option(help="store  [default: ./opmeter-data, or that of the cluster]")
    ] = None,
    campaign: Annotated[
        str | None, typer.Option(help="name of the campaign  [default: all]")
    ] = None,
    namespace: NamespaceOption = None,
) -> None:
    """Print the logs of the attempts at a shard.

    If the shard is not committed or has no stored log, the logs of its pods follow. Without a
    shard, the command lists all shards.

    \b
    Examples:
      opmeter logs
      opmeter logs SHARD --campaign quickstart --namespace opmeter
    """
    from collector.database.shard_commits import read_shard_commit
    from jobs.status import follower
    from jobs.status.why import ClusterView

    view = ClusterView(campaign, namespace)
    store = patient(find_store(root, campaign, view))
    plans = follower.plans_of(store, campaign)
    if shard is None:
        say_lines(follower.shard_list_lines(store, plans))
        return
    name, found = follower.find_shard(store, plans, shard)
    lines = 0
    for whose, text in follower.stored_logs(store, name, found):
        lines += 1
        _print(whose, text)
    if not lines or read_shard_commit(store, name, found) is None:
        for whose, text in view.pod_logs(name, follower.job_indexes(store, name, found)):
            lines += 1
            _print(whose, [text])
    if not lines:
        why = f" ({view.trouble})" if view.trouble else ""
        raise BadInput(
            f"shard {found} of campaign {name}: no attempt has stored a log, and the shard has no "
            f"pod{why}"
        )


def _print(whose: str, text: Iterable[str]) -> None:
    say(f"== {whose}")
    is_empty = True
    for piece in text:
        is_empty = is_empty and not piece
        say(piece)
    if is_empty:
        say("(the log is empty)")
