"""The assembly of the stubs: a label for each function that is not called for its result, one short
entry a kernel. Everything that does something is written in C, in runtime/."""

import platform
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from collector.engine.symbols import Undefined

_ATB_OPERATION = re.compile(r"_ZN3atb15CreateOperationINS_5infer\d+(\w+?Param)E")
_ATB_CONTEXT = "_ZN3atb13CreateContext"

# Nothing that is linked must stay open, so that a mistake shows when the library is built.
_END = '  .section .note.GNU-stack, "", @progbits\n'


@dataclass(frozen=True, slots=True)
class _Instructions:
    """Of a machine: to return 0, to put the address of the label 1 before into the register of the
    name of an operation or of a kernel, to jump, and to make the last two of four arguments the
    first ones."""

    zero: str
    operation: str
    kernel: str
    jump: str
    shift: str


_MACHINES = {
    "x86_64": _Instructions(
        zero="  xor %eax, %eax\n  ret",
        operation="  lea 1b(%rip), %rdx",
        kernel="  lea 1b(%rip), %rax",
        jump="  jmp",
        shift="  mov %rdx, %rdi\n  mov %rcx, %rsi",
    ),
    "aarch64": _Instructions(
        zero="  mov w0, #0\n  ret",
        operation="  adrp x2, 1b\n  add x2, x2, :lo12:1b",
        kernel="  adrp x9, 1b\n  add x9, x9, :lo12:1b",
        jump="  b",
        shift="  mov x0, x2\n  mov x1, x3",
    ),
}


def assembly(undefined: Undefined, written: Iterable[str], machine: str = "") -> str:
    """The text of the stubs; `written` are the symbols that the C parts define, `machine` is this
    one or another."""
    functions = sorted(undefined.functions - set(written))
    of = _MACHINES[machine or platform.machine()]
    return "\n".join((*_plain(functions, of), *_kernels(sorted(undefined.kernels), of), _END))


def _plain(functions: Iterable[str], of: _Instructions) -> Iterator[str]:
    """Functions that say 0, and those of ATB that make an object."""
    zero = []
    yield "  .text"
    for name in functions:
        operation = _ATB_OPERATION.match(name)
        if operation:
            text = f'.section .rodata\n1: .string "{operation[1]}"\n  .text'
            yield f"{text}\n{_label(name)}\n{of.operation}\n{of.jump} fake_atb_operation"
        elif name.startswith(_ATB_CONTEXT):
            yield f"{_label(name)}\n{of.jump} fake_atb_context"
        else:
            zero.append(_label(name))
    yield from zero
    yield of.zero


def _kernels(names: Iterable[str], of: _Instructions) -> Iterator[str]:
    """Both steps of a kernel: the name and all registers to the recorder, the executor to it."""
    for name in names:
        yield f'.section .rodata\n1: .string "{name}"\n  .text'
        yield _label(name + "GetMaxWorkspaceSize")  # the same, of a graph: nothing is launched
        yield f"{_label(name + 'GetWorkspaceSize')}\n{of.kernel}\n{of.jump} fake_aclnn_entry"
        launch = "fake_atb_launch" if name.startswith("Atb") else "fake_aclnn_launch"
        yield f"{_label(name)}\n{of.shift}\n{of.jump} {launch}"


def _label(name: str) -> str:
    return f"  .globl {name}\n  .type {name}, @function\n{name}:"
