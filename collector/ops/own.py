"""Operators that users declare in Python files of their own, without a change of this package.

A file is code of its user. It is executed only by a process that was given it: a command with the
file as an argument, and the sessions that measure its operators. Planning in another process,
workers, merges and readers never execute it: what they need is in the rows.

The hash of a file is a column of its cases (`Runtime operator_file`), and so part of their
identity: a changed file makes other cases. Cases are read by position, whether a process has the
file or not.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType, ModuleType
from typing import Any

from collector.codec.canonical import sha256_hex
from collector.codec.errors import BadInput, file_errors
from collector.codec.files import read_small_file
from collector.model.case import Case, normal_kernel_type
from collector.model.vocabulary import OPERATOR_FILE
from collector.ops import registry
from collector.ops.expression import parse_expression
from collector.ops.signature import parse_signature, variable_names
from collector.ops.spec import Call, OpSpec, TensorMaker, build_from_slots
from collector.ranks.collective import is_collective

ENTRY_POINTS = "opmeter.operators"
_MOST_BYTES = 1 << 20
_HASH_DIGITS = 16
_BUNDLED = Path(__file__).parents[1] / "data" / "operators"

Build = Callable[[Case, TensorMaker], Call]


@dataclass(frozen=True)
class Operator:
    """The declaration of an operator in a user's file.

    kernel      its kernel type: on an NPU the profiler's `Type`, elsewhere a name of your choice
    signature   its arguments and outputs: `x T:float[*rows, k], w T[n, k] -> y T[*rows, n]`
    call        the function that is measured, on every device, or its dotted name
    reference   a function of the same arguments whose outputs are right, to compare with
    build       (case, make) -> Call with the arguments of `call`, made once for each case; the
                default makes a random tensor for each argument of the signature
    operations  arithmetic operations of one launch, an expression of the signature's names
    is_pass     `call` is a whole pass of a model: it is timed by the clock, without a profiler,
                with all that it launches and all that the host does between
    examples    small cases for `opmeter ops --check`, such as `"64,512;512 fp32"`; the default is
                one that follows from the signature"""

    kernel: str
    signature: str
    call: Callable[..., Any] | str
    reference: Callable[..., Any] | None = None
    build: Build | None = None
    operations: str = ""
    is_pass: bool = False
    examples: Sequence[str] = ()
    line: int = field(default=0, init=False)  # of its file

    def __post_init__(self) -> None:
        object.__setattr__(self, "line", sys._getframe(2).f_lineno)
        if normal_kernel_type(self.kernel) != self.kernel:
            raise BadInput(f"kernel: expected a kernel type, got {self.kernel!r}")
        if registry.find_operator(self.kernel) is not None or is_collective(self.kernel):
            raise BadInput(f"kernel: {self.kernel} is an operator of opmeter: use another name")
        read = parse_signature(self.signature)
        if read.pools:
            pool = next(iter(read.pools))
            raise BadInput(f"signature: '{pool}': pages of a pool are for operators of opmeter")
        for name, function in (("reference", self.reference), ("build", self.build)):
            if function is not None and not callable(function):
                raise BadInput(f"{name}: expected a function, got {function!r}")
        if not callable(self.call) and not (isinstance(self.call, str) and self.call):
            raise BadInput(f"call: expected a function or its dotted name, got {self.call!r}")
        if isinstance(self.examples, str):
            raise BadInput("examples: expected a list of texts, got one text")
        if self.operations:
            unknown = parse_expression(self.operations).names - variable_names(read)
            if unknown:
                what = f"expected names of the signature, got {min(unknown)!r}"
                raise BadInput(f"operations: {what}")

    def spec(self, file: "OperatorFile") -> OpSpec:
        """Return the declaration as the other operators have it."""
        call, reference = self.call, self.reference
        is_named = isinstance(call, str)
        name = call if isinstance(call, str) else getattr(call, "__qualname__", repr(call))
        return OpSpec(
            self.kernel,
            name if is_named else f"{file.name}: {name}",
            self.signature,
            reference=None if reference is None else partial(_without_torch, reference),
            operations=self.operations,
            build=self.build or build_from_slots,
            launch=_Named(call) if isinstance(call, str) else call,
            file=file.hash,
            is_pass=self.is_pass,
        )


def _without_torch(reference: Callable[..., Any], torch: Any, *args: Any, **kwargs: Any) -> Any:
    return reference(*args, **kwargs)


@dataclass(frozen=True)
class _Named:
    """A function of another module, which is imported when it is first called."""

    name: str

    @cached_property
    def _function(self) -> Callable[..., Any]:
        found: Callable[..., Any] = resolve_name(self.name)
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class OperatorFile:
    """A file with declarations: its path, and its text."""

    path: str
    text: str

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def sha256(self) -> str:
        return sha256_hex(self.text.encode())

    @property
    def hash(self) -> str:
        """Return the digits of its hash that its cases have."""
        return self.sha256[:_HASH_DIGITS]


def read_operator_file(path: Path) -> OperatorFile:
    """Return a file without executing it. Raises BadInput for one that cannot be read."""
    with file_errors(path):
        data = read_small_file(path, _MOST_BYTES)
    try:
        return OperatorFile(str(path), data.decode())
    except UnicodeDecodeError as error:
        raise BadInput("expected Python in UTF-8", path=path) from error


def find_operator_file(name: str, base: Path = Path()) -> OperatorFile:
    """Return a file, one that is bundled, or the module that an installed package registers by this
    name in the entry points `opmeter.operators`, without executing it. `base` is the folder of
    relative paths. Raises BadInput if there is none of these."""
    if (base / name).exists():
        return read_operator_file(base / name)
    bundled = {one.name: one for one in _BUNDLED.glob("*.py")}
    if name in bundled:
        return read_operator_file(bundled[name])
    found = {one.name: one.value for one in entry_points(group=ENTRY_POINTS)}
    if name not in found:
        known = ", ".join(sorted({*bundled, *found}))
        raise BadInput(f"operators: expected a Python file or one of {known}, got {name!r}")
    spec = find_spec(found[name].partition(":")[0])
    if spec is None or not spec.origin:
        raise BadInput(f"operators: {name}: there is no module {found[name]}")
    return read_operator_file(Path(spec.origin))


def load_operator_file(file: OperatorFile) -> tuple[Operator, ...]:
    """Execute a file and return its operators.

    Raises BadInput, with the line of the file, for one that fails or declares none."""
    module = ModuleType(f"opmeter_operators_{file.hash}")
    path = module.__file__ = file.path
    sys.modules[module.__name__] = module  # for what looks up the module of a function
    try:
        exec(compile(file.text, path, "exec"), vars(module))
    except SyntaxError as error:
        raise BadInput(f"expected Python: {error.msg}", path=path, line=error.lineno) from error
    except (Exception, SystemExit) as error:  # any error of the user's code
        raise BadInput(_reason(error), path=path, line=_line_of(error, path)) from error
    found = [one for one in vars(module).values() if isinstance(one, Operator)]
    if not found:
        raise BadInput("expected an Operator(...) with a name, got none", path=path)
    kernels = dict[str, Operator]()
    for one in found:
        if kernels.setdefault(one.kernel, one) is not one:
            what = f"kernel: {one.kernel} is declared twice"
            raise BadInput(what, path=path, line=one.line)
    return tuple(kernels.values())


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, BadInput):
        return text
    if isinstance(error, ModuleNotFoundError):
        return f"{text}: install it, or import it inside of the function that uses it"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _line_of(error: BaseException, path: str) -> int | None:
    """Return the last line of the file that led to an error."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


