"""A campaign as applied to a cluster: one ConfigMap, which owns everything created for it.

Deleting it cancels the campaign; commits are kept, and applying it again continues the campaign. So
it contains everything that a controller needs, and names sources only by names that mean the same
anywhere. Each value has its own key, so that kustomize can set one without reading the others.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from collector import __version__
from collector.codec.canonical import short_hash
from collector.codec.errors import BadInput
from collector.codec.text import did_you_mean
from jobs.campaign.campaign_file import Campaign, RunOptions, campaign_from_text
from jobs.objects.deployment import COMPONENT_LABEL, LABEL, NO_KEYS, PART_OF, Deployment, Manifest
from jobs.objects.gangs import check_grids
from jobs.objects.object_values import check_deployment_values
from jobs.objects.site import DEFAULT_USER, Site, bundled_sites, load_site, site_from_text

# Requests for another round of an applied campaign: `again` and `retry-failed`.
#
# Each is an annotation with a token, and is served once per token. Before the plan is made, the
# number that it will have is written next to the token: if a controller is killed in between, the
# next one sees whether that plan exists.

AGAIN, RETRY_FAILED = LABEL + "again", LABEL + "retry-failed"
SERVED_BY = LABEL + "served-by"


def rerun_annotations(options: RunOptions, token: str) -> dict[str, str]:
    """Return the annotations that request these options."""
    text = ((AGAIN, options.again), (RETRY_FAILED, options.retry_failed))
    return {name: token for name, requested in text if requested}


def tokens(notes: Mapping[str, str]) -> str:
    """Return the requests in an object's annotations as one text; empty if there are none."""
    return ",".join(f"{name}={notes[name]}" for name in (AGAIN, RETRY_FAILED) if notes.get(name))


def promise(notes: Mapping[str, str], plans: Iterable[int]) -> str | None:
    """Return the text to record before a request is served.

    None if nothing is requested, or if it is already recorded."""
    requests = tokens(notes)
    if not requests or _promised(notes) is not None:
        return None
    return f"{requests}:{max(plans, default=0) + 1}"


def open_rerun(notes: Mapping[str, str], plans: Iterable[int]) -> RunOptions:
    """Return the recorded requests that no plan has served yet."""
    number = _promised(notes)
    if number is None or max(plans, default=0) >= number:
        return RunOptions()
    return RunOptions(again=bool(notes.get(AGAIN)), retry_failed=bool(notes.get(RETRY_FAILED)))


def _promised(notes: Mapping[str, str]) -> int | None:
    """Return the number of the plan that serves the current requests."""
    requests, _, number = notes.get(SERVED_BY, "").rpartition(":")
    return int(number) if requests and requests == tokens(notes) and number.isdigit() else None


