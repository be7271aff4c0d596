"""The cluster that tests speak to: one of our own on this machine, or the user's."""

import os
import shutil
import sys
import uuid
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from tests.cluster.namespace import Namespace
from tests.cluster.testbed.images import ProjectImage, build_image
from tests.cluster.testbed.kubectl import Kubectl
from tests.cluster.testbed.testbed import Testbed

_IMAGE, _COLLECTOR = "OPMETER_TEST_IMAGE", "OPMETER_TEST_COLLECTOR"


@dataclass
class Cluster:
    """`testbed` is None for a cluster that is the user's: what must reach nodes, rather than the
    API, skips there."""

    kubectl: Kubectl
    testbed: Testbed | None = None

    @property
    def own(self) -> Testbed:
        """The cluster's machinery; the test is skipped where it is not ours."""
        if self.testbed is None:
            pytest.skip("KUBECONFIG names a cluster whose nodes are not ours to harm")
        return self.testbed

    @cached_property
    def built_image(self) -> ProjectImage:
        """The image of the target `controller`, built here; every node of our own has it."""
        image = build_image(self.own.settings.cache)
        self.own.load(image.archive)
        return image

    @property
    def controller_image(self) -> str:
        """The name of an image of the project without torch."""
        if self.testbed is None:
            return _named_image(_IMAGE, "controller")
        return self.built_image.name

    @property
    def collector_image(self) -> str:
        """The name of an image of the project that measures on cpu; in our own cluster torch
        comes with a claim of `site_packages`."""
        if self.testbed is None:
            return _named_image(_COLLECTOR, "collector-cpu")
        return self.controller_image

    def has_kind(self, kind: str) -> bool:
        """Whether the cluster knows a kind, as `jobsets.jobset.x-k8s.io`."""
        return self.kubectl.succeeds("get", kind, "--all-namespaces", "--limit=1")

    def make_namespace(self, level: str = "restricted") -> Namespace:
        """A namespace of a new name, whose pods must meet a pod security level."""
        name = f"opmeter-test-{uuid.uuid4().hex[:8]}"
        labels = {"pod-security.kubernetes.io/enforce": level, "opmeter-test": "true"}
        metadata = {"name": name, "labels": labels}
        self.kubectl.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        return Namespace(name, self.kubectl)

    def site_packages(self) -> Path:
        """This Python's packages, torch among them, for pods whose Python is the same."""
        import torch

        if sys.version_info[:2] != (3, 11):
            pytest.skip("the image's Python is 3.11: it cannot load another's packages")
        return Path(torch.__file__).parents[1]


def users_cluster(kubeconfig: Path) -> Cluster:
    """The cluster that KUBECONFIG names; skips where nothing speaks to it."""
    found = shutil.which("kubectl")
    if found is None:
        pytest.skip("KUBECONFIG is set, and there is no kubectl")
    return Cluster(Kubectl(Path(found), kubeconfig, Path(os.devnull)))


def _named_image(variable: str, target: str) -> str:
    name = os.environ.get(variable, "")
    if not name:
        pytest.skip(f"set {variable} to an image of the target {target} that the cluster can pull")
    return name
