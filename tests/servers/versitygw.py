"""A real S3 server for tests: versitygw, built from its Go module and started on loopback.

The build is cached outside the checkout by the hash of its inputs; of several processes that need
it one builds, and the others wait. A test may kill the server and start it again on the same folder
and port, like a machine that loses power.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SOURCES = Path(__file__).parent / "versitygw"
_PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
_COMMAND = f"cd {_SOURCES} && go build {_PACKAGE}"
_BUILD_LIMIT_S = 1200
_START_LIMIT_S = 20
_OLDEST_GO = (1, 21)  # the first that fetches the toolchain a go.mod asks for


class NoServer(Exception):
    """This machine cannot build the server; the message has the reason and what would help."""


def executable() -> Path:
    """Return the built server, from the cache; NoServer if there is no Go to build it with."""
    cached = _cache() / f"versitygw-{_hash_of_sources()}" / "versitygw"
    if cached.exists():
        return cached
    _require_go()
    cached.parent.mkdir(parents=True, exist_ok=True)
    with (cached.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not cached.exists():
            _build_in(cached)
    return cached


def free_port() -> int:
    """Return a free port of loopback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@dataclass
class Versitygw:
    """One server over a folder; made stopped. Buckets are folders below `root`/buckets. `accounts`
    are users (key -> secret) besides the owner, whose rights a policy gives."""

    root: Path
    access_key: str = "opmeter-test"
    secret_key: str = "opmeter-test-secret"
    port: int = field(default_factory=free_port)
    accounts: dict[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, account: str = "") -> dict[str, str]:
        """Return the credentials for a client's process, as the owner or as another account."""
        return {
            "AWS_ACCESS_KEY_ID": account or self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.accounts.get(account, self.secret_key),
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def start(self) -> None:
        """Start, and wait until it replies."""
        if self._process is not None:
            raise RuntimeError("the server is running")
        buckets, metadata = self.root / "buckets", self.root / "metadata"
        buckets.mkdir(parents=True, exist_ok=True)
        metadata.mkdir(exist_ok=True)
        with (self.root / "versitygw.log").open("ab") as log:
            self._process = subprocess.Popen(
                [executable(), "--port", f"127.0.0.1:{self.port}", "--health", "/health"]
                + ["--quiet", "--keep-alive", *self._iam()]
                # Metadata next to the objects: not every file system has extended attributes.
                + ["posix", "--sidecar", metadata, buckets],
                env={
                    **os.environ,
                    "ROOT_ACCESS_KEY": self.access_key,
                    "ROOT_SECRET_KEY": self.secret_key,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait_until_healthy()

    def stop(self) -> None:
        """End it with SIGTERM; do nothing if it is stopped."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill it if it runs, and start it on the same folder and port."""
        self.kill()
        self.start()

    def make_bucket(self, name: str) -> None:
        with self._client() as client:
            client.create_bucket(Bucket=name)

    def set_policy(self, bucket: str, policy: str) -> None:
        """Set the rights of other accounts to a bucket, as JSON."""
        with self._client() as client:
            client.put_bucket_policy(Bucket=bucket, Policy=policy)

    @contextmanager
    def _client(self) -> Iterator[Any]:
        import boto3
        from botocore.config import Config

        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}),
        )
        try:
            yield client
        finally:
            client.close()

    def _iam(self) -> list[str | Path]:
        if not self.accounts:
            return []
        folder = self.root / "iam"
        folder.mkdir(exist_ok=True)
        users = {
            name: {"access": name, "secret": secret, "role": "user"}
            for name, secret in self.accounts.items()
        }
        (folder / "users.json").write_text(json.dumps({"accessAccounts": users}))
        return ["--iam-dir", folder]

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            if answers(f"{self.endpoint}/health"):
                return
            time.sleep(0.02)
        log = (self.root / "versitygw.log").read_text(errors="replace")[-2000:]
        self.kill()
        raise RuntimeError(f"versitygw does not answer at {self.endpoint}:\n{log}")


def answers(url: str) -> bool:
    """Return whether a server at that address reports that it is healthy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _cache() -> Path:
    return Path(os.environ.get("OPMETER_CACHE") or Path.home() / ".cache" / "opmeter")


def _hash_of_sources() -> str:
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum", "tools.go"):
        digest.update((_SOURCES / name).read_bytes())
    return digest.hexdigest()[:16]


def _require_go() -> None:
    if shutil.which("go") is None:
        raise NoServer(f"go is not installed (https://go.dev/dl); with it: {_COMMAND}")
    message = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True)
    version = re.search(r"go(\d+)\.(\d+)", message.stdout)
    if version and (int(version[1]), int(version[2])) < _OLDEST_GO:
        raise NoServer(f"{message.stdout.strip()} is too old (https://go.dev/dl); then: {_COMMAND}")


def _build_in(cached: Path) -> None:
    """The file appears when it is complete."""
    with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
        built = Path(folder) / "versitygw"
        _build(built)
        built.replace(cached)


def _build(target: Path) -> None:
    done = subprocess.run(
        ["go", "build", "-trimpath", "-o", target, _PACKAGE],
        cwd=_SOURCES,
        capture_output=True,
        text=True,
        timeout=_BUILD_LIMIT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{_COMMAND}\n{done.stderr[-2000:]}")
