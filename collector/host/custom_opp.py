"""The custom operators of vLLM-Ascend (a custom OPP): where they are, and whether they are found.

CANN reads ASCEND_CUSTOM_OPP_PATH when it starts, and the loader LD_LIBRARY_PATH when a process
does. vLLM-Ascend sets the first from inside, before torch_npu starts CANN (`platform.py` of 0.18,
`utils.bootstrap_custom_op_env` of 0.23); a session is a process of ours, so that it is given both.
Where an operator of CANN's name is in the custom OPP too, torch_npu takes that one: so only a
session of a serving stack gets what nobody has set.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

_OPP = "ASCEND_CUSTOM_OPP_PATH"
_LIBRARIES = "LD_LIBRARY_PATH"
_VENDORS = "_cann_ops_custom/vendors"  # inside the vllm_ascend package
_VENDOR = "vllm-ascend"  # of 0.18; `custom_transformer` of 0.23
_API = "op_api/lib"
API_LIBRARY = f"{_API}/libcust_opapi.so"  # below each folder of custom operators


def custom_opp_problem(environment: Mapping[str, str]) -> str:
    """What is missing, with the two export lines that fix it; empty where nothing is."""
    if not environment.get(_OPP, "").replace(":", "").strip():
        return f"{_OPP} is not set; {_remedy(None)}"
    held = custom_opp_folders(environment)
    if not held:
        return f"{_OPP}={environment[_OPP]}: expected a folder; {_remedy(None)}"
    searched = {_plain(part) for part in environment.get(_LIBRARIES, "").split(":") if part}
    if not any(_plain(folder / _API) in searched for folder in held):
        return f"{held[0] / _API} is not on {_LIBRARIES}; {_remedy(held[0])}"
    return ""


def with_custom_opp(environment: Mapping[str, str], vllm: str) -> dict[str, str]:
    """The variables to set for a process that is started with this environment, so that it finds
    the custom operators: those that the environment names, or where a stack serves with `vllm`
    (a version) those of the installed vllm_ascend. Empty where there is nothing to set."""
    held = custom_opp_folders(environment)
    folder = held[0] if held else _installed() if vllm else None
    if folder is None or (environment.get(_OPP) and not held):
        return {}
    added = {} if held else {_OPP: str(folder)}
    library, before = folder / _API, environment.get(_LIBRARIES, "")
    if _plain(library) not in map(_plain, before.split(":")):
        added[_LIBRARIES] = ":".join(filter(None, (str(library), before)))
    return added


def without_custom_opp(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is to find CANN's own operators alone."""
    libraries = {_plain(folder / _API) for folder in custom_opp_folders(environment)}
    kept = {name: text for name, text in environment.items() if name != _OPP}
    if _LIBRARIES in kept:
        parts = kept[_LIBRARIES].split(":")
        kept[_LIBRARIES] = ":".join(part for part in parts if _plain(part) not in libraries)
    return kept


def custom_opp_folders(environment: Mapping[str, str]) -> list[Path]:
    """The folders of custom operators that an environment names, the first that is asked first."""
    folders = (Path(part) for part in environment.get(_OPP, "").split(":") if part.strip())
    return [folder for folder in folders if folder.is_dir()]


def _remedy(folder: Path | None) -> str:
    place = folder or _installed() or Path("<vllm_ascend>") / _VENDORS / _VENDOR
    return (
        f"export {_OPP}={place}:${{{_OPP}}}; export {_LIBRARIES}={place}/{_API}/:${{{_LIBRARIES}}}"
    )


def _installed() -> Path | None:
    """Where an installed vllm_ascend keeps its operators; it is not imported for that. Its folder
    has another name in every other release."""
    spec = importlib.util.find_spec("vllm_ascend")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    vendors = (found for place in places for found in sorted(Path(place, _VENDORS).glob("*")))
    return next((folder for folder in vendors if (folder / _API).is_dir()), None)


def _plain(path: Path | str) -> str:
    return str(path).rstrip("/")
