"""From an address to a store. Addresses hold no secrets: credentials come from the environment."""

import re
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from collector.errors import BadInput, StoreError
from collector.store.base import Store
from collector.store.file import FileStore
from collector.store.key_rules import check_key
from collector.store.memory import MemoryStore

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_FORMS = (
    "s3://bucket/prefix?endpoint=http://host:port&region=name, file:///folder, a path, or memory:"
)
_PARAMETERS = ("endpoint", "region")


def open_store(url: str) -> Store:
    """The store at an address; BadInput for anything that is none. Nothing is read or written."""
    if not url:
        raise BadInput(f"a store is wanted, and its address is empty; write {_FORMS}")
    if not _SCHEME.match(url):
        return _folder(Path(url).expanduser(), url)
    parts = _split(url)
    if parts.scheme == "s3":
        return _s3(parts)
    if parts.scheme == "file":
        return _file(parts, url)
    if url == "memory:":
        return MemoryStore()
    raise BadInput(
        f"store {url!r}: {parts.scheme!r} is no kind of store; write {_FORMS} "
        "(a folder with ':' in its name is written ./name)"
    )


def address_of(store_url: str, key: str) -> str:
    """Where a key or a prefix lies, for people and their tools: a path in a folder, and in S3 an
    address of its own, with the parameters of the store's behind it."""
    parts = _split(store_url)
    if parts.scheme == "file":
        return str(Path(unquote(parts.path)) / key)
    if parts.scheme == "s3":
        path = f"{parts.path.rstrip('/')}/{quote(key)}"
        return parts._replace(path=path).geturl()
    return f"{store_url}{key}"


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise BadInput(f"store: the address cannot be read: {error}; write {_FORMS}") from error
    if "@" in parts.netloc:  # not shown: it may hold a secret
        raise BadInput(
            "store: an address holds no credentials; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or mount the file AWS_SHARED_CREDENTIALS_FILE names"
        )
    return parts


def _file(parts: SplitResult, url: str) -> Store:
    if parts.netloc or parts.query or parts.fragment or not parts.path.startswith("/"):
        raise BadInput(f"store {url!r}: file:///folder is wanted, with an absolute path")
    return _folder(Path(unquote(parts.path)), url)


def _folder(path: Path, url: str) -> Store:
    if path.exists() and not path.is_dir():
        raise BadInput(f"store {url!r}: a folder is wanted, and this is a file")
    return FileStore(path)


def _s3(parts: SplitResult) -> Store:
    bucket, prefix = parts.netloc, unquote(parts.path).strip("/")
    if not _BUCKET.fullmatch(bucket) or parts.fragment:
        raise BadInput(f"store: {bucket!r} is no name of a bucket; write {_FORMS}")
    parameters = _parameters(parts.query)
    try:
        if prefix:
            check_key(prefix)
    except StoreError as error:
        raise BadInput(f"store: bucket {bucket!r}: the prefix is bad: {error}") from error
    # boto3 takes a third of a second to import, and most commands never need it.
    from collector.store.s3 import S3Store

    endpoint, region = parameters.get("endpoint"), parameters.get("region")
    return S3Store(bucket, prefix, endpoint=endpoint, region=region)


def _parameters(query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    parameters = dict(pairs)
    for name in parameters:
        if name not in _PARAMETERS:  # its value is not shown: it may be a secret
            raise BadInput(f"store: s3:// takes {' and '.join(_PARAMETERS)}, not {name!r}")
    if len(parameters) != len(pairs) or not all(parameters.values()):
        raise BadInput("store: endpoint and region are given once each, with a value")
    if "endpoint" in parameters:
        _check_endpoint(parameters["endpoint"])
    return parameters


def _check_endpoint(endpoint: str) -> None:
    parts = _split(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise BadInput(f"store: endpoint {endpoint!r}: http://host:port or https://host is wanted")
