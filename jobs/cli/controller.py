"""`opmeter controller`: it leads, or waits to lead, until a signal ends it."""

import json
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from jobs.cli.options import NamespaceOption

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
