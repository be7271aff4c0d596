"""Whose a function is that launches a kernel, and whose kernel a case asks for."""

from collector.case import Case
from collector.measurement import Library
from collector.vocabulary import LIBRARY


def library_of(call: str) -> str:
    """What holds a function: torch, torch_npu or vllm-ascend."""
    if call.startswith(("torch.ops._C_ascend.", "torch.ops.vllm.", "vllm_ascend.")):
        return "vllm-ascend"
    is_npu = call.startswith(("torch_npu.", "torch.ops.npu.", "torch.ops.atb."))
    return "torch_npu" if is_npu else "torch"


def library_complaint(case: Case, backend: str, call: str, served: str) -> str:
    """Why nobody has the kernel of the library that a case asks for; empty where it asks for none,
    or somebody has it."""
    asked = case.attribute(LIBRARY)
    if asked is None:
        return ""
    if backend != "npu":
        return f"kernels of {asked} are asked for; {backend} has no such library"
    known = _with_a_kernel(call, served)
    if asked in known:
        return ""
    return f"a kernel of {' or '.join(sorted(known))} is wanted, not one of {asked}"


def _with_a_kernel(call: str, served: str) -> frozenset[str]:
    """Whose kernels of a type there are: CANN's, vLLM-Ascend's or those of both. `call` is the
    function of one of them, `served` vLLM-Ascend's beside CANN's, where it has one."""
    of_vllm_ascend = library_of(call) == Library.VLLM_ASCEND
    own = {Library.VLLM_ASCEND} if of_vllm_ascend or served else set()
    return frozenset(own if of_vllm_ascend else {Library.CANN, *own})
