"""`opmeter controller`, `cancel` and `pause`."""

import logging
import signal
import threading

import typer

from collector.errors import BadInput
from jobs.applied import PAUSED, SELECTOR, config_map_name
from jobs.cluster import Cluster
from jobs.cluster_errors import ObjectMissing
from jobs.controller import Controller
from jobs.leader import Election, identity
from jobs.logformat import log_as_json
from jobs.loop import Changes, run_forever
from jobs.merge_lease import MergeLease
from jobs.metrics import Metrics
from jobs.verbs.stores import Stores

logger = logging.getLogger(__name__)


def controller_verb(namespace: str | None, metrics_port: int, interval_s: float) -> int:
    """Lead, or wait to lead, until a signal ends it."""
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
    stores = Stores(leads, MergeLease(cluster, identity()))
    controller = Controller(cluster, stores.open, stores.guard, metrics, leads)
    run_forever(controller, leads, stop, changes=changes, interval_s=interval_s)
    changes.stop()
    election.release()
    return 0


def cancel_verb(campaign: str, namespace: str | None) -> None:
    """Delete the ConfigMap, and with it the Jobs."""
    try:
        Cluster.connect(namespace).delete_config_map(config_map_name(campaign))
    except ObjectMissing as error:
        raise BadInput(f"no campaign {campaign!r} is applied there: {error}") from error
    typer.echo(f"{campaign} is cancelled; what was committed stays in the store")


def pause_verb(campaign: str, namespace: str | None, *, on: bool) -> None:
    """Write the wish on the ConfigMap; the controller reads it there."""
    cluster = Cluster.connect(namespace)
    name = config_map_name(campaign)
    if not cluster.config_maps(f"{SELECTOR}={campaign}"):
        raise BadInput(f"no campaign {campaign!r} is applied in {cluster.namespace}")
    cluster.annotate_config_map(name, {PAUSED: "true" if on else None})
    typer.echo(f"{campaign} {'is paused' if on else 'goes on'}")


def stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
