"""A bucket whose endpoint has a certificate of a private CA."""

import os
import socketserver
import threading
from pathlib import Path

import pytest

from collector.codec.errors import StoreRefused, StoreUnavailable
from tests.contract.conftest import S3Server
from tests.servers.faults import FaultProxy
from tests.servers.private_ca import PrivateCa
from tests.unit.jobs.cli.in_process import opmeter_here

pytestmark = pytest.mark.server


def test_bucket_with_a_private_ca_is_read_with_its_bundle_alone(
    moto: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    moto.enter(monkeypatch)
    ca, other = PrivateCa(tmp_path / "ca"), PrivateCa(tmp_path / "other")
    bundles = {"none": "", "ca": ca.bundle, "other": other.bundle}
    bundles |= {"missing": tmp_path / "missing.crt", "no certificate": Path(__file__)}
    with FaultProxy(moto.endpoint, own_context=ca.context) as proxy:
        for name, bundle in bundles.items():
            monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
            if not bundle:
                monkeypatch.delenv("AWS_CA_BUNDLE")
            store = moto.store(endpoint=proxy.url, attempts=1)
            if name == "ca":
                store.create("k", b"1")
                assert store.get("k") == b"1"
                continue
            with pytest.raises(StoreRefused) as refused:  # final: no command waits for it
                store.get("k")
            assert "store_ca" in str(refused.value) and "\n" not in str(refused.value), name
            assert str(bundle) in str(refused.value)
    assert {request.method for request in proxy.requests} == {"PUT", "GET"}


def test_command_without_the_bundle_ends_with_one_line_that_names_the_key(
    moto: S3Server, tmp_path: Path
):
    ca, settings = PrivateCa(tmp_path), {**moto.environment, "AWS_CONFIG_FILE": os.devnull}
    with FaultProxy(moto.endpoint, own_context=ca.context) as proxy:
        command = ("db", "log", "--root", f"s3://{moto.bucket}/empty?endpoint={proxy.url}")
        refused = opmeter_here(*command, **settings)
        read = opmeter_here(*command, **settings, AWS_CA_BUNDLE=str(ca.bundle))
    assert refused.returncode and len(refused.stderr.splitlines()) == 1
    assert "store_ca" in refused.stderr
    assert "SSL" not in read.stderr and "empty" in read.stdout + read.stderr


class _HangsUp(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        """Close the connection before the handshake."""


def test_interrupted_handshake_is_retried_as_an_interrupted_connection(
    moto: S3Server, monkeypatch: pytest.MonkeyPatch
):
    moto.enter(monkeypatch)
    with socketserver.TCPServer(("127.0.0.1", 0), _HangsUp) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        endpoint = f"https://127.0.0.1:{server.server_address[1]}"
        with pytest.raises(StoreUnavailable):
            moto.store(endpoint=endpoint, attempts=1).get("k")
        server.shutdown()
        thread.join()
