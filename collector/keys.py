"""Where things lie in a store: one function a kind of object, and no other place spells a key.

No key is the parent of another, so that a folder and an S3 bucket can hold the same tree. Names
that come from data are checked before they become part of a key.
"""

import re

from collector.errors import BadInput

_CAMPAIGN = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")

HEAD = "db/HEAD.json"
COMMITS = "db/commits/"
SNAPSHOTS = "db/snapshots/"
MEASUREMENTS = "db/measurements/"


def campaign_name(text: str) -> str:
    """The name itself, or BadInput: lower case, digits and '-', at most 40 characters."""
    if not _CAMPAIGN.fullmatch(text):
        raise BadInput(
            f"campaign {text!r}: lower-case letters, digits and '-' are wanted, at most 40"
        )
    return text


def source(campaign: str, sha256: str) -> str:
    return f"{_campaign(campaign)}/sources/{_token(sha256)}.csv"


def plans(campaign: str) -> str:
    return f"{_campaign(campaign)}/plans/"


def plan(campaign: str, number: int) -> str:
    return f"{plans(campaign)}{number}.json"


def shard(campaign: str, shard_id: str) -> str:
    return f"{_campaign(campaign)}/shards/{_token(shard_id)}.csv"


def waves(campaign: str) -> str:
    return f"{_campaign(campaign)}/waves/"


def wave(campaign: str, wave_hash: str) -> str:
    return f"{waves(campaign)}{_token(wave_hash)}.json"


def nodes(campaign: str) -> str:
    """What a campaign's controller holds against nodes."""
    return f"{_campaign(campaign)}/nodes.json"


def all_attempts(campaign: str) -> str:
    """The prefix under which every attempt lies, at whichever shard."""
    return f"{_campaign(campaign)}/attempts/"


def attempts(campaign: str, shard_id: str) -> str:
    """The prefix under which every attempt at a shard lies."""
    return f"{all_attempts(campaign)}{_token(shard_id)}/"


def attempt(campaign: str, shard_id: str, attempt_id: str) -> str:
    return f"{attempts(campaign, shard_id)}{_token(attempt_id)}/"


def raw_summary(
    campaign: str, shard_id: str, attempt_id: str, session: int, group: str = ""
) -> str:
    """What the profiler recorded of a session; `group` tells the further passes of an NPU apart,
    one for each further group of counters."""
    more = f"-{_token(group)}" if group else ""
    return f"{attempt(campaign, shard_id, attempt_id)}raw/op_summary-{session}{more}.csv.zst"


def raw_journal(
    campaign: str, shard_id: str, attempt_id: str, session: int, group: str = ""
) -> str:
    more = f"-{_token(group)}" if group else ""
    return f"{attempt(campaign, shard_id, attempt_id)}raw/journal-{session}{more}.jsonl.zst"


def part(campaign: str, shard_id: str, attempt_id: str, session: int) -> str:
    return f"{attempt(campaign, shard_id, attempt_id)}part-{session}.csv"


def usage(campaign: str, shard_id: str, attempt_id: str, session: int) -> str:
    """Beside the part of the same number: what the device was used for."""
    return f"{attempt(campaign, shard_id, attempt_id)}usage-{session}.json"


def session_cases(campaign: str, shard_id: str, attempt_id: str, session: int) -> str:
    """Written before a session: its cases. Where no part of the same number came after it, its
    worker did not live to tell how it ended."""
    return f"{attempt(campaign, shard_id, attempt_id)}session-{session}.json"


def attempt_log(campaign: str, shard_id: str, attempt_id: str) -> str:
    return f"{attempt(campaign, shard_id, attempt_id)}log.zst"


def progress(campaign: str, shard_id: str, attempt_id: str) -> str:
    return f"{attempt(campaign, shard_id, attempt_id)}progress.json"


def attempt_manifest(campaign: str, shard_id: str, attempt_id: str) -> str:
    return f"{attempt(campaign, shard_id, attempt_id)}manifest.json"


def committed_shards(campaign: str) -> str:
    """The prefix of the commits of shards: the only one that is listed to follow a campaign."""
    return f"{_campaign(campaign)}/committed/"


def committed(campaign: str, shard_id: str) -> str:
    return f"{committed_shards(campaign)}{_token(shard_id)}.json"


def commit(number: int) -> str:
    return f"{COMMITS}{number:08d}.json"


def measurements(sha256: str) -> str:
    return f"{MEASUREMENTS}{_token(sha256)}.parquet"


def snapshot(name: str) -> str:
    """The prefix of one snapshot; `name` is `{number}-{random}`."""
    return f"{SNAPSHOTS}{_token(name)}/"


def snapshot_manifest(name: str) -> str:
    return f"{snapshot(name)}manifest.json"


def channel(name: str) -> str:
    return f"db/channels/{_token(name)}.json"


def _campaign(name: str) -> str:
    return f"campaigns/{campaign_name(name)}"


def _token(text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise BadInput(f"{text!r} cannot be part of a key")
    return text
