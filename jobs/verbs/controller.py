"""`opmeter controller`, `cancel` and `pause`."""

import logging
import os
import platform
import signal
import threading
import uuid

import typer

from collector.database.merge import Guard
from collector.errors import BadInput
from collector.store.base import Store
from collector.store.patient import PatientStore
from jobs.applied import PAUSED, SELECTOR, Applied, config_map_name
from jobs.cluster import Cluster
from jobs.cluster_errors import ObjectMissing
from jobs.controller import Controller
from jobs.leader import Election
from jobs.logformat import log_as_json
from jobs.loop import Changes, run_forever
from jobs.metrics import Metrics
from jobs.verbs.opening import choose_guard, open_bare

logger = logging.getLogger(__name__)

# A store that is away for longer than this is looked for again at the next look: other campaigns,
# the Lease and the Jobs of this one do not wait for it.
_PATIENCE_S = 10.0


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
    controller = Controller(cluster, store_of_pods, guard_of, metrics, leads)
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


def store_of_pods(applied: Applied) -> Store:
    """The store of a campaign at the address that pods use."""
    deployment = applied.deployment
    store = open_bare(deployment.root, single_writer=deployment.single_writer)
    return impatient(store)


def impatient(store: Store) -> Store:
    """The same store, not waited for longer than a look may take."""
    return PatientStore(store, _PATIENCE_S)


def guard_of(applied: Applied, store: Store) -> Guard:
    """How merges into this store stay apart."""
    return choose_guard(store, single_writer=applied.deployment.single_writer)


def identity() -> str:
    """What a Lease calls this process."""
    return f"{os.environ.get('POD_NAME') or platform.node()}-{uuid.uuid4().hex[:6]}"


def stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
