"""The assembly of the stubs: a label for each function that is not called for its result, one short
entry a kernel. Everything that does something is written in C, in runtime/."""

import re
from collections.abc import Iterable, Iterator

from collector.recording.symbols import Undefined

_ATB_OPERATION = re.compile(r"_ZN3atb15CreateOperationINS_5infer\d+(\w+?Param)E")
_ATB_CONTEXT = "_ZN3atb13CreateContext"

# Nothing that is linked must stay open, so that a mistake shows when the library is built.
_END = '  .section .note.GNU-stack, "", @progbits\n'


def assembly(undefined: Undefined, written: Iterable[str]) -> str:
    """The text of the stubs; `written` are the symbols that the C parts define."""
    functions = sorted(undefined.functions - set(written))
    return "\n".join((*_plain(functions), *_kernels(sorted(undefined.kernels)), _END))


def _plain(functions: Iterable[str]) -> Iterator[str]:
    """Functions that say 0, and those of ATB that make an object."""
    zero = []
    yield "  .text"
    for name in functions:
        operation = _ATB_OPERATION.match(name)
        if operation:
            text = f'.section .rodata\n1: .string "{operation[1]}"\n  .text'
            yield f"{text}\n{_label(name)}\n  lea 1b(%rip), %rdx\n  jmp fake_atb_operation"
        elif name.startswith(_ATB_CONTEXT):
            yield f"{_label(name)}\n  jmp fake_atb_context"
        else:
            zero.append(_label(name))
    yield from zero
    yield "  xor %eax, %eax\n  ret"


def _kernels(names: Iterable[str]) -> Iterator[str]:
    """Both steps of a kernel: the name and all registers to the recorder, the executor to it."""
    for name in names:
        yield f'.section .rodata\n1: .string "{name}"\n  .text'
        yield _label(name + "GetMaxWorkspaceSize")  # the same, of a graph: nothing is launched
        yield f"{_label(name + 'GetWorkspaceSize')}\n  lea 1b(%rip), %rax\n  jmp fake_aclnn_entry"
        launch = "fake_atb_launch" if name.startswith("Atb") else "fake_aclnn_launch"
        yield f"{_label(name)}\n  mov %rdx, %rdi\n  mov %rcx, %rsi\n  jmp {launch}"


def _label(name: str) -> str:
    return f"  .globl {name}\n  .type {name}, @function\n{name}:"