# The operators that this process has. They are not in the registry, so that what is computed of a
# database does not depend on the files of the process that computes it.

_loaded: Mapping[str, OpSpec] = MappingProxyType({})


def find_operator(kernel_type: str) -> OpSpec | None:
    """Return the declaration of a kernel type in the registry or in a file of this process."""
    return registry.find_operator(kernel_type) or _loaded.get(kernel_type)


def own_operators() -> tuple[OpSpec, ...]:
    """Return the operators of the files of this process."""
    return tuple(_loaded.values())


def declare(operators: Iterable[OpSpec]) -> None:
    """Make these the operators of files that this process has, instead of earlier ones.

    Raises BadInput if two files declare one kernel."""
    global _loaded
    found: dict[str, OpSpec] = {}
    for one in operators:
        other = found.setdefault(one.kernel, one)
        if other is not one:
            raise BadInput(f"operators: two files declare {one.kernel}: {other.call}, {one.call}")
    _loaded = MappingProxyType(found)


def declare_files(files: Iterable[OperatorFile]) -> None:
    """Execute files, and declare their operators instead of earlier ones."""
    declare(one.spec(file) for file in files for one in load_operator_file(file))


def declare_in_session(files: Iterable[OperatorFile], folder: Path) -> None:
    """Write files into a folder of their own for each, and declare their operators."""
    written: list[OperatorFile] = []
    for file in files:
        path = folder / "operators" / file.hash / file.name
        path.parent.mkdir(parents=True)
        path.write_text(file.text, encoding="utf-8", newline="")
        written.append(replace(file, path=str(path)))
    declare_files(written)


def find_unread(cases: Iterable[Case], files: Iterable[OperatorFile]) -> Callable[..., Any]:
    """Return a function that finds declarations in a process that does not execute the files: one
    of a file accepts every case, which its session checks."""
    hashes = {file.hash for file in files}
    own: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        if (file := case.attribute(OPERATOR_FILE)) is not None and file in hashes:
            own.setdefault((case.kernel_type, file), []).append(case)
    found = {kernel: _stand_in(kernel, file, of) for (kernel, file), of in own.items()}
    return lambda kernel_type: registry.find_operator(kernel_type) or found.get(kernel_type)


def _stand_in(kernel_type: str, file: str, cases: Sequence[Case]) -> OpSpec:
    inputs, outputs = (
        ", ".join(f"x{at}?" for at in range(max(map(len, sides))))
        for sides in ([one.inputs or () for one in cases], [one.outputs or () for one in cases])
    )
    return OpSpec(kernel_type, kernel_type, f"{inputs} -> {outputs}", file=file)
