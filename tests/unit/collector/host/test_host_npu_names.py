"""The database's name of a chip: one name, or an error with the choices."""

import re

import pytest

from collector.codec.errors import BadInput, HostFault
from collector.host.npus import device_name, device_names
from collector.ops.floor import described_devices
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast

DIE = "ATLAS_800_A3_752T_128G_DIE"


@pytest.mark.parametrize(
    ("soc", "memory_gb", "cube_cores", "name"),
    [
        ("Ascend910B1", 64, 24, "ATLAS_800_A2_376T_64G"),
        ("Ascend910B2", 64, 24, "ATLAS_800_A2_376T_64G"),
        ("Ascend910B2C", 64, None, "ATLAS_800_A2_376T_64G"),
        ("Ascend910B3", 64, 20, "ATLAS_800_A2_313T_64G"),
        ("Ascend910B3", 60.97, None, "ATLAS_800_A2_313T_64G"),  # as torch sees it
        ("Ascend910B4", 32, 20, "ATLAS_800_A2_280T_32G_PCIE"),
        ("Ascend910_9362", 64, 20, "ATLAS_800_A3_560T_128G_DIE"),
        ("Ascend910_9381", 64, 24, DIE),
        ("Ascend910_9382", 64, None, DIE),
        ("Ascend910_9391", 61.27, 24, DIE),
        ("Ascend910_9392", 64, 24, DIE),
        ("Ascend950PR_957b", 112, 28, "ATLAS_350_425T_112G"),
        ("Ascend950PR_957c", 84, None, "ATLAS_350_425T_84G"),
        ("Ascend950PR_958b", 112, 32, "ATLAS_850_486T_112G"),
    ],
)
def test_device_is_named_by_soc_cores_and_memory(soc, memory_gb, cube_cores, name):
    assert device_name(soc, memory_gb, cube_cores) == name
    assert device_names(soc) == (name,)
    assert name in described_devices()


@pytest.mark.parametrize(
    ("soc", "memory_gb", "cube_cores", "choices"),
    [
        ("Ascend910B4-1", 64, 20, ["ATLAS_800_A2_280T_64G", "ATLAS_800_A2_280T_64G_PCIE"]),
        ("Ascend950PR_9589", 128, 32, ["ATLAS_850_486T_128G", "ATLAS_950_486T_128G"]),
        ("Ascend950PR_9579", 128, 28, []),
        ("Ascend950DT_9591", 144, 36, []),
        ("Ascend910_9372", 64, 20, []),
        ("Ascend910_9363", 64, 20, []),
        ("Ascend910_9362", 32, 20, []),
        ("Ascend910B2", 32, None, []),
        ("Ascend910B3", 64, 24, []),
        ("Ascend999", 64, None, []),
    ],
)
def test_ambiguous_device_name_is_refused_with_the_choices(soc, memory_gb, cube_cores, choices):
    cores = (f"{cube_cores} cube cores",) if cube_cores else ()
    named = (soc, f"{memory_gb} GB", *cores, "target", "device")
    with pytest.raises(BadInput, match=naming(*named)) as refused:
        device_name(soc, memory_gb, cube_cores)
    assert re.findall(r"ATLAS_\w+", str(refused.value)) == choices


def test_campaign_target_selects_among_several_names():
    expected = "ATLAS_800_A2_280T_64G_PCIE"
    assert device_name("Ascend910B4-1", 64, 20, expected) == expected
    assert device_name("Ascend910_9372", 64, 20, "A_NEW_ONE") == "A_NEW_ONE"
    with pytest.raises(
        HostFault, match=naming("Ascend910B3", "64 GB", "ATLAS_800_A2_313T_64G", expected)
    ):
        device_name("Ascend910B3", 64, None, expected)


@pytest.mark.parametrize("expected", [None, "ATLAS_800_A2_313T_64G"])
def test_virtual_slice_of_a_device_has_no_name(expected):
    with pytest.raises(HostFault, match=naming("10 cube cores", 20)):
        device_name("Ascend910B3", 64, 10, expected)
