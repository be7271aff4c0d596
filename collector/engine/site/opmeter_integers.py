"""Computes small integer tensors on the recording runtime.

Host code of an engine reads integers from the device, such as the rows of each expert, and makes
tensors of that size. Device memory is host memory there, so each operator of small integers is
computed in place, in addition to its launch; also in compiled code, and in a captured graph when it
is captured. What chooses among floats, such as routers of experts, chooses all of them evenly.
"""

import ctypes
import sys
from random import Random

import torch
from opmeter_launches import not_of_the_host, of_the_host
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_MOST = 1 << 20  # elements
_NO_TOKEN = -1  # of an engine: PLACEHOLDER_TOKEN_ID
_accepted, _chance = 1.0, Random(0)
_enabled = []  # torch's stack of modes does not keep a mode that it disables for a while
_KINDS = (torch.int32, torch.int64, torch.bool)


# Operators that choose among floats, which are not computed: routers and samplers.
_CHOOSING = tuple(
    f"aten::{name}" for name in ("topk", "sort", "argsort", "argmax", "argmin", "max")
)


# Operators that a mask may index.
_INDEXING = tuple(f"aten::{name}" for name in ("index", "index_put", "index_put_"))


class _NotComputed(Exception):
    """An operand is no small integer tensor."""


def enable():
    """Compute integers from now on, in this thread."""
    mode = _Integers()
    mode.__enter__()
    _enabled.append(mode)


def _on_host(value):
    """Return the same memory as a tensor of the CPU."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
        return value
    if value.device.type != "npu" or value.dtype not in _KINDS or value.numel() > _MOST:
        raise _NotComputed
    storage = value.untyped_storage()
    if not storage.nbytes():
        return torch.empty(value.shape, dtype=value.dtype)
    memory = (ctypes.c_byte * storage.nbytes()).from_address(storage.data_ptr())
    whole = torch.frombuffer(memory, dtype=value.dtype)
    return whole.as_strided(value.shape, value.stride(), value.storage_offset())


def sum_of_equal_ranks(tensor, ranks, rank):
    """Set a tensor of integers to its sum over ranks that hold what this rank holds.

    Where a row has a place for each rank, and this rank set its own one alone, the others set
    theirs; what follows these places, and other rows, are summed."""
    try:
        held = _on_host(tensor)
    except _NotComputed:
        return
    places = held[..., :ranks]
    if (
        held.ndim
        and places.shape[-1] == ranks
        and places.count_nonzero() == places[..., rank].count_nonzero()
    ):
        places.copy_(places[..., rank : rank + 1].clone().expand_as(places))
        held = held[..., ranks:]
    held.mul_(ranks)


def begin_drafts(accepted):
    """Accept this share of the drafted tokens from now on, at random, alike each time."""
    global _accepted, _chance
    _accepted, _chance = accepted, Random(0)


def accept_drafts(tokens, drafted):
    """Set the result of a rejection sampler. `drafted` has the sums of the drafted tokens of all
    requests so far; without it, each has as many as there is room for.

    Each drafted token is accepted with equal probability, if those before it are. The rest of a row
    is the engine's mark of a token that there is not."""
    rows = _on_host(tokens)
    most = rows.shape[1] - 1
    ends = [most * (at + 1) for at in range(len(rows))] if drafted is None else _on_host(drafted)
    begin = 0
    for row, end in zip(rows, map(int, ends), strict=True):
        count = 0
        while count < end - begin and (_accepted == 1 or _chance.random() < _accepted):
            count += 1
        row[: count + 1], row[count + 1 :] = 0, _NO_TOKEN
        begin = end


def _spread_evenly(outputs, experts):
    for tensor in outputs:
        if tensor.dtype in _KINDS:
            chosen = _on_host(tensor)
            chosen.copy_((torch.arange(chosen.numel()) % experts).view(chosen.shape))


def _compute(func, args, kwargs, out):
    name = func._schema.name
    if "moe_gating_top_k" in name or (name in _CHOOSING and args[0].is_floating_point()):
        _spread_evenly(out if isinstance(out, tuple) else (out,), args[0].shape[-1])
        return
    if func.namespace != "aten" or not isinstance(out, torch.Tensor) or out.device.type != "npu":
        return
    first = args[0] if args and isinstance(args[0], torch.Tensor) else None
    is_same = (
        first is not None
        and first.device == out.device
        and first.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
    )
    if is_same and not func._schema.is_mutable:
        return  # a view
    if out.dtype not in _KINDS:
        return
    given, named = tree_map(_on_host, list(args)), tree_map(_on_host, dict(kwargs))
    named.pop("pin_memory", None)
    try:
        found = func(*given, **named)
    except (RuntimeError, NotImplementedError):  # an operator that the CPU has for floats alone
        given, named = tree_map(_as_float, given), tree_map(_as_float, named)
        found = func(*given, **named)
    if not func._schema.is_mutable:
        _on_host(out).copy_(found)


def _is_mask(index):
    return index is not None and index.dtype is torch.bool and index.device.type == "npu"


def _places(indices):
    """Yield indices, masks of the device as the places that they choose, as torch_npu expands them.

    Its own expansion has as many places as the mask has elements, since their number is not read
    here."""
    for index in indices:
        if _is_mask(index):
            yield from index.nonzero().unbind(1)
        else:
            yield index


def _as_float(value):
    return value.double() if isinstance(value, torch.Tensor) else value


class _Integers(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self):
        super().__init__()
        self._reported = set()

    @classmethod
    def ignore_compile_internals(cls):
        """Let code be compiled, and see the operators of compiled code when it runs."""
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with not_of_the_host:
            return self._dispatched(func, args, kwargs)

    def _dispatched(self, func, args, kwargs):
        kwargs = dict(kwargs or {})
        if isinstance(func, HigherOrderOperator):  # of compiled code: it calls another operator
            with of_the_host, self:
                return func.py_kernels[DispatchKey.CompositeExplicitAutograd](*args, **kwargs)
        name = func._schema.name
        if func.namespace == "vllm":  # implemented in Python, whose own calls are computed
            with of_the_host, self:
                return func._op_dk(DispatchKey.PrivateUse1, *args, **kwargs)
        if name == "aten::repeat_interleave" and kwargs.get("output_size") is None:
            repeats = args[1] if len(args) > 1 else args[0]
            if isinstance(repeats, torch.Tensor) and repeats.device.type == "npu":
                kwargs["output_size"] = int(_on_host(repeats).sum())
        if name in _INDEXING and any(map(_is_mask, args[1])):
            with self:
                args = (args[0], list(_places(args[1])), *args[2:])
        with of_the_host:
            out = func(*args, **kwargs)
        try:
            if name == "aten::nonzero" and out.device.type == "npu":
                return func(_on_host(args[0])).to(out.device)  # its size is read by the operator
            _compute(func, args, kwargs, out)
        except _NotComputed:
            pass
        except Exception as error:  # one operator is not computed; the pass may not depend on it
            if func not in self._reported:
                self._reported.add(func)
                sys.stderr.write(f"integers of {func} are not computed: {error}\n")
        return out
