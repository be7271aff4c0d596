"""The shapes, dtypes and formats that msprof prints of a recorded call: those of its kernel.

What aclnn is called with is not what its kernel is: tables of the host become tensors, a weight
that is a transposed view is the tensor as it lies, what is updated is an output too. The operator
of the kernel declares its arguments, where each of its calls has them, and what becomes of them
(`collector/ops/launching.py`). Of another call the tensors are the slots, outputs last. msprof
prints N/A for what is unknown.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from math import prod

from collector.engine.calls import DTYPES, Recorded, RecordedTensor, parse_tensor
from collector.engine.kernels import operator_of
from collector.engine.views import Shape, copied, dense_steps
from collector.model.vocabulary import is_plain_format
from collector.ops.launching import As, Positions
from collector.ops.signature import Tensor, parse_signature
from collector.ops.spec import OpSpec

_NIBBLES = 64  # in a line of a block of INT4, however torch has them packed
_SPELLINGS = frozenset(DTYPES.values())
# Calls of kernels that no operator declares: how many arguments and outputs are shown, as they are
# seen.
_UNDECLARED = dict.fromkeys(("aclnnDispatchFFNCombine", "aclnnDispatchFFNCombineBF16"), (7, 2))


@dataclass(frozen=True, slots=True)
class _Cell:
    """The three cells of a slot. A private format shows how the tensor is stored in
    memory, a plain one how it is seen; a tensor of no elements shows no shape."""

    shape: Shape = ()
    dtype: str = ""
    format: str = ""

    @classmethod
    def of(cls, tensor: RecordedTensor, how: As | str = "") -> "_Cell":
        return cls(_shape(tensor, how), _dtype(tensor, how), tensor.format)

    @property
    def shape_text(self) -> str:
        return "" if 0 in self.shape else ",".join(map(str, self.shape))


_Side = Sequence[_Cell] | None


def cells_of(call: Recorded) -> dict[str, str]:
    """The cells of an op_summary's row, by their columns."""
    inputs, outputs = _sides(call)
    return _texts("Input", inputs) | _texts("Output", outputs)


def cells_in_order(call: Recorded, inputs: int, how: As | str = "") -> dict[str, str]:
    """The cells of a call whose first arguments are the slots, and whose others are the outputs."""
    slots = [[*_passed(text, how)] for text in call.arguments]
    read, written = (chain.from_iterable(side) for side in (slots[:inputs], slots[inputs:]))
    return _texts("Input", [*read]) | _texts("Output", [*written])


def argument_of(call: Recorded, name: str) -> str:
    """The text of an argument, an output or a setting of a call that an operator declares, by its
    name; 0 if it is absent."""
    op = operator_of(call)
    if op is None:
        raise ValueError(f"{call.name}: expected a declared operator")
    return _Arguments(call, op, _positions(call, op)).text(name)


def _positions(call: Recorded, op: OpSpec | None) -> Positions:
    found = op.launched_by.get(call.name, Positions()) if op else Positions()
    return found(call.arguments) if callable(found) else found


def _sides(call: Recorded) -> tuple[_Side, _Side]:
    if call.name == "aclnnInplaceCopy":
        return _copied(call)
    if count := _UNDECLARED.get(call.name):
        texts = call.arguments[: count[0]], call.arguments[-count[1] :]
        inputs, outputs = ([c for text in one for c in _passed(text, As.VIEWED)] for one in texts)
        return inputs, outputs
    op = operator_of(call)
    positions = _positions(call, op)
    if op is None or positions.is_in_order:
        read, written = _in_order(call, op)
    else:
        read, written = _Arguments(call, op, positions).sides()
    return (
        None if "inputs" in positions.unknown else read,
        None if "outputs" in positions.unknown else written,
    )


def _in_order(call: Recorded, op: OpSpec | None) -> tuple[_Side, _Side]:
    """The tensors of a call as slots. Of a call of CANN's own graphs and of ATB it is recorded
    which are outputs; a call of a Triton kernel ends with those that it reads and writes, as in
    `"0 1 -> 2"`, of which msprof shows five at most; another function returns its outputs, so that
    the call does not hold them."""
    if call.outputs_from is not None:
        tensors = [_Cell.of(tensor) for tensor in call.tensors]
        count = len(call.outputs)
        return tensors[: len(tensors) - count], tensors[len(tensors) - count :]
    if call.kind == "CUSTOM":
        last = call.arguments[-1].strip('"') if call.arguments else ""
        if not call.name.startswith("triton.") or " -> " not in last:
            return None, None
        read, written = (
            [cell for at in side.split() for cell in _passed(call.arguments[int(at)])]
            for side in last.split(" -> ")
        )
        return read, written
    names, outputs, shown = [""], [""], dict[str, As | str]()
    if op is not None:
        (variant, *_), shown = parse_signature(op.signature).variants, {**op.shown}
        names, outputs = ([one.name for one in side] for side in (variant.inputs, variant.outputs))
    is_updated, count = call.name.startswith("aclnnInplace"), len(call.tensors)
    end = count if is_updated else count - min(len(outputs), max(count - 1, 0))
    slots = chain(names[:end], repeat(names[-1], end - len(names)), outputs)
    named = zip(call.tensors, slots, strict=False)
    cells = [_Cell.of(tensor, shown.get(name, "")) for tensor, name in named]
    return cells[:end], cells[:1] if is_updated else cells[end:]


