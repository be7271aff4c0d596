"""The keys of a store: one function for each kind of object; no other module builds a key.

No key is the parent of another, so that a folder and an S3 bucket can store the same tree. Names
that come from data are checked before they become part of a key.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from collector.codec.errors import BadInput

_CAMPAIGN = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_OF_SESSION = re.compile(
    rf"({_TOKEN.pattern})/(raw/op_summary|raw/journal|part|entry|session)"
    rf"-(0|[1-9][0-9]{{0,8}})(?:-({_TOKEN.pattern}))?\.(?:csv|json|csv\.zst|jsonl\.zst)"
)
_LAST_NUMBER = re.compile(r"([0-9]{1,15})\.[a-z]+")

CAMPAIGNS = "campaigns/"
DATABASE = "db/"
HEAD = "db/HEAD.json"
COMMITS = "db/commits/"
SNAPSHOTS = "db/snapshots/"
MEASUREMENTS = "db/measurements/"
SHOWN = "db/shown/"
VERSIONS = "db/versions/"
REUSED = "db/reused/"
VERIFIED = "verified/"
CHANNELS = "db/channels/"
RETIRED = "db/retired/"
VERIFIED_MARK = "db/verified.json"


_PART = r"(?!\.)[A-Za-z0-9_.+-]{1,250}"
_VERSION_PATH = re.compile(rf"({_PART})/vllm_ascend/({_PART})")
_A_NUMBER, _A_HASH = r"(0|[1-9][0-9]*)", r"[0-9a-f]{64}"
_A_SNAPSHOT = r"[0-9]{8,}-[0-9a-f]{8}"
_A_GROUP = rf"{_A_NUMBER}(-{_TOKEN.pattern})?"
_OF_AN_ATTEMPT = (
    rf"manifest\.json|progress\.json|log\.zst|part-{_A_NUMBER}\.csv|entry-{_A_NUMBER}\.json"
    rf"|session-{_A_NUMBER}\.json|raw/op_summary-{_A_GROUP}\.csv\.zst"
    rf"|raw/journal-{_A_GROUP}\.jsonl\.zst"
)
_OF_A_CAMPAIGN = (
    rf"nodes\.json|sources/{_A_HASH}\.csv|operators/{_A_HASH}\.py|plans/[1-9][0-9]*\.json|shards/{_TOKEN.pattern}\.csv"
    rf"|(waves|meetings)/{_TOKEN.pattern}\.json|committed/{_TOKEN.pattern}\.json"
    rf"|attempts/{_TOKEN.pattern}/{_TOKEN.pattern}/({_OF_AN_ATTEMPT})"
)
_OF_THE_DATABASE = (
    rf"(HEAD|verified)\.json|commits/(?!0+\.)([0-9]{{8}}|[1-9][0-9]{{8,}})\.json"
    rf"|(measurements|shown)/device={_PART}/version={_PART}/{_A_SNAPSHOT}\.parquet"
    r"|(measurements|shown)/_delta_log/([0-9]{20}\.(checkpoint\.parquet|json)|_last_checkpoint)"
    rf"|reused/device={_PART}/version={_PART}/{_A_HASH}\.json"
    r"|channels/[a-z][a-z0-9-]{0,30}/[0-9]{8}\.json|retired/[0-9]{8}\.json"
    rf"|versions/{_A_SNAPSHOT}/{_VERSION_PATH.pattern}"
    r"/((manifest|croissant)\.json|(profiles|pairs)\.parquet|index\.bin|DATASET\.md)"
    rf"|snapshots/{_A_SNAPSHOT}/.+"
)
_OURS = re.compile(
    rf"{CAMPAIGNS}{_CAMPAIGN.pattern}/({_OF_A_CAMPAIGN})|{DATABASE}({_OF_THE_DATABASE})"
    rf"|{VERIFIED}{_A_HASH}\.json"
)


def is_ours(key: str) -> bool:
    """Return whether a function of this module can produce the key. For files of a snapshot, whose
    names are in its manifest, return whether the key is inside a snapshot."""
    return _OURS.fullmatch(key) is not None


def campaign_name(text: str) -> str:
    """Return the name. Raises BadInput unless it has 1 to 40 lower-case letters, digits and '-',
    and neither begins nor ends with '-'."""
    if not _CAMPAIGN.fullmatch(text):
        raise BadInput(
            "campaign: expected a name of 1 to 40 lower-case letters, digits and '-' that neither "
            f"begins nor ends with '-', got {text!r}"
        )
    return text


def number_in_key(key: str, spell: Callable[[int], str]) -> int | None:
    """Return the number from which `spell` produces exactly this key; None for a stray, whatever
    its name: an editor's copy, a file of the desktop, a number in another spelling."""
    found = _LAST_NUMBER.search(key.rpartition("/")[2])
    number = int(found[1]) if found else None
    return number if number is not None and spell(number) == key else None


