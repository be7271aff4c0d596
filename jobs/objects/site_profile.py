"""Profiles of sites, as YAML: one a machine type, bundled or somebody's own."""

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from collector.errors import BadInput
from collector.stack import BACKENDS
from jobs.campaign.document import Entry, read_document
from jobs.objects.deployment import LABEL
from jobs.objects.quantities import quantity
from jobs.objects.site import (
    Site,
    concurrency_complaint,
    resource_complaint,
    shape_complaint,
    super_pod_complaint,
)

SHAPES = ("device", "pair", "node")
SCHEDULERS = ("default", "volcano")
RUNTIMES = ("ascend", "hostpath", "none")
NETWORKS = ("pod", "host")
_PROFILE = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_KEYS = (
    *("site", "backend", "resource", "devices_per_node", "shape", "accelerator_type"),
    *("scheduler", "volcano_queue", "kueue_queue", "schedule_policy", "priority_class"),
    *("node_selector", "pod_labels", "tolerations", "runtime", "runtime_class", "network"),
    *("measure_concurrency", "cpu", "memory", "ephemeral_storage", "shared_memory"),
    *("ranks_per_pod", "super_pod_label"),
)
_REQUIRED = ("site", "backend", "devices_per_node", "shape", "cpu", "memory")
_AMOUNTS = {"cpu": "8", "memory": "64Gi", "ephemeral_storage": "40Gi", "shared_memory": "4Gi"}
# Labels by which somebody finds pods and Jobs: this program and its network policies, the Job
# controller, Kueue and JobSet. Another value there would make a pod somebody else's.
_RESERVED = (
    *(LABEL, "app.kubernetes.io/", "batch.kubernetes.io/"),
    *("kueue.x-k8s.io/", "jobset.sigs.k8s.io/"),
)
_RESERVED_NAMES = ("job-name", "controller-uid")
_TOLERATION = ("key", "operator", "value", "effect", "tolerationSeconds")


def bundled_sites() -> list[str]:
    """The names of the profiles that come with the package."""
    folder = files("jobs.objects").joinpath("sites")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir())


def load_site(name: str, changes: Mapping[str, str] = MappingProxyType({})) -> Site:
    """A profile by its bundled name, or by the path of a file. Raises BadInput for neither."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        try:
            return site_from_text(path.read_text(encoding="utf-8"), path=name, changes=changes)
        except OSError as error:
            raise BadInput(
                f"the site profile cannot be read: {error.strerror}", path=path
            ) from error
    if _PROFILE.fullmatch(name) and name in bundled_sites():
        text = files("jobs.objects").joinpath("sites", f"{name}.yaml").read_text(encoding="utf-8")
        return site_from_text(text, path=f"{name}.yaml", changes=changes)
    raise BadInput(
        f"site: expected {', '.join(bundled_sites())} or the path of a YAML file, got {name!r}"
    )


def site_from_text(
    text: str, *, path: str, changes: Mapping[str, str] = MappingProxyType({})
) -> Site:
    """The profile of a text. `changes` replace single keys, each by YAML as it would stand in the
    file, or take them away where they are empty. Raises BadInput, with the line, for anything it
    cannot mean, and for a shape that the site's scheduler would refuse."""
    document = read_document(text, path)
    found = _changed(document.fields(_KEYS, required=_REQUIRED), changes, path)

    def said(key: str, default: str = "") -> str:
        return found[key].text() if key in found else default

    def amount(key: str, default: str = "") -> str:
        if key in found and quantity(found[key].text()) <= 0:
            raise found[key].refusal(
                f"expected a Kubernetes quantity such as {_AMOUNTS[key]}, got {found[key].text()!r}"
            )
        return said(key, default)

    def chosen(key: str, allowed: tuple[str, ...]) -> str:
        return found[key].choice(allowed) if key in found else allowed[0]

    site = Site(
        name=said("site"),
        backend=found["backend"].choice(BACKENDS),
        devices_per_node=found["devices_per_node"].integer(1),
        shape=found["shape"].choice(SHAPES),
        cpu=amount("cpu"),
        memory=amount("memory"),
        resource=said("resource"),
        accelerator_type=said("accelerator_type"),
        scheduler=chosen("scheduler", SCHEDULERS),
        volcano_queue=said("volcano_queue"),
        kueue_queue=said("kueue_queue"),
        schedule_policy=said("schedule_policy"),
        priority_class=said("priority_class"),
        node_selector=_pairs(found.get("node_selector")),
        pod_labels=_labels(found.get("pod_labels")),
        tolerations=_tolerations(found.get("tolerations")),
        runtime=found["runtime"].choice(RUNTIMES) if "runtime" in found else "none",
        runtime_class=said("runtime_class"),
        network=chosen("network", NETWORKS),
        measure_concurrency=found["measure_concurrency"].integer(1)
        if "measure_concurrency" in found
        else 1,
        ephemeral_storage=amount("ephemeral_storage", "40Gi"),
        shared_memory=amount("shared_memory", "4Gi"),
        ranks_per_pod=found["ranks_per_pod"].integer(1) if "ranks_per_pod" in found else 0,
        super_pod_label=said("super_pod_label"),
    )
    if site.ranks_per_pod and site.backend != "cpu":
        raise found["ranks_per_pod"].refusal(
            f"a pod of site {site.name} runs one rank for each of its devices; remove this key"
        )
    if site.super_pod_label and (complaint := super_pod_complaint(site)):
        raise found["super_pod_label"].refusal(complaint)
    if complaint := resource_complaint(site):
        raise found["resource" if "resource" in found else "backend"].refusal(complaint)
    if complaint := shape_complaint(site):
        raise found["shape"].refusal(complaint)
    if "measure_concurrency" in found and (complaint := concurrency_complaint(site)):
        raise found["measure_concurrency"].refusal(complaint)
    return site


def _changed(found: dict[str, Entry], changes: Mapping[str, str], path: str) -> dict[str, Entry]:
    for key, text in changes.items():
        where = f"{path}, site.{key}"
        if text.strip():
            found |= read_document(f"{key}: {text}", where).fields(_KEYS)
        elif key in _REQUIRED:
            raise BadInput(f"{where}: a profile requires this key, got an empty value")
        else:
            found.pop(key, None)
    return found


def _pairs(entry: Entry | None) -> tuple[tuple[str, str], ...]:
    """A mapping of texts, whatever its keys are."""
    if entry is None:
        return ()
    return tuple((key, value.text()) for key, value in entry.mapping().items())


def _labels(entry: Entry | None) -> tuple[tuple[str, str], ...]:
    """Labels of a site's own; those by which others find pods are refused."""
    pairs = _pairs(entry)
    for key, _ in pairs:
        if entry is not None and (key.startswith(_RESERVED) or key in _RESERVED_NAMES):
            labels = f"labels of {key.partition('/')[0]}/ are" if "/" in key else "this label is"
            where = entry.mapping()[key]
            raise where.refusal(
                f"{labels} reserved for the controllers that select pods by them; remove it"
            )
    return pairs


def _tolerations(entry: Entry | None) -> tuple[tuple[tuple[str, str], ...], ...]:
    if entry is None:
        return ()
    return tuple(_toleration(item) for item in entry.items())


def _toleration(entry: Entry) -> tuple[tuple[str, str], ...]:
    found = entry.fields(_TOLERATION)
    if "tolerationSeconds" in found:
        found["tolerationSeconds"].integer(0)
    return tuple((key, value.text()) for key, value in found.items())
