"""The reference pages of the cluster list every component, key and metric."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from jobs.objects.deployment import NO_KEYS, Deployment
from jobs.objects.site import Site

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs" / "reference"


def table_with(page, name):
    """Return the names in the first cells of the table of the page that contains this one."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    cells = ("\n".join(row.split("|")[1] for row in one.splitlines()) for one in tables)
    return next(
        names for names in (set(re.findall(r"`([\w.-]+)`", one)) for one in cells) if name in names
    )


def test_every_component_is_listed():
    components = {path.name for path in (ROOT / "manifests" / "components").iterdir()}
    assert components == table_with("manifests.md", "pvc-store")


def test_every_key_of_a_campaigns_config_map_is_listed():
    keys = {field.name for field in fields(Deployment)} - NO_KEYS
    assert keys <= table_with("manifests.md", "store_claim")


def test_every_key_of_a_profile_is_listed():
    keys = {field.name for field in fields(Site)} - {"name"} | {"site"}
    assert keys == table_with("site-profile.md", "devices_per_node")


def test_every_metric_is_listed():
    code = (ROOT / "jobs" / "controller" / "metrics.py").read_text(encoding="utf-8")
    assert set(re.findall(r'"(opmeter_\w+)":', code)) == table_with("metrics.md", "opmeter_shards")
