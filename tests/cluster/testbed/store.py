"""An S3 server that pods reach, with honest create-only writes: versitygw on the bridge."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.testbed.processes import Daemon, wait_until
from tests.cluster.testbed.settings import NoCluster, Settings
from tests.servers.versitygw import NoServer, answers, executable

_PORT = 7070
_START_S = 20.0


@dataclass(frozen=True)
class ObjectStore:
    """The server; each folder below `buckets` is a bucket."""

    settings: Settings
    access_key: str = "testkey"
    secret_key: str = "testsecret12"

    @property
    def endpoint(self) -> str:
        """Return its URL, the same from the host and from pods."""
        return f"http://{self.settings.gateway}:{_PORT}"

    @property
    def buckets(self) -> Path:
        return self.settings.run / "s3" / "buckets"

    @property
    def server(self) -> Daemon:
        keys = {"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key}
        return Daemon("s3", self.settings.run, self._command, keys)

    def start(self) -> None:
        """Start it if it is stopped, and wait until it replies."""
        for folder in (self.buckets, self._metadata):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            self.server.start()
        except NoServer as error:
            raise NoCluster(str(error)) from error
        wait_until("S3", lambda: answers(f"{self.endpoint}/health"), _START_S, self.server)

    def stop(self) -> None:
        self.server.stop()

    def make_bucket(self, name: str) -> None:
        """Make an empty bucket, unless one of that name exists."""
        (self.buckets / name).mkdir(exist_ok=True)

    def environment(self) -> dict[str, str]:
        """Return the environment of a client's process on the host."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def credentials(self, endpoint: str = "") -> dict[str, str]:
        """Return the contents of a Secret for pods: AWS's two files. `endpoint` is that of a
        proxy."""
        return {
            "credentials": (
                f"[default]\naws_access_key_id = {self.access_key}\n"
                f"aws_secret_access_key = {self.secret_key}\n"
            ),
            "config": (
                f"[default]\nregion = us-east-1\nendpoint_url = {endpoint or self.endpoint}\n"
            ),
        }

    @property
    def _metadata(self) -> Path:
        return self.settings.run / "s3" / "metadata"

    def _command(self) -> list[str | Path]:
        return [
            *(executable(), "--port", f"{self.settings.gateway}:{_PORT}", "--health", "/health"),
            *("--quiet", "--keep-alive", "posix", "--sidecar", self._metadata, self.buckets),
        ]
