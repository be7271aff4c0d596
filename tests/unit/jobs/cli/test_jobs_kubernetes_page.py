"""The page about Kubernetes names what there is: Events, components, keys and metrics."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from jobs.objects.deployment import NO_KEYS, Deployment
from jobs.objects.site import Site

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
SAID = re.compile(r'(?:Announce\(|Suspension\(|\.say\(|announce\([^"()]*)\s*"([A-Z][A-Za-z]+)"')


def table_with(name):
    """Return the names in the first cells of the table that has this one."""
    tables = re.findall(r"(?:^\|.*\n)+", PAGE, flags=re.MULTILINE)
    cells = ("\n".join(row.split("|")[1] for row in one.splitlines()) for one in tables)
    return next(
        names for names in (set(re.findall(r"`([\w.-]+)`", one)) for one in cells) if name in names
    )


def test_every_event_is_explained_and_no_other():
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "jobs").rglob("*.py"))
    said = set(SAID.findall(code))
    assert len(said) > 12
    assert {name for name in table_with("NodeQuarantined") if name[0].isupper()} == said


def test_every_component_is_listed():
    components = {path.name for path in (ROOT / "manifests" / "components").iterdir()}
    assert components <= table_with("pvc-store")


def test_every_key_of_a_campaigns_config_map_is_listed():
    keys = {field.name for field in fields(Deployment)} - NO_KEYS
    assert keys <= table_with("store_claim")


def test_every_key_of_a_profile_is_listed():
    keys = {field.name for field in fields(Site)} - {"name"} | {"site"}
    assert keys == table_with("devices_per_node")


def test_every_metric_is_named():
    code = (ROOT / "jobs" / "controller" / "metrics.py").read_text(encoding="utf-8")
    assert set(re.findall(r'"(opmeter_\w+)":', code)) == set(re.findall(r"`(opmeter_\w+)`", PAGE))
