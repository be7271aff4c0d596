"""The API server accepts every manifest as shipped, strictly and without a change."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.namespace import Namespace
from tests.cluster.shipped import MANIFESTS, refusals

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def folders(parent: str) -> Iterator[str]:
    """As `components/nodes`."""
    for path in sorted((MANIFESTS / parent).iterdir()):
        if path.is_dir():
            yield f"{parent}/{path.name}"


def test_every_overlay_and_component_is_accepted_and_an_unknown_field_is_refused(
    cluster: Cluster, namespace: Namespace, tmp_path: Path
):
    overlays = {name: {"resources": [name]} for name in folders("overlays")}
    overlays["the root"] = {"resources": ["."]}
    quickstart = ["base", "campaigns/quickstart"]
    for name in folders("components"):
        overlays[name] = {"resources": quickstart, "components": [name]}
    if not cluster.has_kind("localqueues.kueue.x-k8s.io"):
        del overlays["components/kueue"]  # test_kueue.py has the kind, and tests this one
    if not cluster.has_kind("prometheusrules.monitoring.coreos.com"):
        del overlays["components/metrics"]  # a unit test renders it, and parses its expressions
    assert len(overlays) > 15
    assert refusals(namespace, tmp_path / "shipped", overlays) == {}
    patch = '[{"op": "add", "path": "/spec/replcas", "value": 1}]'
    wrong = {"resources": ["base"], "patches": [{"target": {"kind": "Deployment"}, "patch": patch}]}
    assert "replcas" in refusals(namespace, tmp_path / "wrong", {"wrong": wrong})["wrong"]