class _Arguments:
    """The arguments and outputs of a call by their names in a signature."""

    def __init__(self, call: Recorded, op: OpSpec, positions: Positions) -> None:
        self._texts, self._shown, self._empty = call.arguments, op.shown, positions.empty
        self._settings = dict(positions.settings)
        variants = parse_signature(op.signature).variants
        inputs, outputs = variants[0].inputs, variants[0].outputs
        replayed = (at for one in variants for at, x in enumerate(one.inputs) if not x.is_refused)
        count = max(replayed) + 1 if positions.slots is None else positions.slots
        first = -len(outputs) if positions.outputs is None else positions.outputs
        written = first if isinstance(first, tuple) else range(first, first + len(outputs))
        self._inputs = [
            (one, None if one.name in positions.absent else positions.at.get(one.name, at))
            for at, one in enumerate(inputs[:count])
        ]
        self._outputs = [*zip(outputs, written, strict=False)]

    def sides(self) -> tuple[_Side, _Side]:
        inputs = [cell for one, at in self._inputs for cell in self._cells(one, at)]
        outputs = [
            replace(cell, shape=()) if one.name in self._empty else cell
            for one, at in self._outputs
            for cell in self._cells(one, at)
        ]
        return inputs, outputs

    def text(self, name: str) -> str:
        """The text of an argument, an output or a setting."""
        places = {one.name: at for one, at in (*self._outputs, *self._inputs)}
        return self._text((places | self._settings)[name])

    def _cells(self, one: Tensor, at: int | None) -> Iterator[_Cell]:
        text, how = self._text(at), self._shown.get(one.name, "")
        if how and not isinstance(how, As) and how not in _SPELLINGS:
            how = self._dtype(lambda other: other.name == how)
        if how == As.LISTS:
            for each in self._texts[at : self._outputs[0][1]]:
                yield from _passed(each) if _tensors(each) else [_Cell((), "FLOAT", "ND")]
        elif how == As.ONE_NUMBER:
            yield _Cell((1,), "FLOAT" if "floating" in one.dtypes else "INT64", "ND")
        elif how == As.COUNT and (tensors := _tensors(text)):  # CANN has one dimension for a scalar
            count = len(tensors) if text.startswith("{") else max(1, len(tensors[0].shape))
            yield _Cell((count,), "INT64", "ND")
        elif "=" in text or (_is_number(one, how) and not (_tensors(text) or "ints(" in text)):
            is_like = one.letter.__eq__ if one.letter else lambda letter: True
            dtype = how if how in _SPELLINGS else self._dtype(lambda other: is_like(other.letter))
            yield _Cell((), dtype, "ND")
        elif how != As.LEFT_OUT or _tensors(text):
            yield from _passed(text, how)

    def _text(self, at: int | None) -> str:
        if at is None or not -len(self._texts) <= at < len(self._texts):
            return "0"
        return self._texts[at]

    def _dtype(self, is_like: Callable[[Tensor], bool]) -> str:
        """The dtype of the first of such arguments and outputs that is a tensor."""
        places = (at for one, at in (*self._inputs, *self._outputs) if is_like(one))
        return next((x.dtype for at in places for x in _tensors(self._text(at))), "")


def _is_number(one: Tensor, how: As | str) -> bool:
    """Whether an argument that is no tensor is a number, even if the call leaves its default."""
    is_one = one.is_number or one.dims == ()
    return is_one and (how in _SPELLINGS or not (how or one.is_optional))


def _passed(text: str, how: As | str = "") -> Iterator[_Cell]:
    """The slots that an argument is: its tensors, or a list of the host as one. An absent tensor is
    empty."""
    tensors = _tensors(text)
    if text.startswith("ints("):
        *listed, last = text[len("ints(") : -1].split(",")
        count = len(listed) + (int(last) if last.startswith("+") else bool(last))
        yield _Cell((count,), how if how in _SPELLINGS else "INT64", "ND") if count else _Cell()
        return
    if text.startswith("{"):  # in a list of indices one of no elements means none
        tensors = [tensor for tensor in tensors if tensor.storage != (0,)]
    yield from (_Cell.of(tensor, how) for tensor in tensors) if tensors else [_Cell()]