CAMPAIGN, SITE, SITE_YAML, OP_MAPPING = "campaign.yaml", "site", "site.yaml", "op_mapping.yaml"
# `site.KEY` changes one key of the profile; components and `launch --set` use such keys.
SITE_CHANGE = "site."
PAUSED = LABEL + "paused"
ALLOW_MISSING = LABEL + "allow-missing"
MERGED = LABEL + "merged"
SELECTOR = LABEL + "campaign"
# The root of a store that does not support create-only writes. It is recorded, because a second
# probe may pass: some stores let two writers succeed only now and then.
LEASED = LABEL + "leased"
# Since when the controller does not reach the store, and why.
STORE_AWAY = LABEL + "store-unavailable"
_DEPLOYMENT_KEYS = tuple(f.name for f in fields(Deployment) if f.name not in NO_KEYS)
_REQUIRED = ("image", "controller_image", "root")
_BOOLEANS = ("single_writer", "allow_unpinned")
_PINNED = re.compile(r"[^@]+@sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Applied:
    """The parsed ConfigMap of a campaign.

    `object` is the ConfigMap itself, for Events and ownership. `fingerprint` is a hash of
    everything that determines the campaign's plan. A controller that has merged the whole plan
    records it, for waiting users and for the next leader."""

    campaign: Campaign
    site: Site
    deployment: Deployment
    op_mapping: str | None
    paused: bool
    allow_missing: bool
    fingerprint: str
    is_merged: bool
    object: Manifest


def applied_from(config_map: Manifest) -> Applied:
    """Return the campaign of a ConfigMap.

    Raises:
        BadInput: a value is invalid; with key and line."""
    metadata, data = config_map["metadata"], config_map.get("data") or {}
    name = metadata["name"]
    if CAMPAIGN not in data:
        raise BadInput(f"ConfigMap {name}: the key {CAMPAIGN} is missing")
    campaign = campaign_from_text(data[CAMPAIGN], path=f"{name}/{CAMPAIGN}", base=Path("/"))
    _check_keys(name, data)
    _check_names(metadata, campaign)
    notes = metadata.get("annotations") or {}
    fingerprint = short_hash([dict(data), tokens(notes), __version__], 16)
    if campaign.operator_files:
        raise BadInput(
            f"{name}/{CAMPAIGN}: operators: expected files of the store (NAME.py@SHA256), got "
            f"{campaign.operator_files[0].name}; `opmeter launch` uploads it"
        )
    hashes = tuple(file.sha256 for file in campaign.stored_operators)
    site = _site(name, data, campaign)
    deployment = replace(_deployment(config_map), operators=hashes)
    check_parts(campaign, site, deployment)
    return Applied(
        campaign=campaign,
        site=site,
        deployment=deployment,
        op_mapping=data.get(OP_MAPPING),
        paused=notes.get(PAUSED) == "true",
        allow_missing=notes.get(ALLOW_MISSING) == "true",
        fingerprint=fingerprint,
        is_merged=notes.get(MERGED) == fingerprint,
        object=config_map,
    )


def config_map_name(campaign: str) -> str:
    return f"opmeter-campaign-{campaign}"


def is_named(config_map: Manifest) -> bool:
    """Return whether this is the one ConfigMap that its campaign may have.

    Of two ConfigMaps with the same label only one can have the campaign's name."""
    metadata = config_map["metadata"]
    return bool(metadata["name"] == config_map_name(metadata["labels"][SELECTOR]))


def known_as(config_map: Manifest) -> str:
    """Return the name of its campaign; if the ConfigMap has another name, its own name."""
    metadata = config_map["metadata"]
    label, name = metadata["labels"][SELECTOR], metadata["name"]
    return str(label) if is_named(config_map) else f"ConfigMap {name}"


def check_parts(campaign: Campaign, site: Site, deployment: Deployment) -> None:
    """Raise BadInput if campaign, machines and image do not match, or if the API server would
    refuse the objects of the deployment."""
    if campaign.planned_operators and site.own_operators == "refused":
        raise BadInput(
            f"campaign {campaign.name}: operators: site {site.name} does not execute files of "
            f"operators (own_operators: refused): remove {campaign.planned_operators[0].name}"
        )
    if campaign.backend != site.backend:
        raise BadInput(
            f"campaign {campaign.name}: backend {campaign.backend} does not match "
            f"backend {site.backend} of the site"
        )
    pinned = _PINNED.fullmatch(deployment.image) or deployment.allow_unpinned
    if site.backend == "npu" and not pinned:
        raise BadInput(
            f"campaign {campaign.name}: image {deployment.image} "
            "has no digest: results need one fixed "
            "stack, and a tag may move; use NAME@sha256:..., or pass --allow-unpinned "
            "(allow_unpinned: true in a ConfigMap)"
        )
    if deployment.store_claim and site.run_as_user != DEFAULT_USER:
        raise BadInput(
            f"campaign {campaign.name}: a store on a volume requires run_as_user {DEFAULT_USER}, "
            f"as which the controller and merges write to it, got {site.run_as_user}; use a bucket"
        )
    check_deployment_values(deployment)
    check_grids(campaign, site)


def config_map(
    campaign: str, text: str, more: Mapping[str, str], deployment: Deployment
) -> Manifest:
    """Return the ConfigMap of a campaign.

    `more` contains the key of its site and, if there is one, that of its op_mapping."""
    reported = {
        key: "true" if value is True else str(value)
        for key in _DEPLOYMENT_KEYS
        if (value := getattr(deployment, key)) not in ("", False)
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": config_map_name(campaign),
            "namespace": deployment.namespace,
            "labels": {PART_OF: "opmeter", COMPONENT_LABEL: "campaign", SELECTOR: campaign},
        },
        "data": {CAMPAIGN: text, **more, **reported},
    }


