"""The result of `kubectl apply -k` of the project's own manifests: accounts, permissions,
controller.

An overlay on top of `manifests/`, as a site would write one, with the images and the namespace of a
test. Nothing of the manifests is repeated here.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cluster.namespace import Namespace
from tests.cluster.testbed.images import PROJECT

MANIFESTS = PROJECT / "manifests"


def write_overlay(
    namespace: Namespace,
    folder: Path,
    *,
    resources: Sequence[str],
    components: Sequence[str] = (),
    images: Mapping[str, str] | None = None,
    patches: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write an overlay into an empty folder. `resources` and `components` are folders below
    `manifests/`; `images` maps the names in the manifests to those here."""
    folder.mkdir(parents=True, exist_ok=True)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": namespace.name,
        "resources": [_seen_from(folder, name) for name in resources],
        "components": [_seen_from(folder, name) for name in components],
        "images": [_image(name, expected) for name, expected in (images or {}).items()],
        "patches": [*patches, *_unique_names(namespace.name)],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(kustomization))


def apply_overlay(namespace: Namespace, folder: Path, **overlay: Any) -> None:
    """Write an overlay and apply it, as a site's administrator would."""
    write_overlay(namespace, folder, **overlay)
    namespace.kubectl("apply", "-k", folder)


def refusals(
    namespace: Namespace, folder: Path, overlays: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Return name of an overlay -> why the API server does not accept all of it, strictly and
    without a change; empty if it accepts everything. An overlay is what `write_overlay` takes by
    keyword."""
    found, rendered = {}, {}
    for number, (name, overlay) in enumerate(overlays.items()):
        write_overlay(namespace, folder / str(number), **overlay)
        try:
            rendered[name] = namespace.kubectl("kustomize", folder / str(number))
        except RuntimeError as error:
            found[name] = str(error)
    if _refusal(namespace, *rendered.values()):  # of all at once: one process of kubectl
        each = {name: _refusal(namespace, text) for name, text in rendered.items()}
        found |= {name: why for name, why in each.items() if why}
        assert found, "each is accepted, but all of them at once are not"
    return found


def apply_base(namespace: Namespace, folder: Path) -> None:
    """Accounts, permissions and network as shipped, `restricted`, without a controller."""
    apply_overlay(
        namespace,
        folder,
        resources=["base"],
        components=["components/nodes", "components/restricted"],
        patches=[
            {
                "target": {"kind": "Deployment", "name": "opmeter-controller"},
                "patch": '[{"op": "replace", "path": "/spec/replicas", "value": 0}]',
            }
        ],
    )


def write_kubeconfig(namespace: Namespace, account: str, path: Path) -> Path:
    """Return a kubeconfig of a ServiceAccount of the namespace."""
    view = json.loads(namespace.kubectl("config", "view", "--raw", "-o", "json"))
    current = next(c for c in view["contexts"] if c["name"] == view["current-context"])
    cluster = next(c for c in view["clusters"] if c["name"] == current["context"]["cluster"])
    token = namespace("create", "token", account, "--duration=6h").strip()
    context = {"cluster": cluster["name"], "user": account, "namespace": namespace.name}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{"name": account, "user": {"token": token}}],
        "contexts": [{"name": "test", "context": context}],
        "current-context": "test",
    }
    path.write_text(json.dumps(config))
    return path


def _refusal(namespace: Namespace, *rendered: str) -> str:
    """Return why the API server does not accept all of what kustomize has printed; empty if it
    does."""
    text = "\n---\n".join(rendered)
    strictly = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    try:
        message = namespace.kubectl("apply", *strictly, "-f", "-", text=text)
    except RuntimeError as error:
        return str(error)
    taken, expected = message.count("serverside-applied (server dry run)"), text.count("\nkind: ")
    return "" if taken == expected else f"{taken} of {expected} objects are taken: {message}"


def _seen_from(folder: Path, name: str) -> str:
    return os.path.relpath(MANIFESTS / name, folder.resolve())


def _image(name: str, expected: str) -> dict[str, str]:
    new, _, tag = expected.rpartition(":")
    return {"name": name, "newName": new, "newTag": tag}


def remove_from_cluster(namespace: Namespace) -> None:
    """Remove the cluster-scoped objects of the manifests; the namespace is removed by itself."""
    name = _of_cluster(namespace.name)
    for kind in ("clusterrolebinding", "clusterrole"):
        namespace.kubectl("delete", kind, name, "--ignore-not-found")


def _unique_names(namespace: str) -> list[dict[str, Any]]:
    """Cluster-scoped objects must not collide with those of another test."""
    name = json.dumps(_of_cluster(namespace))
    own = f'{{"op": "replace", "path": "/metadata/name", "value": {name}}}'
    role = f'{{"op": "replace", "path": "/roleRef/name", "value": {name}}}'
    return [
        {"target": {"kind": "ClusterRole"}, "patch": f"[{own}]"},
        {"target": {"kind": "ClusterRoleBinding"}, "patch": f"[{own}, {role}]"},
    ]


def _of_cluster(namespace: str) -> str:
    return f"{namespace}-nodes"
