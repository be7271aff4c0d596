"""The controller's image, built from the Dockerfile: its labels, contents and rights."""

import json

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.namespace import Namespace
from tests.cluster.pods import pod

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

_LOOK_AROUND = """
import importlib.util, json, os, pwd, subprocess
help = subprocess.run(["opmeter", "--help"], capture_output=True, text=True, check=True).stdout
def writable(path):
    try:
        open(os.path.join(path, "try"), "w").close()
    except OSError:
        return False
    return True
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "account": pwd.getpwuid(os.getuid()).pw_uid,
    "writable": [p for p in ("/", "/opt/opmeter", "/tmp", "/work") if writable(p)],
    "torch": importlib.util.find_spec("torch") is not None,
    "cwd": os.getcwd(),
    "help": help.split()[:2],
}))
"""


@pytest.fixture
def config(cluster: Cluster) -> dict:
    return cluster.built_image.config()["config"]


def test_image_runs_as_a_numbered_user_who_is_not_root(config):
    assert config["User"] == "1000:1000"


def test_image_has_no_entry_point(config):
    assert not config.get("Entrypoint")


def test_labels_have_the_image_and_its_base(config):
    labels = {k.removeprefix("org.opencontainers.image."): v for k, v in config["Labels"].items()}
    assert labels["title"] == "opmeter"
    assert labels["licenses"] == "Apache-2.0"
    assert labels["base.name"].startswith("localhost/opmeter-base:")
    assert {"source", "revision", "version", "base.digest"} <= set(labels)


def test_restricted_pod_is_user_1000_writes_only_below_work_and_has_the_command(
    cluster: Cluster, namespace: Namespace
):
    command = ["python3", "-c", _LOOK_AROUND]
    ended = namespace.run(pod("look", cluster.controller_image, command))
    assert ended.exit_code == 0, ended.log
    assert json.loads(ended.log) == {
        "uid": 1000,
        "gid": 1000,
        "account": 1000,
        "writable": ["/work"],
        "torch": False,
        "cwd": "/work",
        "help": ["Usage:", "opmeter"],
    }
