"""Records a kernel that Python launches, in the log and the format of the recording runtime.

Imported by processes on the recording runtime, which may have nothing else of opmeter.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

_FRACTAL_NZ = 29
_FORMATS = {0: "NCHW", 1: "NHWC", 2: "ND", _FRACTAL_NZ: "FRACTAL_NZ", 30: "NCDHW", 47: "NCL"}
_DTYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "bool": "bool",
}


def record(torch: Any, name: str, *arguments: Any) -> None:
    """Write down `CUSTOM name(arguments)`, outputs last. Tensors lie on the fake NPU; lists hold
    tensors or integers; None is an absent tensor."""
    torch.npu.synchronize()  # what was launched before is in a queue, and comes before
    record_named(name, *arguments)


def record_named(name: str, *arguments: Any) -> None:
    """Record the same, where launches are not queued (TASK_QUEUE_ENABLE=0)."""
    with not_of_the_host:
        text = ", ".join(_text(argument) for argument in arguments)
        _runtime().opmeter_fake_cann_record_on(f"CUSTOM {name}({text})".encode(), _stream())


def record_step() -> None:
    """Record `HOST step(0)`: what the host does for a step besides its calls."""
    _runtime().opmeter_fake_cann_record_on(b"HOST step(0)", None)


class _NotOfTheHost:
    """What runs within takes no time of the host in the log: an engine on an NPU does not run it.

    Short, because what enters it does count."""

    def __enter__(self) -> None:
        _runtime().opmeter_fake_cann_pause()

    def __exit__(self, *error: object) -> None:
        _runtime().opmeter_fake_cann_resume()


class _OfTheHost:
    """What runs within, in a part that is not of the host, takes time again."""

    def __enter__(self) -> None:
        _runtime().opmeter_fake_cann_resume()

    def __exit__(self, *error: object) -> None:
        _runtime().opmeter_fake_cann_pause()


not_of_the_host, of_the_host = _NotOfTheHost(), _OfTheHost()


def computed_ns() -> int:
    """Return what this thread computed so far as the host, in a part that is not of the host."""
    read = _runtime().opmeter_fake_cann_thread_ns
    read.restype = ctypes.c_int64
    return int(read())


@cache
def _runtime() -> ctypes.PyDLL:
    return ctypes.PyDLL("libascendcl.so")  # its calls are short, and keep Python's lock


def _stream() -> ctypes.c_void_p:
    """Return the stream on which a kernel is launched now."""
    import torch
    import torch_npu

    return ctypes.c_void_p(torch_npu._C._npu_getCurrentRawStream(torch.npu.current_device()))


def _text(argument: Any) -> str:
    if argument is None:
        return "0"
    if isinstance(argument, str):
        return f'"{argument}"'
    if isinstance(argument, (bool, int)):
        return str(int(argument))
    if isinstance(argument, float):
        return f"f64={argument!r}"
    if isinstance(argument, Sequence):
        if all(isinstance(element, int) for element in argument):
            return f"ints({','.join(map(str, argument))})"
        return "{" + ", ".join(map(_text, argument)) + "}"
    return _tensor(argument)


def _tensor(tensor: Any) -> str:
    import torch_npu

    number = torch_npu.get_npu_format(tensor) if tensor.device.type == "npu" else 2
    name = _FORMATS.get(number, f"FORMAT_{number}")
    dtype = _DTYPES.get(str(tensor.dtype).removeprefix("torch."), "undefined")
    text = f"{dtype}[{_listed(tensor.shape)}]:{name}"
    shape = tuple(tensor.shape)
    if tuple(tensor.stride()) != tuple(prod(shape[at + 1 :]) for at in range(len(shape))):
        text += f"/{_listed(tensor.stride())}"
    if tensor.storage_offset():
        text += f"+{tensor.storage_offset()}"
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    if number == _FRACTAL_NZ:
        text += f"<{_listed(_blocks(tensor))}>"
    elif elements != tensor.numel():
        text += f"<{elements}>"
    return text


def _blocks(tensor: Any) -> tuple[int, ...]:
    """How FRACTAL_NZ keeps (.., R, C): (.., C / c, R / 16, 16, c), c elements being 32 bytes."""
    *outer, rows, columns = tensor.shape
    width = 32 // tensor.element_size()
    return (*outer, -(-columns // width), -(-rows // 16), 16, width)


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