def _check_names(metadata: Manifest, campaign: Campaign) -> None:
    """Check that the name of the ConfigMap is that of its campaign: one ConfigMap per campaign."""
    name, expected = metadata["name"], config_map_name(campaign.name)
    label = (metadata.get("labels") or {}).get(SELECTOR, campaign.name)
    if label != campaign.name:
        raise BadInput(
            f"ConfigMap {name}: label {SELECTOR}: expected the name of its campaign, "
            f"{campaign.name!r}, got {label!r}"
        )
    if name != expected:
        raise BadInput(
            f"ConfigMap {name}: the campaign {campaign.name!r} must be in the ConfigMap "
            f"{expected}; rename this ConfigMap or its campaign"
        )


def _check_keys(name: str, data: Mapping[str, str]) -> None:
    known = (CAMPAIGN, SITE, SITE_YAML, OP_MAPPING, *_DEPLOYMENT_KEYS)
    for key in data:
        if key not in known and (key == SITE_YAML or not key.startswith(SITE_CHANGE)):
            hint = did_you_mean(key, known) or f"; known: {', '.join(known)}"
            raise BadInput(f"ConfigMap {name}: unknown key {key!r}{hint}")


def _site(name: str, data: Mapping[str, str], campaign: Campaign) -> Site:
    changes = {
        key.removeprefix(SITE_CHANGE): text
        for key, text in data.items()
        if key.startswith(SITE_CHANGE) and key != SITE_YAML
    }
    if SITE_YAML in data:
        return site_from_text(data[SITE_YAML], path=f"{name}/{SITE_YAML}", changes=changes)
    profile = data.get(SITE, "").strip() or ("cpu" if campaign.backend == "cpu" else "")
    if not profile:
        raise BadInput(
            f"ConfigMap {name}: expected the key {SITE} or "
            f"{SITE_YAML}, which describes the machines"
        )
    # the path of a file would refer to the controller's file system
    if profile not in bundled_sites():
        raise BadInput(
            f"ConfigMap {name}: site: expected one of {', '.join(bundled_sites())}, got "
            f"{profile!r}; put the text of another profile into the key {SITE_YAML}"
        )
    return load_site(profile, changes)


def _deployment(config_map: Manifest) -> Deployment:
    metadata, data = config_map["metadata"], config_map.get("data") or {}
    values: dict[str, Any] = {
        key: text for key in _DEPLOYMENT_KEYS if (text := data.get(key, "").strip())
    }
    for key in _REQUIRED:
        if key not in values:
            raise BadInput(f"ConfigMap {metadata['name']}: the key {key} is missing")
    for key in values.keys() & set(_BOOLEANS):
        values[key] = _truth(metadata["name"], key, values[key])
    owner = (metadata["name"], metadata["uid"]) if "uid" in metadata else None
    notes = metadata.get("annotations") or {}
    leased = notes.get(LEASED) == values["root"] and not values.get("single_writer", False)
    namespace = metadata.get("namespace", "default")
    return Deployment(namespace=namespace, owner=owner, leased=leased, **values)


def _truth(name: str, key: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise BadInput(f"ConfigMap {name}: {key}: expected true or false, got {text!r}")
    return text == "true"
