"""`opmeter logs`."""

from collections.abc import Iterator

import typer
import zstandard

from collector import keys
from collector.errors import BadInput
from collector.store.base import Store
from collector.worker.attempt import read_commit
from jobs.rounds import read_plans
from jobs.status import campaigns
from jobs.verbs.cluster_view import ClusterView
from jobs.verbs.finding import find_root
from jobs.verbs.opening import open_root
from jobs.waves import Wave, wave_from_json

Log = tuple[str, str]  # whose, and its text


def logs_verb(
    shard: str, root: str | None, campaign: str | None, namespace: str | None = None
) -> None:
    """Every attempt's log, oldest first; then, where a worker may have left none, what the pods
    that have or had the shard printed."""
    view = ClusterView(campaign, namespace)
    store = open_root(find_root(root, campaign, view))
    name, found = _find(store, shard, campaign)
    told = 0
    for whose, text in _stored(store, name, found):
        told += 1
        _print(whose, text)
    if not told or read_commit(store, name, found) is None:
        for whose, text in view.pod_logs(name, _places(store, name, found)):
            told += 1
            _print(whose, text)
    if not told:
        why = f" ({view.trouble})" if view.trouble else ""
        raise BadInput(
            f"shard {found} of campaign {name}: no attempt has left a log, and no pod of it is "
            f"there{why}"
        )


def _print(whose: str, text: str) -> None:
    typer.echo(f"== {whose}")
    typer.echo(text)


def _stored(store: Store, campaign: str, shard: str) -> Iterator[Log]:
    for info in store.list(keys.attempts(campaign, shard)):
        if info.key.endswith("/log.zst"):
            yield info.key, _text(store.get(info.key))


def _places(store: Store, campaign: str, shard: str) -> dict[str, int]:
    """Job -> the index of it that has the shard."""
    listed = (info.key for info in store.list(keys.waves(campaign)))
    waves = [wave_from_json(store.get(key), key=key) for key in listed]
    return {wave.job_name: _index(wave, shard) for wave in waves if shard in wave.shards}


def _index(wave: Wave, shard: str) -> int:
    return next(at for at, shards in enumerate(wave.indexes) if shard in shards)


def _find(store: Store, beginning: str, campaign: str | None) -> tuple[str, str]:
    names = [campaign] if campaign else campaigns(store)
    found = {
        (name, shard.shard_id)
        for name in names
        for plan in read_plans(store, name)
        for shard in plan.shards
        if shard.shard_id.startswith(beginning)
    }
    if len(found) != 1:
        raise BadInput(
            f"shard {beginning!r}: {len(found)} shards begin so at {store.url}; "
            "`opmeter status CAMPAIGN` lists them"
        )
    return found.pop()


def _text(data: bytes) -> str:
    return (
        zstandard.ZstdDecompressor()
        .decompress(data, max_output_size=1 << 30)
        .decode(errors="replace")
    )
