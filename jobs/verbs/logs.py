"""`opmeter logs`."""

import typer
import zstandard

from collector import keys
from collector.errors import BadInput
from collector.store.base import Store
from jobs.rounds import read_plans
from jobs.status import campaigns
from jobs.verbs.opening import open_root


def logs_verb(shard: str, root: str | None, campaign: str | None) -> None:
    """Every attempt's log, oldest first."""
    store = open_root(root)
    name, found = _find(store, shard, campaign)
    logs = [
        info for info in store.list(keys.attempts(name, found)) if info.key.endswith("/log.zst")
    ]
    if not logs:
        raise BadInput(f"shard {found} of campaign {name}: no attempt has left a log yet")
    for info in logs:
        typer.echo(f"== {info.key}")
        typer.echo(_text(store.get(info.key)))


def _find(store: Store, beginning: str, campaign: str | None) -> tuple[str, str]:
    names = [campaign] if campaign else campaigns(store)
    found = [
        (name, shard.shard_id)
        for name in names
        for plan in read_plans(store, name)
        for shard in plan.shards
        if shard.shard_id.startswith(beginning)
    ]
    if len(set(found)) != 1:
        raise BadInput(
            f"shard {beginning!r}: {len(set(found))} shards begin so; "
            "`opmeter status CAMPAIGN` lists them"
        )
    return found[0]


def _text(data: bytes) -> str:
    return (
        zstandard.ZstdDecompressor()
        .decompress(data, max_output_size=1 << 30)
        .decode(errors="replace")
    )