def _shape(tensor: RecordedTensor, how: As | str) -> Shape:
    shape, is_plain = tensor.shape, is_plain_format(tensor.format)
    match how:
        case As.FLAT:
            return (prod(shape),)
        case As.ROWS | As.STORED_ROWS if len(shape) > 2 and tensor.is_dense:
            return prod(shape[:-1]), shape[-1]
        case As.MATRICES:
            is_turned = not tensor.is_dense and tensor.strides[-2] < tensor.strides[-1]
            return (*shape[:-2], shape[-1], shape[-2]) if is_turned else shape
        case As.STORED | As.STORED_ROWS | As.INT4 | As.UINT64:
            stored = _as_it_lies(tensor)
            is_packed = how == As.INT4 and tensor.dtype == "INT32"
            return (*stored[:-1], 8 * stored[-1] if is_plain else _NIBBLES) if is_packed else stored
    return shape if is_plain or how == As.VIEWED else tensor.storage


def _dtype(tensor: RecordedTensor, how: As | str) -> str:
    if how in _SPELLINGS:
        return how
    is_packed = (how, tensor.dtype) in ((As.INT4, "INT32"), (As.UINT64, "INT64"))
    return how.name if isinstance(how, As) and is_packed else tensor.dtype


def _as_it_lies(tensor: RecordedTensor) -> Shape:
    if tensor.format == "FRACTAL_NZ":
        return tensor.storage
    order = sorted(range(len(tensor.shape)), key=lambda i: -tensor.strides[i])
    return tensor.shape if tensor.is_dense else tuple(tensor.shape[i] for i in order)


def _copied(call: Recorded) -> tuple[_Side, _Side]:
    """The slots of a copy: Cast, TensorMove, or the one kernel that makes a view dense, by the
    view that it reads, and ViewCopy by the one that it writes.

    Of the other views it is unknown what their kernels are given."""
    target, source = call.tensors[:2]
    read, written = _Cell.of(source), _Cell.of(target)
    if source.is_dense and copied(target, source) == "ViewCopy":
        memory = _Cell((prod(target.storage),), target.dtype, "ND")
        sizes = _Cell((max(1, len(target.shape)),), "INT64", "ND")
        view = (sizes, sizes, _Cell((1,), "INT64", "ND"))
        return (memory, *view, read, *view), (memory,)
    if source.is_dense:
        return (read,), (written,)
    steps = dense_steps(source)
    is_same = (target.dtype, target.shape) == (source.dtype, source.shape)
    if not is_same or not target.is_dense or len(steps) != 1 or not steps[0].after:
        return None, (written,)
    (step,) = steps
    if step.kernel == "BroadcastTo" and source.dtype == "BOOL":  # repeated as INT32
        return None, (written,)
    lists = 2 if step.kernel == "Slice" else 1
    if step.kernel == "Slice" and (whole := _whole(source)):
        cut_out = _Cell(whole, source.dtype, "ND")
        return (cut_out, *repeat(_Cell((len(whole),), "INT64", "ND"), lists)), (written,)
    numbers = repeat(_Cell((len(step.after),), "INT64", "ND"), lists)
    return (replace(read, shape=step.before), *numbers), (replace(written, shape=step.after),)


def _whole(view: RecordedTensor) -> Shape:
    """The dense tensor that a view is cut out of; empty where its strides do not divide each
    other."""
    found, outer = list[int](), prod(view.storage)
    for stride, size in zip(view.strides, view.shape, strict=True):
        if stride and outer % stride == 0 and outer // stride >= size:
            found.append(outer // stride)
            outer = stride
        elif size == 1:
            found.append(1)
        else:
            return ()
    return tuple(found) if outer == 1 else ()


def _tensors(argument: str) -> list[RecordedTensor]:
    texts = argument[1:-1].split(", ") if argument.startswith("{") else [argument]
    return [tensor for tensor in map(parse_tensor, texts) if tensor is not None]


def _texts(name: str, side: _Side) -> dict[str, str]:
    if side is None:
        return {}
    return {
        f"{name} Shapes": f'"{";".join(cell.shape_text for cell in side)}"',
        f"{name} Data Types": ";".join(cell.dtype for cell in side),
        f"{name} Formats": ";".join(cell.format for cell in side),
    }
