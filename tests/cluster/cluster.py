"""The cluster of the tests: our own on this machine, or the user's."""

import os
import shutil
import sys
import uuid
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

from tests.cluster.namespace import Namespace
from tests.cluster.testbed.images import COLLECTORS, IN_PODS, ProjectImage, build_image
from tests.cluster.testbed.kubectl import Kubectl
from tests.cluster.testbed.testbed import Testbed

_IMAGE, _COLLECTOR = "OPMETER_TEST_IMAGE", "OPMETER_TEST_COLLECTOR"


@dataclass
class Cluster:
    """`testbed` is None for the user's cluster: tests that must reach nodes, rather than the API,
    are skipped there."""

    kubectl: Kubectl
    testbed: Testbed | None = None

    @property
    def own(self) -> Testbed:
        """Return the testbed of our own cluster; skip the test on another one."""
        if self.testbed is None:
            pytest.skip("KUBECONFIG names a cluster whose nodes the tests must not change")
        return self.testbed

    @cached_property
    def built_image(self) -> ProjectImage:
        """Return the image of the target `controller`, built here; every node of our own has it."""
        image = build_image(self.own.settings.cache)
        self.own.load(image.archive)
        return image

    @property
    def npu_image(self) -> str:
        """Return the name of the image of the target `collector`, for pods with `npu_packages`."""
        image = build_image(self.own.settings.cache, COLLECTORS[IN_PODS])
        self.own.load(image.archive)
        return image.name

    @property
    def controller_image(self) -> str:
        """Return the name of an image of the project without torch."""
        if self.testbed is None:
            return _named_image(_IMAGE, "controller")
        return self.built_image.name

    @property
    def collector_image(self) -> str:
        """Return the name of an image of the project that measures on cpu; in our own cluster torch
        is mounted from a claim of `site_packages`."""
        if self.testbed is None:
            return _named_image(_COLLECTOR, "collector-cpu")
        return self.controller_image

    def has_kind(self, kind: str) -> bool:
        """Return whether the cluster knows a kind, as `jobsets.jobset.x-k8s.io`."""
        return self.kubectl.succeeds("get", kind, "--all-namespaces", "--limit=1")

    def make_namespace(self, level: str = "restricted") -> Namespace:
        """Make a namespace with a new name, whose pods must meet a pod security level."""
        name = f"opmeter-test-{uuid.uuid4().hex[:8]}"
        labels = {"pod-security.kubernetes.io/enforce": level, "opmeter-test": "true"}
        metadata = {"name": name, "labels": labels}
        self.kubectl.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        return Namespace(name, self.kubectl)

    def site_packages(self) -> Path:
        """Return the packages of this Python, including torch, for pods with the same Python
        version."""
        import torch

        if sys.version_info[:2] != (3, 11):
            pytest.skip("the image has Python 3.11 and cannot load packages of another one")
        return Path(torch.__file__).parents[1]


def users_cluster(kubeconfig: Path) -> Cluster:
    """Return the cluster that KUBECONFIG names; skip if it is unreachable."""
    found = shutil.which("kubectl")
    if found is None:
        pytest.skip("KUBECONFIG is set, and there is no kubectl")
    return Cluster(Kubectl(Path(found), kubeconfig, Path(os.devnull)))


def _named_image(variable: str, target: str) -> str:
    name = os.environ.get(variable, "")
    if not name:
        pytest.skip(f"set {variable} to an image of the target {target} that the cluster can pull")
    return name
