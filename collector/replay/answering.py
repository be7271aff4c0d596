"""Whose function launches an operator on this host, and whose kernel answers.

Two libraries may have a kernel under one name: CANN, and the custom OPP of vLLM-Ascend, into which
torch_npu looks first. A stack that has vLLM-Ascend serves with the latter, by functions of its own;
so does a session, unless its case asks for CANN's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from collector.case import Case
from collector.measurement import Library
from collector.ops.spec import Need, OpSpec
from collector.replay.foreign_functions import foreign_function, is_in_custom_opp
from collector.vocabulary import LIBRARY


@dataclass(frozen=True, slots=True)
class Answering:
    """The function to call, as a declaration names it, and whose kernel that launches. `refused`
    is why it may not be called; empty where it may."""

    call: str
    library: Library
    refused: str = ""


def who_answers(op: OpSpec, case: Case, environment: Mapping[str, str]) -> Answering:
    """What launches a case in a session of this environment."""
    if op.library == Library.VLLM_ASCEND:
        is_triton = Need.TRITON in op.npu.needs
        return Answering(op.call, Library.TRITON if is_triton else Library.VLLM_ASCEND)
    is_custom = is_in_custom_opp(op.kernel, environment)
    if is_custom and op.npu.served:
        found = Answering(op.npu.served, Library.VLLM_ASCEND)
    elif is_custom:
        refused = foreign_function(op.kernel, environment)
        found = Answering(op.call, Library.VLLM_ASCEND, refused)
    else:
        found = Answering(op.call, Library.ATB if Need.ATB in op.npu.needs else Library.CANN)
    asked = case.attribute(LIBRARY)
    if asked is None or asked == found.library:
        return found
    return Answering(found.call, found.library, _refusal(op.kernel, asked, found.library))


def _refusal(kernel: str, asked: str, found: Library) -> str:
    if found is Library.VLLM_ASCEND:
        return f"{kernel}: expected the kernel of {asked}, got that of vLLM-Ascend's custom OPP"
    return (
        f"{kernel}: expected the kernel of {asked}, but no custom OPP has it: install a "
        "vllm-ascend that has it, or request cann's"
    )
