"""From a target to the stack of a campaign: fields that are left open are filled from the
machines."""

from dataclasses import replace

import pytest

from collector.codec.errors import BadInput
from collector.model.stack import Stack, is_cann_release
from jobs.campaign.campaign_file import campaign_from_text
from jobs.campaign.target import resolve_stack, resolve_stack_of
from tests.unit.jobs.printed import raises_naming

pytestmark = pytest.mark.fast

DIE = "ATLAS_800_A3_752T_128G_DIE"
NODE = Stack(DIE, "2.9.0", "25.5.2", "7.8.0", "8.5.1", "2.9.0", "0.18.0")
ALL = "vllm: 0.18.0, torch: 2.9.0, driver: 25.5.2, firmware: 7.8.0, torch_npu: 2.9.0"
TEXT = "campaign: c\nsources: [{bundled: quickstart}]\nbackend: npu\ntarget: {device: %s, %s}\n"


def campaign(cann, more=ALL):
    return campaign_from_text(TEXT % (DIE, f"{more}, cann: {cann}"), path="c.yaml", base=None)


@pytest.mark.parametrize("line", ["8.5", "8"])
def test_cann_line_is_resolved_to_the_release_of_the_machines(line):
    assert resolve_stack_of(campaign(line), lambda: NODE) == NODE
    assert resolve_stack_of(campaign(line, "vllm: 0.18.0"), lambda: NODE) == NODE
    assert resolve_stack_of(campaign(line), lambda: None) is None  # they have not answered


def test_complete_cann_release_needs_no_probe():
    requested = []
    found = resolve_stack_of(campaign("8.5.0"), lambda: requested.append(1))
    assert (found, requested) == (replace(NODE, cann="8.5.0"), [])


@pytest.mark.parametrize("there", ["9.1.0", "8.50.0"])
def test_machines_of_another_cann_line_are_refused_with_their_release(there):
    with raises_naming(BadInput, "8.5", there):
        resolve_stack_of(campaign("8.5"), lambda: replace(NODE, cann=there))


def test_cann_line_is_refused_without_a_machine_to_probe(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with raises_naming(BadInput, "cann", "8.5"):
        resolve_stack(campaign("8.5"))


@pytest.mark.parametrize(
    ("version", "is_one"),
    [("8.5", False), ("8", False), ("8.5.0", True), ("8.3.RC1", True), ("9.1.0-beta.1", True)],
)
def test_a_release_of_cann_has_three_parts(version, is_one):
    assert is_cann_release(version) is is_one
