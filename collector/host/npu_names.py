"""How the database calls an NPU: by its chip, its memory and the cube cores that it shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from collector.errors import BadInput, HostFault

_A2 = "ATLAS_800_A2_"
_A3 = "ATLAS_800_A3_"
_KEPT = 0.1  # a driver keeps some memory: of 64 GB torch sees 61


@dataclass(frozen=True, slots=True)
class _Chip:
    """What is known of a chip: of A3's a device is one of two dies. `names` are by GB of memory;
    where a name would be a guess there are several, or none."""

    cube_cores: int
    names: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


# Cores and clocks are those of CANN's platform tables (src/platform/platform_config of its open
# runtime). A name is msmodeling's, and says how fast the cubes are: 376T are 24 at 1,800 MHz (to
# which 910B1 and 939x, at 1,850, are nearest), 313T 20 at 1,800, 280T 20 at 1,500; a name of A3
# has both dies. 9372, 20 at 1,800, would be 626T: no name is its own.
_24_CORES, _A3_24_CORES = {64: (f"{_A2}376T_64G",)}, {64: (f"{_A3}752T_128G_DIE",)}
_CHIPS: Mapping[str, _Chip] = {
    "Ascend910B1": _Chip(24, _24_CORES),
    "Ascend910B2": _Chip(24, _24_CORES),
    "Ascend910B2C": _Chip(24, _24_CORES),
    "Ascend910B3": _Chip(20, {64: (f"{_A2}313T_64G",)}),
    "Ascend910B4": _Chip(20, {32: (f"{_A2}280T_32G_PCIE",)}),
    "Ascend910B4-1": _Chip(20, {64: (f"{_A2}280T_64G", f"{_A2}280T_64G_PCIE")}),
    "Ascend910_9362": _Chip(20, {64: (f"{_A3}560T_128G_DIE",)}),
    "Ascend910_9372": _Chip(20),
    **{f"Ascend910_{number}": _Chip(24, _A3_24_CORES) for number in (9381, 9382, 9391, 9392)},
}


def device_names(
    soc: str, memory_gb: float | None = None, cube_cores: int | None = None
) -> tuple[str, ...]:
    """The names under which the database may know a chip; none for a chip, a memory or a number
    of cores that we do not know."""
    chip = _CHIPS.get(soc)
    if chip is None or cube_cores not in (None, chip.cube_cores):
        return ()
    return tuple(
        name
        for gb, names in chip.names.items()
        if memory_gb is None or abs(memory_gb - gb) <= _KEPT * gb
        for name in names
    )


def slice_of_a_chip(soc: str, cube_cores: int | None) -> str:
    """What is wrong with a device that has fewer cores than its chip; empty where nothing is."""
    chip = _CHIPS.get(soc)
    if chip is None or cube_cores is None or cube_cores >= chip.cube_cores:
        return ""
    return (
        f"this {soc} reports {cube_cores} cube cores, expected {chip.cube_cores}: a slice of "
        "a device, whose durations differ from those of the device; measure on a whole device"
    )


def device_name(
    soc: str, memory_gb: float, cube_cores: int | None = None, wanted: str | None = None
) -> str:
    """The one name of a chip: the wanted one where the chip may have it, else the only one.

    Raises BadInput, with what to write, where it cannot be told, HostFault where it is another's
    or a part of a device.
    """
    if fault := slice_of_a_chip(soc, cube_cores):
        raise HostFault(fault)
    names = device_names(soc, memory_gb, cube_cores)
    cores = f" and {cube_cores} cube cores" if cube_cores else ""
    this = f"{soc} with {memory_gb:g} GB{cores}"
    if wanted is not None:
        if names and wanted not in names:
            raise HostFault(f"expected {wanted}, got {this}, {' or '.join(names)}")
        return wanted
    if len(names) == 1:
        return names[0]
    problem = "has several possible names" if names else "has no known name"
    which = f"one of {', '.join(names)}" if names else "its name in the database"
    raise BadInput(
        f"backend npu: {this} {problem}: set it in the campaign, "
        f"target: {{device: NAME, ...}} with {which}"
    )
