"""A store in an S3 bucket, through boto3: the only module that imports it.

Servers differ in checksum trailers, v2 signatures and addressing, so the client uses the minimum:
v4 signatures, checksums only if the protocol requires them, path addressing whenever an endpoint is
named. Hashes of contents are in the manifests instead.

Credentials come from the environment or mounted files. After a refusal they are read again, once: a
mounted secret may be rotated during a run.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import boto3
import botocore.session
from botocore import exceptions
from botocore.config import Config
from botocore.exceptions import ConnectionError as NoConnection
from botocore.parsers import ResponseParserError

from collector.codec import errors
from collector.store.base import Info, check_key, check_prefix, parent_conflict

logger = logging.getLogger(__name__)

_CONNECTIONS = 32  # threads that may share the client without waiting for each other
_CONFLICT_PAUSES_S = (0.1, 0.4, 1.0)
_NO_CREDENTIALS = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.CredentialRetrievalError,
    exceptions.TokenRetrievalError,
    exceptions.ProfileNotFound,
)
_NO_REPLY = (
    NoConnection,
    exceptions.HTTPClientError,
    exceptions.IncompleteReadError,
    ResponseParserError,
)
# In the text of an SSLError: no CA of the bundle has issued the certificate of the endpoint, or the
# file of the bundle is missing, or has no certificate. A network may cause other errors of TLS.
_NOT_TRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED|\[(?:X509|PEM)\b|\[Errno (?:2|13|21)\]")
# Codes of an unknown key: the first three have status 400 on AWS, the last one 404 on versitygw.
_REFUSALS = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "XAdminUserNotFound"}
_PARENTS = {"ObjectParentIsFile", "ExistingObjectIsDirectory"}  # 409 of versitygw
_EXISTS = "FileAlreadyExists"  # 409 of Aliyun OSS
_OVERLOADED = {"RequestTimeout", "SlowDown"}
_OF_REPLY = ("HTTPStatusCode", "HTTPHeaders")
# What every server of the protocol puts into a good reply, by the operation (API reference of S3).
# A proxy or a login page also replies with 200, and without it.
_EVIDENCE = {
    "get_object": "ETag",
    "put_object": "ETag",
    "copy_object": "ETag",  # of CopyObjectResult
    "list_objects_v2": "IsTruncated",
}
# Headers with which other stores refuse to replace an object. Aliyun OSS refuses If-None-Match of
# a write (501 NotImplemented), and replies 409 FileAlreadyExists to its own header
# (help.aliyun.com, oss/user-guide/0026-00000002); both stores resolve a bucket by its host name.
# Whether a store honours its header is for the probe to find out.
FORBIDDING = {"oss": "x-oss-forbid-overwrite", "cos": "x-cos-forbid-overwrite"}
_HOSTS = {"oss": (".aliyuncs.com",), "cos": (".myqcloud.com", ".tencentcos.cn")}


class _Conflict(errors.StoreUnavailable):
    """Two writers collided (409), and the server does not report which one won."""


class S3Store:
    """A store of objects under `prefix` of one bucket; threads share the store and its client.

    `create_only` is a name of FORBIDDING for a store whose create-only writes have another header
    than If-None-Match; by default it follows from the host name of the endpoint."""

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | None = None,
        region: str | None = None,
        create_only: str | None = None,
        attempts: int = 5,
        connect_timeout_s: float = 5.0,
        read_timeout_s: float = 60.0,
    ):
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._given = {"endpoint": endpoint, "region": region, "create_only": create_only}
        self._attempts = attempts
        self._timeouts_s = {"connect_timeout": connect_timeout_s, "read_timeout": read_timeout_s}
        self._lock = threading.Lock()
        self._client = self._new_client()

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs: it makes a client of its own."""
        return {n: one for n, one in vars(self).items() if n not in ("_lock", "_client")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()
        self._client = self._new_client()

    @property
    def url(self) -> str:
        query = urlencode({name: value for name, value in self._given.items() if value})
        address = f"s3://{self._bucket}/{quote(self._prefix.rstrip('/'))}".rstrip("/")
        return f"{address}?{query}" if query else address

    def get(self, key: str) -> bytes:
        check_key(key)
        for attempt in range(1, self._attempts + 1):
            reply = self._call("get_object", key, Key=self._prefix + key)
            try:
                data: bytes = reply["Body"].read()
                return data
            except _NO_REPLY as error:  # botocore retries a request, not the body of its reply
                trouble, address = error, self._address(key)
                logger.info("%s: connection interrupted (%s), attempt %d", address, error, attempt)
            finally:
                reply["Body"].close()
        raise errors.StoreUnavailable(
            f"{self._address(key)}: connection interrupted in every attempt: {trouble}"
        ) from trouble

    def put(self, key: str, data: bytes) -> None:
        check_key(key)
        self._call("put_object", key, Key=self._prefix + key, Body=data)

    def create(self, key: str, data: bytes) -> None:
        check_key(key)
        for pause_s in (*_CONFLICT_PAUSES_S, None):
            try:
                self._call("put_object", key, Key=self._prefix + key, Body=data, IfNoneMatch="*")
                return
            except _Conflict as error:
                if pause_s is None:
                    raise errors.AlreadyExists(str(error)) from error
                time.sleep(pause_s)

    def list(self, prefix: str) -> Iterator[Info]:
        check_prefix(prefix)
        return self._pages(prefix)

    def copy(self, source: str, target: str) -> None:
        check_key(source)
        check_key(target)
        origin = {"Bucket": self._bucket, "Key": self._prefix + source}
        self._call("copy_object", source, Key=self._prefix + target, CopySource=origin)

    def delete(self, key: str) -> None:
        check_key(key)
        self._call("delete_object", key, Key=self._prefix + key)

    def _pages(self, prefix: str) -> Iterator[Info]:
        position: dict[str, str] = {}
        requested = self._prefix + prefix
        tokens: set[str] = set()
        while True:
            page = self._call("list_objects_v2", prefix, Prefix=requested, **position)
            for entry in page.get("Contents", ()):
                key, size = entry.get("Key", ""), entry.get("Size")
                if not key.startswith(requested) or not isinstance(size, int) or size < 0:
                    raise self._unexpected(
                        prefix, f"a key below the prefix with its size, got {key!r} of {size} bytes"
                    )
                if not key.endswith("/"):  # a "folder" that an S3 browser created
                    yield Info(key.removeprefix(self._prefix), size)
            if not page["IsTruncated"]:
                return
            token = page.get("NextContinuationToken", "")
            if not token or token in tokens:
                got = f"{token!r} again" if token else "none"
                raise self._unexpected(prefix, f"a new token for the rest of a listing, got {got}")
            tokens.add(token)
            position = {"ContinuationToken": token}

    def _call(self, operation: str, key: str, **arguments: Any) -> Any:
        """Send one request; after a refusal, send it again with credentials read again."""
        client = self._client
        try:
            return self._request(client, operation, key, arguments)
        except errors.StoreRefused as refusal:
            logger.info("%s; reading the credentials again", refusal)
            with self._lock:
                if self._client is client:  # otherwise another thread has renewed it
                    self._client = self._new_client()
                renewed = self._client
            return self._request(renewed, operation, key, arguments)

    def _request(self, client: Any, operation: str, key: str, arguments: dict[str, Any]) -> Any:
        try:
            reply = getattr(client, operation)(Bucket=self._bucket, **arguments)
        except exceptions.ClientError as error:
            raise self._client_error(error, key) from error
        except (ValueError, KeyError) as error:  # of botocore: a number or a field of the reply
            raise self._unexpected(key, f"a reply in its form: {error}") from error
        except (exceptions.BotoCoreError, ResponseParserError) as error:
            raise self._connection_error(error, self._address(key)) from error
        status, headers = (reply["ResponseMetadata"][name] for name in _OF_REPLY)
        if operation == "delete_object":
            is_expected = status == 204
        else:
            fields = reply.get("CopyObjectResult", reply)
            is_expected = status == 200 and _EVIDENCE[operation] in fields
        if not is_expected:
            if "Body" in reply:
                reply["Body"].close()
            what = headers.get("content-type") or "an empty one"
            raise self._unexpected(key, f"a reply to {operation}, got {status} with {what}")
        return reply

    def _unexpected(self, key: str, what: str) -> errors.StoreError:
        """Return the error for a reply that is not of the protocol."""
        return errors.StoreError(
            f"{self._address(key)}: the S3 protocol: expected {what}; does a proxy or a login page "
            "reply in place of the store? Check the endpoint"
        )

    def _new_client(self) -> Any:
        endpoint = self._endpoint
        try:
            session = _new_session()
            region = self._given["region"] or session.region_name or os.environ.get("AWS_REGION")
            by_host = _kind_of_host(endpoint)
            client = session.client(
                "s3",
                endpoint_url=endpoint,
                region_name=region or "us-east-1",
                config=Config(
                    signature_version="s3v4",
                    request_checksum_calculation="when_required",
                    response_checksum_validation="when_required",
                    retries={"mode": "standard", "total_max_attempts": self._attempts},
                    max_pool_connections=_CONNECTIONS,
                    s3={"addressing_style": _addressing(endpoint, by_host)},
                    **self._timeouts_s,
                ),
            )
            # It may be of the environment or of a file; messages of boto show it.
            if "@" in client.meta.endpoint_url:
                raise errors.StoreRefused(
                    f"{self.url}: endpoint: expected http://host:port without a user and a "
                    "password; credentials are read from AWS_* or mounted files"
                )
            if kind := self._given["create_only"] or by_host:
                forbid = _forbidding(FORBIDDING[kind])
                client.meta.events.register("before-call.s3.PutObject", forbid)
            return client
        except ValueError as error:
            # The endpoint of the environment is not shown: it may contain a secret.
            raise errors.StoreError(
                f"{self.url}: endpoint: expected http://host:port or https://host"
            ) from error
        except exceptions.BotoCoreError as error:
            raise self._connection_error(error, self.url) from error

    @property
    def _endpoint(self) -> str | None:
        environment = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        return self._given["endpoint"] or environment

    def _address(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def _client_error(self, error: exceptions.ClientError, key: str) -> errors.StoreError:
        status: int = error.response["ResponseMetadata"]["HTTPStatusCode"]
        code: str = error.response["Error"].get("Code", "")
        what = f"{self._address(key)}: {status} {code}: {error.response['Error'].get('Message')}"
        if code in _PARENTS:
            return parent_conflict(self._address(key))
        if status == 412 or code == _EXISTS:
            return errors.AlreadyExists(what)
        if status == 409:
            return _Conflict(what)
        if code == "NoSuchBucket":
            endpoint = f" --endpoint-url {self._endpoint}" if self._endpoint else ""
            create = f"aws s3 mb s3://{self._bucket}{endpoint}"
            return errors.NoStore(f"{what}; create it: {create}")
        if status in (401, 403) or code in _REFUSALS:
            return errors.StoreRefused(
                f"{what}; credentials are read from AWS_* or the files that AWS_* names"
            )
        if status == 404:
            return errors.NotFound(what)
        # 501 is permanent: this server does not support the header.
        if (status >= 500 and status != 501) or status == 429 or code in _OVERLOADED:
            return errors.StoreUnavailable(what)
        return errors.StoreError(what)

    def _connection_error(self, error: Exception, where: str) -> errors.StoreError:
        if isinstance(error, _NO_CREDENTIALS):
            return errors.StoreRefused(
                f"{where}: {error}; credentials are read from AWS_* or mounted files"
            )
        if isinstance(error, exceptions.SSLError) and _NOT_TRUSTED.search(str(error)):
            bundle = os.environ.get("AWS_CA_BUNDLE")
            return errors.StoreRefused(
                f"{where}: {error}: expected a certificate of a CA in "
                f"{f'AWS_CA_BUNDLE ({bundle})' if bundle else 'the list of public CAs'}; set "
                "AWS_CA_BUNDLE to a file with the CA of this endpoint (for pods: `store_ca` of the "
                "site profile)"
            )
        if isinstance(error, _NO_REPLY):
            return errors.StoreUnavailable(f"{where}: {error}")
        return errors.StoreError(f"{where}: {error}")


def _kind_of_host(endpoint: str | None) -> str | None:
    host = urlsplit(endpoint or "").hostname or ""
    return next((kind for kind, ends in _HOSTS.items() if host.endswith(ends)), None)


def _addressing(endpoint: str | None, kind: str | None) -> str:
    return "virtual" if kind else "path" if endpoint else "auto"


def _forbidding(header: str) -> Callable[..., None]:
    """Return a handler that replaces If-None-Match of a write, before it is signed."""

    def replace(params: dict[str, Any], **_: Any) -> None:
        if params["headers"].pop("If-None-Match", None) is not None:
            params["headers"][header] = "true"

    return replace


def _new_session() -> Any:
    """Return a session of boto3 that reads credentials and settings again. Botocore's description
    of S3 is parsed once per process: that takes five times as long as the rest of a new client."""
    core = botocore.session.get_session()
    session = boto3.Session(botocore_session=core)
    core.register_component("data_loader", _service_data())  # after boto3 has added a path to it
    return session


@cache
def _service_data() -> Any:
    return botocore.session.get_session().get_component("data_loader")
