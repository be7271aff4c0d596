"""The server is built once, even by concurrent requests."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.servers.versitygw import executable

# Logs each build, and waits a while: `go build -trimpath -o TARGET PACKAGE`.
_GO = """#!/bin/sh
[ "$1" = env ] && { echo go1.24.0; exit; }
echo built >> "$GO_LOG"
sleep 0.3
echo server > "$4"
"""


def test_concurrent_requests_for_the_server_build_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(_GO)
    go.chmod(0o755)
    monkeypatch.setenv("PATH", str(go.parent), prepend=os.pathsep)
    monkeypatch.setenv("GO_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("OPMETER_CACHE", str(tmp_path / "cache"))
    with ThreadPoolExecutor(2) as pool:
        one, other = [
            requested.result() for requested in [pool.submit(executable) for _ in range(2)]
        ]
    assert one == other and one.read_text() == "server\n"
    assert (tmp_path / "log").read_text() == "built\n"
