"""A campaign as it is applied to a cluster: one ConfigMap, which owns everything made for it.

Deleting it cancels the campaign; what was committed stays, and applying it again goes on. So it
holds all that a controller wants to know, and sources only by names that mean the same anywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from collector.errors import BadInput
from jobs.campaign import BundledSource, Campaign, CasesSource, campaign_from_text
from jobs.document import read_document
from jobs.podspec import LABEL, Deployment, Manifest
from jobs.site import Site, load_site, site_from_text

CAMPAIGN, SITE, SITE_YAML, DEPLOYMENT, OP_MAPPING = (
    *("campaign.yaml", "site", "site.yaml"),
    *("deployment.yaml", "op_mapping.yaml"),
)
PAUSED = LABEL + "paused"
ALLOW_MISSING = LABEL + "allow-missing"
SELECTOR = LABEL + "campaign"
_DEPLOYMENT_KEYS = tuple(
    field.name for field in fields(Deployment) if field.name not in ("namespace", "owner")
)


@dataclass(frozen=True, slots=True)
class Applied:
    """What a ConfigMap says. `object` is the ConfigMap itself, for Events and ownership."""

    campaign: Campaign
    site: Site
    deployment: Deployment
    paused: bool
    allow_missing: bool
    object: Manifest


def applied_from(config_map: Manifest, mounted: Path = Path("/")) -> Applied:
    """The campaign of a ConfigMap. Raises BadInput, with key and line, for what it cannot mean."""
    metadata, data = config_map["metadata"], config_map.get("data") or {}
    name = metadata["name"]
    if CAMPAIGN not in data:
        raise BadInput(f"ConfigMap {name}: the key {CAMPAIGN} is missing")
    campaign = campaign_from_text(data[CAMPAIGN], path=f"{name}/{CAMPAIGN}", base=mounted)
    notes = metadata.get("annotations") or {}
    return Applied(
        campaign=campaign,
        site=_site(name, data, campaign),
        deployment=_deployment(config_map),
        paused=notes.get(PAUSED) == "true",
        allow_missing=notes.get(ALLOW_MISSING) == "true",
        object=config_map,
    )


def config_map_name(campaign: str) -> str:
    return f"opmeter-campaign-{campaign}"


def config_map(
    campaign: str, text: str, site: Mapping[str, str], deployment: Deployment
) -> Manifest:
    """The ConfigMap of a campaign; `site` is its one key and text."""
    lines = (
        f"{key}: {_yaml(value)}"
        for key in _DEPLOYMENT_KEYS
        if (value := getattr(deployment, key)) not in ("", False)
    )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_name(campaign),
            "namespace": deployment.namespace,
            "labels": {
                "app.kubernetes.io/part-of": "opmeter",
                "app.kubernetes.io/component": "campaign",
                SELECTOR: campaign,
            },
        },
        "data": {CAMPAIGN: text, **site, DEPLOYMENT: "\n".join(lines) + "\n"},
    }


def check_sources(campaign: Campaign) -> None:
    """Raise BadInput where a source lies on one machine only."""
    for source in campaign.sources:
        path = getattr(source, "path", None)
        if isinstance(source, BundledSource | CasesSource) or (path and Path(path).exists()):
            continue
        raise BadInput(
            f"campaign {campaign.name}: the source {path} is not mounted here; upload its cases "
            "from where it lies: opmeter launch CAMPAIGN"
        )


def _site(name: str, data: Mapping[str, str], campaign: Campaign) -> Site:
    if SITE_YAML in data:
        return site_from_text(data[SITE_YAML], path=f"{name}/{SITE_YAML}")
    if SITE in data:
        return load_site(data[SITE].strip())
    if campaign.backend == "cpu":
        return load_site("cpu")
    raise BadInput(f"ConfigMap {name}: the key {SITE}, or {SITE_YAML}, is wanted: which machines?")


def _deployment(config_map: Manifest) -> Deployment:
    metadata, data = config_map["metadata"], config_map.get("data") or {}
    path = f"{metadata['name']}/{DEPLOYMENT}"
    document = read_document(data.get(DEPLOYMENT, ""), path)
    required = ("image", "controller_image", "root")
    found = document.fields(_DEPLOYMENT_KEYS, required=required)
    values: dict[str, Any] = {key: entry.text() for key, entry in found.items()}
    if "single_writer" in found:
        values["single_writer"] = found["single_writer"].choice(("true", "false")) == "true"
    owner = (metadata["name"], metadata["uid"]) if "uid" in metadata else None
    return Deployment(namespace=metadata.get("namespace", "default"), owner=owner, **values)


def _yaml(value: object) -> str:
    return "true" if value is True else f'"{value}"'