def name_of(key: str, spell: Callable[[str], str]) -> str | None:
    """Return the name from which `spell` produces exactly this key; None for a stray."""
    name = key.rpartition("/")[2].rpartition(".")[0]
    return name if _TOKEN.fullmatch(name) and spell(name) == key else None


def verified(sha256: str) -> str:
    """Return the key of a self-test's result, by the hash of its bytes."""
    return f"{VERIFIED}{_token(sha256)}.json"


def source(campaign: str, sha256: str) -> str:
    return f"{_campaign(campaign)}/sources/{_token(sha256)}.csv"


def operator_file(campaign: str, sha256: str) -> str:
    return f"{_campaign(campaign)}/operators/{_token(sha256)}.py"


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


def meeting(campaign: str, wave_hash: str) -> str:
    """Return the key of the address at which the first pod of a gang waits for the others."""
    return f"{_campaign(campaign)}/meetings/{_token(wave_hash)}.json"


def nodes(campaign: str) -> str:
    """Return the key of the failures that a campaign's controller has counted against nodes."""
    return f"{_campaign(campaign)}/nodes.json"


def all_attempts(campaign: str) -> str:
    """Return the prefix of all attempts at all shards."""
    return f"{_campaign(campaign)}/attempts/"


def attempts(campaign: str, shard_id: str) -> str:
    """Return the prefix of all attempts at a shard."""
    return f"{all_attempts(campaign)}{_token(shard_id)}/"


def attempt(campaign: str, shard_id: str, attempt_id: str) -> str:
    return f"{attempts(campaign, shard_id)}{_token(attempt_id)}/"


def raw_summary(
    campaign: str, shard_id: str, attempt_id: str, session: int, group: str = ""
) -> str:
    """Return the key of the profiler's records of a session. `group` names the group of counters of
    a further pass on an NPU; each further group has its own pass."""
    more = f"-{_token(group)}" if group else ""
    return f"{attempt(campaign, shard_id, attempt_id)}raw/op_summary-{session}{more}.csv.zst"


def raw_journal(
    campaign: str, shard_id: str, attempt_id: str, session: int, group: str = ""
) -> str:
    more = f"-{_token(group)}" if group else ""
    return f"{attempt(campaign, shard_id, attempt_id)}raw/journal-{session}{more}.jsonl.zst"


def part(campaign: str, shard_id: str, attempt_id: str, session: int) -> str:
    return f"{attempt(campaign, shard_id, attempt_id)}part-{session}.csv"


def part_entry(campaign: str, shard_id: str, attempt_id: str, session: int) -> str:
    """Return the key of the manifest's entry about the part of the same number."""
    return f"{attempt(campaign, shard_id, attempt_id)}entry-{session}.json"


def session_cases(campaign: str, shard_id: str, attempt_id: str, session: int) -> str:
    """Return the key of the cases of a session, which is written before the session. If no part of
    the same number follows, the worker ended before it could report the result."""
    return f"{attempt(campaign, shard_id, attempt_id)}session-{session}.json"


class SessionObject(NamedTuple):
    """The properties of a session's object that its key names; `kind` is the beginning of its
    name, `group` that of the counters of a further pass."""

    kind: str
    attempt: str
    session: int
    group: str = ""


def session_object(key: str, campaign: str, shard_id: str) -> SessionObject | None:
    """Return the object of a key under a shard's attempts; None for every other key."""
    prefix = attempts(campaign, shard_id)
    match = _OF_SESSION.fullmatch(key.removeprefix(prefix)) if key.startswith(prefix) else None
    if match is None:
        return None
    attempt_id, kind, session, group = match.groups()
    found = SessionObject(kind, attempt_id, int(session), group or "")
    if group and not kind.startswith("raw/"):
        return None
    spelled = _SPELLED[kind](campaign, shard_id, attempt_id, int(session), *filter(None, [group]))
    return found if spelled == key else None


def attempt_log(campaign: str, shard_id: str, attempt_id: str) -> str:
    return f"{attempt(campaign, shard_id, attempt_id)}log.zst"


