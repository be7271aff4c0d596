"""The API server takes every manifest as shipped, asked strictly and changing nothing."""

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.namespace import Namespace
from tests.cluster.shipped import MANIFESTS, write_overlay

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def names_below(folder: str) -> list[str]:
    return sorted(path.name for path in (MANIFESTS / folder).iterdir() if path.is_dir())


def assert_taken(namespace: Namespace, folder, resources, components=()) -> None:
    write_overlay(namespace, folder, resources=resources, components=components)
    rendered = namespace.kubectl("kustomize", folder)
    words = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    said = namespace.kubectl(*words, "-f", "-", text=rendered)
    assert said.count("serverside-applied (server dry run)") == rendered.count("\nkind: ")


@pytest.mark.parametrize("name", names_below("overlays"))
def test_every_overlay_is_taken(namespace: Namespace, tmp_path, name: str):
    assert_taken(namespace, tmp_path, [f"overlays/{name}"])


@pytest.mark.parametrize("name", names_below("components"))
def test_every_component_is_taken(cluster: Cluster, namespace: Namespace, tmp_path, name: str):
    if name == "kueue" and not cluster.has_kind("localqueues.kueue.x-k8s.io"):
        pytest.skip("this cluster has no Kueue, whose LocalQueue the component brings")
    resources = ["base", "campaigns/quickstart"]
    assert_taken(namespace, tmp_path, resources, ["profiles/cpu", f"components/{name}"])


@pytest.mark.parametrize("name", names_below("profiles"))
def test_every_profile_is_taken(namespace: Namespace, tmp_path, name: str):
    assert_taken(namespace, tmp_path, ["base", "campaigns/npu-example"], [f"profiles/{name}"])


def test_an_unknown_field_is_refused(namespace: Namespace, tmp_path):
    patch = '[{"op": "add", "path": "/spec/replcas", "value": 1}]'
    target = {"kind": "Deployment"}
    folder = tmp_path / "wrong"
    patches = [{"target": target, "patch": patch}]
    write_overlay(namespace, folder, resources=["base"], patches=patches)
    rendered = namespace.kubectl("kustomize", folder)
    words = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    with pytest.raises(RuntimeError, match="replcas"):
        namespace.kubectl(*words, text=rendered)
