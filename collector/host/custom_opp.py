"""Whether this environment finds the custom operators of vLLM-Ascend (a custom OPP).

CANN reads ASCEND_CUSTOM_OPP_PATH when the process starts, and the loader LD_LIBRARY_PATH: neither
can be mended from inside, so that a wrong one is answered with the lines to type.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

_OPP = "ASCEND_CUSTOM_OPP_PATH"
_LIBRARIES = "LD_LIBRARY_PATH"
_VENDOR = "_cann_ops_custom/vendors/vllm-ascend"  # inside the vllm_ascend package
_API = "op_api/lib"


def custom_opp_problem(environment: Mapping[str, str]) -> str:
    """What is missing, with the two export lines that mend it; empty where nothing is."""
    folders = [Path(part) for part in environment.get(_OPP, "").split(":") if part.strip()]
    if not folders:
        return f"{_OPP} is not set; {_remedy(None)}"
    held = [folder for folder in folders if folder.is_dir()]
    if not held:
        return f"{_OPP}={environment[_OPP]} is no folder; {_remedy(None)}"
    searched = {_plain(part) for part in environment.get(_LIBRARIES, "").split(":") if part}
    if not any(_plain(folder / _API) in searched for folder in held):
        return f"{held[0] / _API} is not on {_LIBRARIES}; {_remedy(held[0])}"
    return ""


def _remedy(folder: Path | None) -> str:
    place = folder or _installed() or Path("<vllm_ascend>") / _VENDOR
    return (
        f"export {_OPP}={place}:${{{_OPP}}}; export {_LIBRARIES}={place}/{_API}/:${{{_LIBRARIES}}}"
    )


def _installed() -> Path | None:
    """Where an installed vllm_ascend keeps its operators; it is not imported for that."""
    spec = importlib.util.find_spec("vllm_ascend")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    return Path(places[0]) / _VENDOR if places else None


def _plain(path: Path | str) -> str:
    return str(path).rstrip("/")