def progress(campaign: str, shard_id: str, attempt_id: str) -> str:
    return f"{attempt(campaign, shard_id, attempt_id)}progress.json"


def attempt_manifest(campaign: str, shard_id: str, attempt_id: str) -> str:
    return f"{attempt(campaign, shard_id, attempt_id)}manifest.json"


def committed_prefix(campaign: str) -> str:
    """Return the prefix of the commits of shards, the only one that is listed to follow a
    campaign."""
    return f"{_campaign(campaign)}/committed/"


def committed(campaign: str, shard_id: str) -> str:
    return f"{committed_prefix(campaign)}{_token(shard_id)}.json"


def commit(number: int) -> str:
    return f"{COMMITS}{number:08d}.json"


def measurements(version_path: str, name: str) -> str:
    """Return the key of the measurements that a merge has added to a version directory; `name` is
    that of its snapshot, here and below. No two merges write one key, so that an object that no
    commit names is never named later."""
    return f"{MEASUREMENTS}{partition(version_path)}/{_token(name)}.parquet"


def shown(version_path: str, name: str) -> str:
    """Return the key of the table of the cases that a version directory shows."""
    return f"{SHOWN}{partition(version_path)}/{_token(name)}.parquet"


def all_reused(version_path: str) -> str:
    """Return the prefix of the records of what a version directory reuses."""
    return f"{REUSED}{partition(version_path)}/"


def reused(version_path: str, sha256: str) -> str:
    """Return the key of a record of the cases that a version directory reuses of another one, by
    the hash of its bytes."""
    return f"{all_reused(version_path)}{_token(sha256)}.json"


def delta_log(table: str, name: str) -> str:
    """Return the key of a file of the Delta log of a table, MEASUREMENTS or SHOWN."""
    return f"{table}_delta_log/{name}"


def partition(version_path: str) -> str:
    """Return the folder of a version directory in a table that is partitioned by device and
    version."""
    if not (found := _VERSION_PATH.fullmatch(version_path)):
        raise BadInput(f"expected the path of a version directory, got {version_path!r}")
    return f"device={found[1]}/version={found[2]}"


def channel(name: str) -> str:
    """Return the prefix of the records of a channel."""
    return f"{CHANNELS}{_token(name)}/"


def promotion(name: str, number: int) -> str:
    """Return the key of a record of a channel."""
    return f"{channel(name)}{number:08d}.json"


def retirement(number: int) -> str:
    """Return the key of a record of retired versions."""
    return f"{RETIRED}{number:08d}.json"


def snapshot(name: str) -> str:
    """Return the prefix of one snapshot; `name` is `{number}-{random}`."""
    return f"{SNAPSHOTS}{_token(name)}/"


def snapshot_manifest(name: str) -> str:
    return f"{snapshot(name)}manifest.json"


def version_manifest(name: str, version_path: str) -> str:
    """Return the key of the manifest of a version directory; `name` is the snapshot that last
    changed the directory, here and below."""
    return f"{_of_version(name, version_path)}manifest.json"


def profiles(name: str, version_path: str) -> str:
    return f"{_of_version(name, version_path)}profiles.parquet"


def pairs_key(name: str, version_path: str) -> str:
    """Return the key of the pairs of sessions that a version directory lends to others."""
    return f"{_of_version(name, version_path)}pairs.parquet"


def index(name: str, version_path: str) -> str:
    return f"{_of_version(name, version_path)}index.bin"


def dataset(name: str, version_path: str) -> str:
    """Return the key of the description of a version directory for people."""
    return f"{_of_version(name, version_path)}DATASET.md"


def croissant(name: str, version_path: str) -> str:
    """Return the key of the description of a version directory for catalogues."""
    return f"{_of_version(name, version_path)}croissant.json"


def _of_version(name: str, version_path: str) -> str:
    if not _VERSION_PATH.fullmatch(version_path):
        raise BadInput(f"expected the path of a version directory, got {version_path!r}")
    return f"{VERSIONS}{_token(name)}/{version_path}/"


def _campaign(name: str) -> str:
    return f"{CAMPAIGNS}{campaign_name(name)}"


def _token(text: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise BadInput(
            "part of a key: expected 1 to 128 letters, digits, '_', '.', '-' that begin with a "
            f"letter or a digit, got {text!r}"
        )
    return text


_SPELLED: dict[str, Callable[..., str]] = {
    "raw/op_summary": raw_summary,
    "raw/journal": raw_journal,
    "part": part,
    "entry": part_entry,
    "session": session_cases,
}
