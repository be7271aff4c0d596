"""The commands of tutorials and how-tos that need a cluster, as written.

They run in a copy of the repository. The demo overlay of the copy names the images of this cluster,
and the volume from which their Python imports torch; the reader builds images instead.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.drill import TORCH
from tests.cluster.namespace import Namespace
from tests.docs.blocks import blocks_of, copy_repository, environment, pages, run

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]

_NEEDS = ("laptop", "cluster")
_PAGES = [page for page in pages() if any(one.needs == "cluster" for one in blocks_of(page))]
_DEMO = Path("manifests/overlays/cpu-demo/kustomization.yaml")
_CLAIM = "opmeter-store"
_LIMIT_S = 2400


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    """The namespace of the manifests, which is removed when the test ends."""
    made = Namespace("opmeter", cluster.kubectl)
    metadata = {"name": made.name, "labels": {"opmeter-test": "true"}}
    made.kubectl.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    try:
        yield made
    finally:
        made.kubectl("delete", "namespace", made.name, "--ignore-not-found", "--timeout=180s")
        of_test = ("persistentvolumes", "-l", f"opmeter-test={made.name}")
        made.kubectl("delete", *of_test, "--wait=false")


@pytest.mark.parametrize("page", _PAGES)
def test_cluster_blocks_of_a_page_run_as_written(
    page: str, cluster: Cluster, namespace: Namespace, tmp_path: Path
) -> None:
    repository, tools = tmp_path / "repository", tmp_path / "tools"
    repository.mkdir()
    tools.mkdir()
    copy_repository(repository)
    _use_images_of(cluster, repository)
    namespace.mount_folder(TORCH, cluster.site_packages())
    namespace.offer_volume(_CLAIM, cluster.own.settings.run / f"store-of-{uuid.uuid4().hex[:8]}")
    env = environment(tools, os.environ, repository)
    (tools / ".bin" / "kubectl").symlink_to(namespace.kubectl.executable)
    blocks = [block for block in blocks_of(page) if block.needs in _NEEDS]
    run(blocks, repository, env, _LIMIT_S)


def _use_images_of(cluster: Cluster, repository: Path) -> None:
    text = (repository / _DEMO).read_text()
    start, _, _ = text.partition("images:\n")
    name, _, tag = cluster.controller_image.rpartition(":")
    images = "".join(
        f"  - {{name: opmeter/{one}, newName: {name}, newTag: {tag}}}\n"
        for one in ("controller", "collector-cpu")
    )
    patch = f'[{{"op": "add", "path": "/data/site_packages", "value": "{TORCH}"}}]'
    patches = f"patches:\n  - target: {{kind: ConfigMap}}\n    patch: '{patch}'\n"
    (repository / _DEMO).write_text(f"{start}images:\n{images}{patches}")
