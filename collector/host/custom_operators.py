"""The custom operators of vLLM-Ascend (a custom OPP): where they are, and whether they are found.

CANN reads ASCEND_CUSTOM_OPP_PATH when it starts, and the loader reads LD_LIBRARY_PATH when a
process starts. vLLM-Ascend sets the first from inside, before torch_npu starts CANN
(`platform.py` of 0.18, `utils.bootstrap_custom_op_env` of 0.23); a session is started by this
package, which sets both. If the custom OPP has an operator of the same name as CANN, torch_npu
uses the custom one: so unset variables are set only for sessions of a serving stack."""

import importlib.metadata
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
    """Return what is missing, with the two export lines that fix it; empty if nothing is."""
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
    """Return the variables to set for a process with this environment, so that it finds the custom
    operators: those that the environment names or, if a stack serves with `vllm` (a version), those
    of the installed vllm_ascend. Empty if no variable has to be set."""
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
    """Return the environment of a process that must find only CANN's own operators."""
    libraries = {_plain(folder / _API) for folder in custom_opp_folders(environment)}
    kept = {name: text for name, text in environment.items() if name != _OPP}
    if _LIBRARIES in kept:
        parts = kept[_LIBRARIES].split(":")
        kept[_LIBRARIES] = ":".join(part for part in parts if _plain(part) not in libraries)
    return kept


def custom_opp_folders(environment: Mapping[str, str]) -> list[Path]:
    """Return the folders of custom operators that an environment names, in search order."""
    folders = (Path(part) for part in environment.get(_OPP, "").split(":") if part.strip())
    return [folder for folder in folders if folder.is_dir()]


def _remedy(folder: Path | None) -> str:
    place = folder or _installed() or Path("<vllm_ascend>") / _VENDORS / _VENDOR
    return (
        f"export {_OPP}={place}:${{{_OPP}}}; export {_LIBRARIES}={place}/{_API}/:${{{_LIBRARIES}}}"
    )


def _installed() -> Path | None:
    """Return the folder of operators in an installed vllm_ascend, without importing it. The name
    of the folder differs between releases."""
    vendors = in_vllm_ascend(f"{_VENDORS}/*")
    return next((folder for folder in vendors if (folder / _API).is_dir()), None)


def in_vllm_ascend(pattern: str) -> list[Path]:
    """Return the paths in an installed vllm_ascend, by name; none if it is not installed."""
    spec = importlib.util.find_spec("vllm_ascend")
    places = (spec.submodule_search_locations or ()) if spec is not None else ()
    return [found for place in places for found in sorted(Path(place).glob(pattern))]


def _plain(path: Path | str) -> str:
    return str(path).rstrip("/")
