"""The images of workers on NPUs, built from the Dockerfile on stand-ins of the vendor's images, and
run as a `restricted` pod is: no root, no rights, no network, and nothing writable but /work.

A campaign in a cluster: test_campaign_manifests.py.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from collector.worker.exit_codes import ExitCode
from tests.cluster.testbed.images import COLLECTORS, Podman, Target, podman_with
from tests.cluster.testbed.settings import NoCluster, from_environment
from tests.lacking import lacking

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

_RESTRICTED = (
    *("--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--network=none"),
    *("--security-opt=no-new-privileges", "--volume=/work", "--pull=never", "--rm"),
)
# On top of the stand-in: the packages of opmeter. The image of a vendor has 15 GB and more.
_MOST_BYTES = 1.5e9
_LIMIT_S = 800
# Each command with its exit code and the last line of its output.
_COMMANDS = {
    "help": ["opmeter", "--help"],
    "no such option": ["opmeter", "plan", "--no-such-option"],
    "no database": ["opmeter", "db", "log"],
    "no task": ["opmeter", "work"],
    "doctor": ["opmeter", "doctor"],
    "pip check": ["/opt/opmeter/bin/pip", "check"],
    "locks": ["sh", "-c", "echo $OPMETER_LOCKS"],
}
_INSIDE = """
import importlib.metadata, importlib.util, json, os, pathlib, pwd, subprocess, sys
import numpy, pandas, pyarrow, pyarrow.compute, pyarrow.dataset, pyarrow.parquet
table = pyarrow.Table.from_pandas(pandas.DataFrame({"a": numpy.arange(3)}))
pyarrow.parquet.write_table(table, "/work/t.parquet")
back = pyarrow.parquet.read_table("/work/t.parquet").to_pandas()
def writable(path):
    try:
        open(os.path.join(path, "try"), "w").close()
    except OSError:
        return False
    return True
required = [r.split(";")[0] for r in importlib.metadata.requires("opmeter") if "extra" not in r]
def run(words):
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr
print(json.dumps({
    "ids": [os.getuid(), os.getgid(), pwd.getpwuid(os.getuid()).pw_name], "cwd": os.getcwd(),
    "writable": [p for p in ("/", "/opt/opmeter", "/tmp", "/workspace", "/work") if writable(p)],
    "sum": int(back.a.sum()),
    "python": ".".join(map(str, sys.version_info[:2])),
    "numpy": [numpy.__version__, numpy.__file__],
    "commands": {name: run(words) for name, words in json.loads(sys.argv[1]).items()},
}))
"""
_IMPORTS = (
    "boto3, kubernetes, prometheus_client, rich, scipy.stats, typer, yaml, zstandard, collector, "
    "jobs.cli.app, opmeter"
)


@dataclass(frozen=True, slots=True)
class Collector:
    """The image of a release, in the store of podman."""

    podman: Podman
    target: Target

    def start(
        self, *words: str, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a container; the exit code is that of its process."""
        given = [f"--env={name}={text}" for name, text in (environment or {}).items()]
        return subprocess.Popen(
            self.podman.command("run", *_RESTRICTED, *given, self.podman.image, *words),
            env={**os.environ, **self.podman.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture(scope="module", params=sorted(COLLECTORS))
def collector(request: pytest.FixtureRequest) -> Iterator[Collector]:
    target = COLLECTORS[request.param]
    try:
        with podman_with(from_environment().cache, target) as podman:
            yield Collector(podman, target)
    except NoCluster as error:
        lacking(str(error))


def test_commands_and_dependencies_work_as_user_1000_in_a_read_only_container(
    collector: Collector,
):
    python = "/opt/opmeter/bin/python"
    program = f"import {_IMPORTS}\n{_INSIDE}"
    container = collector.start(python, "-c", program, json.dumps(_COMMANDS))
    output, _ = container.communicate(timeout=_LIMIT_S)
    assert container.returncode == 0, output
    found = json.loads(output.splitlines()[-1])
    assert found["ids"] == [1000, 1000, "HwHiAiUser"]
    assert (found["cwd"], found["writable"]) == ("/work", ["/work"])
    assert found["sum"] == 3
    assert found["python"] == collector.target.python
    version, place = found["numpy"]
    assert f"numpy=={version}" in collector.target.packages
    assert not place.startswith("/opt/opmeter"), "numpy is that of the base"
    codes = {name: code for name, (code, _) in found["commands"].items()}
    texts = {name: text for name, (_, text) in found["commands"].items()}
    assert codes == {
        "help": 0,
        "no such option": 2,
        "no database": 2,
        "no task": ExitCode.IMAGE,
        "doctor": 1,  # no torch, no CANN
        "pip check": 0,
        "locks": 0,
    }, texts
    stored = [line for line in texts["doctor"].splitlines() if line.split()[1:2] == ["store"]]
    assert [line.split()[0] for line in stored] == ["ok"], texts["doctor"]
    assert texts["locks"].split() == ["/work/locks"]


def test_worker_ends_with_75_at_sigterm_while_its_store_is_unreachable(
    collector: Collector,
):
    unreachable = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "OPMETER_ROOT": "s3://none/x",
        "OPMETER_CAMPAIGN": "c",
        "OPMETER_WAVE": "0123456789abcdef",
        "OPMETER_PLAN_HASH": "0123456789abcdef",
        "JOB_COMPLETION_INDEX": "0",
    }
    container = collector.start("opmeter", "work", environment=unreachable)
    assert container.stdout is not None
    lines = []
    for line in container.stdout:
        lines.append(line)
        if "retrying" in line:
            container.send_signal(signal.SIGTERM)
            break
    rest, _ = container.communicate(timeout=_LIMIT_S)
    assert container.returncode == ExitCode.TEMPORARY, "".join(lines) + rest


def test_size_of_the_image_is_that_of_its_packages(collector: Collector):
    podman = collector.podman
    size = int(podman("image", "inspect", podman.image, "--format", "{{.Size}}"))
    assert size < _MOST_BYTES
