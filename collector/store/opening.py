"""Stores by address. Addresses contain no secrets: credentials come from the environment.

An address with credentials, or with a typing error that may hide some, is refused and not shown.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from collector.codec.errors import BadInput, StoreError
from collector.store.base import Store, check_key
from collector.store.file import FileStore
from collector.store.in_memory import MemoryStore

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
# Text before an `@` in the first part of an address that is not a plain path, such as
# `s3://name:secret@bucket`, also with missing or reversed slashes.
_CREDENTIALS = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]*:[/\\]*|//)[^/?#]*(?:@|%40)|[^/.][^/?#]*:[^/?#]*@"
)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_FEWEST = 3  # characters of a bucket name
_FORMS = (
    "s3://bucket/prefix?endpoint=http://host:port&region=name, file:///folder, a path, or memory:"
)
_PARAMETERS = ("endpoint", "region", "create_only")
_CREATE_ONLY = ("oss", "cos")  # of collector.store.s3.FORBIDDING, without its import


DEFAULT_ROOT = "opmeter-data"  # the folder of commands without an address


def open_store(url: str, *, location: str = "store") -> Store:
    """Return the store at an address. Raises BadInput, which begins with `location`, for an invalid
    address. Nothing is read or written."""
    with _prefixed_errors(location):
        return _opener(url)()


def checked_address(url: str) -> str:
    """Return the address of a store as it was written. Raises BadInput for an invalid address, or
    for one that may contain a secret, which is then not shown. The store is not accessed."""
    with _prefixed_errors("store"):
        _opener(url)
    return url


@contextmanager
def _prefixed_errors(name: str) -> Iterator[None]:
    try:
        yield
    except BadInput as error:
        raise BadInput(f"{name}: {error}") from error


def _opener(url: str) -> Callable[[], Store]:
    """Return a function that opens the store at an address, which is checked."""
    if not url:
        raise BadInput(f"expected an address, got empty text; write {_FORMS}")
    _check_no_credentials(url)
    if url == "memory:":
        return MemoryStore
    if not _SCHEME.match(url):
        return partial(_folder, Path(url).expanduser())
    parts = _split(url)
    if parts.scheme == "s3":
        return partial(_s3, *_bucket_of(parts), _parameters(parts.query))
    if parts.scheme != "file":
        raise BadInput(
            f"unknown kind of store in the address; write {_FORMS} "
            "(a folder with ':' in its name is written ./name)"
        )
    if parts.netloc or parts.query or parts.fragment or not parts.path.startswith("/"):
        raise BadInput("expected file:///folder with an absolute path")
    return partial(_folder, Path(unquote(parts.path)))


def _check_no_credentials(url: str) -> None:
    """Raise BadInput, which does not show the address, if it may contain a name and a secret."""
    if _CREDENTIALS.match(url):
        raise BadInput(
            "an address must not contain credentials; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or mount the file that AWS_SHARED_CREDENTIALS_FILE names"
        )


def address_of(store_url: str, key: str) -> str:
    """Return the location of a key or a prefix, for users and their tools: a path in a folder, and
    in S3 an address, followed by the parameters of the store's address."""
    parts = _split(store_url)
    if parts.scheme == "file":
        return str(Path(unquote(parts.path)) / key)
    if parts.scheme == "s3":
        path = f"{parts.path.rstrip('/')}/{quote(key)}"
        return parts._replace(path=path).geturl()
    return f"{store_url}{key}"


def command_on(address: str, command: str) -> str:
    """Return a command as it is typed for a store: with the address, if it is not the default.

    >>> command_on("s3://perf/opmeter", "opmeter db log")
    'opmeter db log --root s3://perf/opmeter'"""
    is_default = address in (DEFAULT_ROOT, Path(DEFAULT_ROOT).absolute().as_uri())
    return command if is_default else f"{command} --root {shlex.quote(address)}"


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise BadInput(f"the address cannot be read; write {_FORMS}") from error


def _folder(path: Path) -> Store:
    there_is = next((one for one in (path, *path.absolute().parents) if one.exists()), None)
    if there_is is not None and not there_is.is_dir():
        raise BadInput(f"{str(there_is)!r}: expected a folder, got a file")
    return FileStore(path)


def _bucket_of(parts: SplitResult) -> tuple[str, str]:
    """Return a bucket and the prefix in it."""
    bucket, prefix = parts.netloc, unquote(parts.path).strip("/")
    if not _BUCKET.fullmatch(bucket) or parts.fragment:
        if 0 < len(bucket) < _FEWEST:  # the name is not shown, since it may be a secret
            raise BadInput(
                f"bucket name: expected at least {_FEWEST} characters, got {len(bucket)}"
            )
        raise BadInput(f"the address has no valid bucket name; write {_FORMS}")
    try:
        if prefix:
            check_key(prefix)
    except StoreError as error:
        raise BadInput(f"bucket {bucket!r}: invalid prefix: {error}") from error
    return bucket, prefix


def _s3(bucket: str, prefix: str, parameters: Mapping[str, str]) -> Store:
    # The import of boto3 takes a third of a second, and most commands never need it.
    from collector.store.s3 import S3Store

    endpoint, region, create_only = map(parameters.get, _PARAMETERS)
    return S3Store(bucket, prefix, endpoint=endpoint, region=region, create_only=create_only)


def _parameters(query: str) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True)
    parameters = dict(pairs)
    for name in parameters:
        if name not in _PARAMETERS:  # name and value are not shown: either may be a secret
            raise BadInput(
                f"unexpected parameter: s3:// accepts {', '.join(_PARAMETERS)} only; "
                "credentials are read from the environment"
            )
    if len(parameters) != len(pairs) or not all(parameters.values()):
        raise BadInput(f"expected {', '.join(_PARAMETERS)} at most once each, with a value")
    if (kind := parameters.get("create_only")) is not None and kind not in _CREATE_ONLY:
        raise BadInput(f"create_only: expected {' or '.join(_CREATE_ONLY)}, got another value")
    if endpoint := parameters.get("endpoint"):
        _check_no_credentials(endpoint)
        parts = _split(endpoint)
        more = parts.path.strip("/") or parts.query or parts.fragment  # not shown: maybe a secret
        if parts.scheme not in ("http", "https") or not parts.hostname or more:
            raise BadInput("endpoint: expected http://host:port or https://host, without a path")
    return parameters
