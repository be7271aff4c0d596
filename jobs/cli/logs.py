"""`opmeter logs`."""

from collections.abc import Iterable
from typing import Annotated

import typer

from collector.errors import BadInput
from jobs.cli.options import NamespaceOption
from jobs.cli.terminal import say


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
    from jobs.status.attempt_logs import (
        find_shard,
        places_of,
        plans_of,
        shards_there_are,
        stored_logs,
    )
    from jobs.status.cluster_view import ClusterView

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
