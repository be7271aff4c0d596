"""The stores of the contract tests: memory, a folder, moto, and a real S3 server."""

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from collector.store.base import Store
from collector.store.file import FileStore
from collector.store.in_memory import MemoryStore
from collector.store.s3 import S3Store
from tests.servers.faults import FaultProxy
from tests.servers.moto_server import serve_moto
from tests.servers.versitygw import NoServer, Versitygw

_ENDPOINT, _BUCKET = "OPMETER_S3_ENDPOINT", "OPMETER_S3_BUCKET"


@dataclass(frozen=True)
class S3Server:
    """A running server, one of its buckets, and the environment of a client."""

    endpoint: str
    bucket: str
    environment: dict[str, str]
    run: str = field(default_factory=lambda: f"contract-{uuid.uuid4().hex}")

    def store(self, *, endpoint: str | None = None, **settings) -> S3Store:
        """Return a store under a new prefix."""
        prefix = f"{self.run}/{uuid.uuid4().hex}"
        return S3Store(self.bucket, prefix, endpoint=endpoint or self.endpoint, **settings)

    def enter(self, environment: pytest.MonkeyPatch) -> None:
        """Let clients use this server's credentials, and none of the user's settings."""
        for name in list(os.environ):
            if name.startswith("AWS_"):
                environment.delenv(name)
        environment.setenv("AWS_CONFIG_FILE", os.devnull)
        environment.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        environment.setenv("AWS_EC2_METADATA_DISABLED", "true")
        environment.setenv("NO_PROXY", "127.0.0.1,localhost")
        for name, value in self.environment.items():
            environment.setenv(name, value)


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with serve_moto() as endpoint:
        environment = {"AWS_ACCESS_KEY_ID": "moto", "AWS_SECRET_ACCESS_KEY": "moto-secret"}
        _make_bucket(endpoint, "contract", environment)
        yield S3Server(endpoint, "contract", environment)


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """versitygw, or the server that the environment names."""
    if os.environ.get(_ENDPOINT) and os.environ.get(_BUCKET):
        yield from _named_server()
        return
    gateway = _started(tmp_path_factory.mktemp("versitygw"))
    try:
        gateway.make_bucket("contract")
        yield S3Server(gateway.endpoint, "contract", gateway.environment())
    finally:
        gateway.stop()


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Versitygw]:
    """A real server of one test, which may kill it; its credentials are in the environment."""
    gateway = _started(tmp_path)
    try:
        gateway.make_bucket("own")
        S3Server(gateway.endpoint, "own", gateway.environment()).enter(monkeypatch)
        yield gateway
    finally:
        gateway.stop()


@pytest.fixture(scope="session")
def moto_store(moto: S3Server) -> Iterator[S3Store]:
    yield from _opened(moto)


@pytest.fixture(scope="session")
def real_store(real_server: S3Server) -> Iterator[S3Store]:
    yield from _opened(real_server)


@pytest.fixture(
    params=[
        "memory",
        "file",
        pytest.param("moto_store", marks=pytest.mark.server),
        pytest.param("real_store", marks=pytest.mark.server),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
    elif request.param == "file":
        yield FileStore(tmp_path / "store")
    else:  # one client for the session: making one takes longer than most tests
        opened: S3Store = request.getfixturevalue(request.param)
        yield opened
        _empty(opened)


@pytest.fixture
def s3(real_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The real server, with its credentials in the environment and no other setting."""
    real_server.enter(monkeypatch)
    return real_server


@pytest.fixture(scope="module")
def shared_proxy(real_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(real_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def proxy(shared_proxy: FaultProxy) -> FaultProxy:
    """A proxy between the client and the real server, without rules."""
    shared_proxy.clear()
    return shared_proxy


def _started(root: Path) -> Versitygw:
    gateway = Versitygw(root)
    try:
        gateway.start()
    except NoServer as error:
        pytest.skip(f"{error} (or name a server by {_ENDPOINT}, {_BUCKET} and AWS_*)")
    return gateway


def _named_server() -> Iterator[S3Server]:
    """The server of the environment; objects of the tests are removed."""
    named = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    server = S3Server(os.environ[_ENDPOINT], os.environ[_BUCKET], named)
    yield server
    with pytest.MonkeyPatch.context() as environment:
        server.enter(environment)
        _empty(S3Store(server.bucket, server.run, endpoint=server.endpoint))


def _opened(server: S3Server) -> Iterator[S3Store]:
    with pytest.MonkeyPatch.context() as environment:
        server.enter(environment)
        store = server.store()
    yield store


def _empty(store: Store) -> None:
    for info in list(store.list("")):
        store.delete(info.key)


def _make_bucket(endpoint: str, name: str, environment: dict[str, str]) -> None:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )
    client.create_bucket(Bucket=name)
    client.close()
