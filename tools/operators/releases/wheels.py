"""Write the schemas that the releases of torch_npu and vLLM-Ascend have of the declared operators
(`schemas/`): `python -m tools schemas [RELEASE...]`.

The wheels come from the package index that pip is set up with, 250 MB in all, and are read as
files: their libraries contain every schema as text. Operators that vLLM-Ascend registers in Python
are read from its source. Each file names its wheel and the wheel's sha256.
"""

import ast
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from collector.ops.registry import all_ops
from collector.ops.releases import CFunction, launched_by
from collector.ops.spec import library_of
from collector.replay.custom_opp import read_functions
from tools.operators.releases.binding import parse_schema

FOLDER = Path(__file__).parent / "schemas"
# The releases in use, and the oldest and newest; docs/reference/operators.md lists them. Of
# 2.10.0, post4 is that of vLLM-Ascend 0.23.0, post2 of CANN 9.0, and post6 the newest.
_OF_2_10 = tuple(f"2.10.0.post{n}" for n in (2, 4, 6))
RELEASES = (
    *(f"torch_npu=={v}" for v in ("2.7.1", "2.8.0", "2.9.0", *_OF_2_10, "2.13.0", "2.14.0")),
    *(f"vllm_ascend=={v}" for v in ("0.11.0", "0.13.0", "0.18.0", "0.23.0")),
)
DEFINITION = "# definition: "
_OF_A2 = "ascend910b/aic-ascend910b-ops-info.json"
C_FUNCTION = "# c function: "
OWN_OPERATORS = "# torch.ops._C_ascend: "
CALLED = "# calls of torch_npu: "
_TEXT = re.compile(rb"[\x20-\x7e]{8,}")
_SCHEMA = re.compile(r"(?:\w+::)?(\w+)(?:\.\w+)?\([^)]*\S.*\)\s*->\s*\S.*")
# Operators of ATB that C++ registers without a schema: the documentation has their arguments,
# or a list only their names.
_DOCUMENTED = re.compile(r"^torch_npu\.atb\.(\w+)\((.*)\) -> .+$", re.MULTILINE)
_LISTED = re.compile(r"^    '(\w+)',$", re.MULTILINE)
# As sources write them; those of another chip than A2 and A3 are ignored.
_OF_TORCH_NPU = re.compile(
    r"(?:torch_npu|torch_npu\.atb|torch\.ops\.npu|torch\.ops\.atb)\.(_?npu_\w+)"
)
_OTHER_CHIPS = "/_310p/"
_OF_OPP = "/_cann_ops_custom/"  # functions with which CANN compiles kernels
_REGISTERED = re.compile(r'op_name="(\w+)",\s*op_func=(\w+)')


def make(releases: Sequence[str]) -> int:
    """Write the schemas of releases, of all without names."""
    FOLDER.mkdir(exist_ok=True)
    for release in releases or RELEASES:
        with tempfile.TemporaryDirectory() as folder:
            wheel = _download(release, Path(folder))
            path = FOLDER / f"{release.replace('==', '-')}.txt"
            path.write_text("\n".join(_lines(wheel)) + "\n")
            print(path)
    return 0


def called_names(library: str) -> frozenset[str]:
    """Return the last names of the functions of a library that declarations call, and of those that
    divide the work of one among the cores."""
    calls = (call for op in all_ops() for call in (op.call, op.npu.served))
    names = {call.rpartition(".")[2] for call in calls if library_of(call) == library}
    return frozenset(names | {f"{name}_metadata" for name in names})


def schemas_in(data: bytes, names: Iterable[str]) -> set[str]:
    """Return the schemas of operators in a library's bytes."""
    texts = (found.group().decode() for found in _TEXT.finditer(data))
    expected = frozenset(names)
    found = (t for t in texts if (s := _SCHEMA.fullmatch(t)) is not None and s[1] in expected)
    # Compilers keep parts of texts in code: the rest of one is not a schema.
    found = (t for t in found if t.count("(") == t.count(")"))
    return {" ".join(t.split()) for t in found}


def schemas_of_sources(sources: Sequence[str], names: Iterable[str]) -> set[str]:
    """Return the same of a package in Python: functions, and those registered under another
    name."""
    expected = frozenset(names)
    pairs = (pair for source in sources for pair in _REGISTERED.findall(source))
    registered = {function: name for name, function in pairs}
    found = set()
    modules = [ast.parse(source) for source in sources]
    owners = _owners(modules)
    for node in (node for module in modules for node in _with_methods(module, owners)):
        if isinstance(node, ast.FunctionDef):
            name = registered.get(node.name, node.name)
            if name in expected:
                arguments = (*_arguments(node.args), *_others(node))
                found.add(f"{name}({', '.join(arguments)}) -> Any")
    return found


def _owners(modules: Sequence[ast.Module]) -> dict[str, set[str]]:
    """Return the methods that declarations call of each class, which its bases may have."""
    owners: dict[str, set[str]] = {}
    for *_, owner, name in (op.call.split(".") for op in all_ops() if "." in op.call):
        owners.setdefault(owner, set()).add(name)
    classes = [node for module in modules for node in module.body if isinstance(node, ast.ClassDef)]
    derived = [(node.name, ast.unparse(base)) for node in classes for base in node.bases]
    for _ in derived:
        for name, base in derived:
            owners.setdefault(base, set()).update(owners.get(name, ()))
    return owners


def _with_methods(module: ast.Module, owners: Mapping[str, set[str]]) -> Iterator[ast.stmt]:
    """Yield what a module defines, and the methods that declarations call."""
    for node in module.body:
        yield node
        if isinstance(node, ast.ClassDef):
            methods = owners.get(node.name, ())
            yield from (one for one in node.body if getattr(one, "name", "") in methods)


def schemas_of_texts(source: str, names: Iterable[str]) -> set[str]:
    """Return what torch_npu's own pages and lists have about ATB's operators."""
    expected = frozenset(names)
    reported = {name: _as_any(inside) for name, inside in _DOCUMENTED.findall(source)}
    known = {**dict.fromkeys(_LISTED.findall(source), "..."), **reported}
    return {f"{name}({inside}) -> Any" for name, inside in known.items() if name in expected}


def _as_any(arguments: str) -> str:
    """Return arguments as Python writes them; those with a default may be None."""
    pieces = (piece.strip() for piece in arguments.split(","))
    return ", ".join(p if p == "*" else f"Any{'?' if '=' in p else ''} {p}" for p in pieces)


def c_functions(archive: zipfile.ZipFile) -> Iterator[str]:
    """Return the C functions of a custom OPP's headers that have the name of one of CANN's that
    declarations use."""
    ours = {one.name for op in all_ops() for one in launched_by(op.kernel)}
    headers = (n for n in archive.namelist() if "/op_api/include/" in n and n.endswith(".h"))
    read = (archive.read(name).decode(errors="replace") for name in headers)
    found = {one.name: one for text in read for one in read_functions(text) if one.name in ours}
    for name, one in sorted(found.items()):
        yield f"{C_FUNCTION}{name} {one.arguments} {'yes' if one.has_numbers else 'no'}"


def c_functions_of(release: str) -> dict[str, CFunction]:
    """Return the contents of the file of a release about them."""
    lines = (FOLDER / f"{release}.txt").read_text().splitlines()
    reported = (
        line.removeprefix(C_FUNCTION).split() for line in lines if line.startswith(C_FUNCTION)
    )
    return {
        name: CFunction(name, arguments, numbers == "yes") for name, arguments, numbers in reported
    }


def _arguments(args: ast.arguments) -> Iterator[str]:
    """Return them as a schema spells them; Python's annotations have which may be None."""
    plain = args.posonlyargs + args.args
    defaults = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    for arg, default in zip(plain, defaults, strict=True):
        yield _argument(arg, default)
    if args.kwonlyargs:
        yield "*"
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield _argument(arg, default)


def _others(function: ast.FunctionDef) -> Iterator[str]:
    """Return those of `**others` that the function reads."""
    if function.args.kwarg is None:
        return
    read = rf"\b{function.args.kwarg.arg}\.(?:get|pop)\('(\w+)'"
    names = re.findall(read, ast.unparse(function))
    if names and not function.args.kwonlyargs:
        yield "*"
    for name in names:
        yield f"Any? {name}=None"


def _argument(arg: ast.arg, default: ast.expr | None) -> str:
    annotation = ast.unparse(arg.annotation) if arg.annotation else "None"
    optional = "?" if "None" in annotation or "Optional" in annotation else ""
    value = "" if default is None else f"={ast.unparse(default)}"
    return f"Any{optional} {arg.arg}{value}"


def _download(release: str, folder: Path) -> Path:
    command = (sys.executable, "-m", "pip", "download", "-q", "--no-deps")
    subprocess.run([*command, "--only-binary", ":all:", "-d", str(folder), release], check=True)
    return next(folder.glob("*.whl"))


def _lines(wheel: Path) -> Iterator[str]:
    yield f"# {wheel.name}"
    yield f"# sha256 {hashlib.sha256(wheel.read_bytes()).hexdigest()}"
    is_ours = wheel.name.startswith("vllm_ascend")
    names = called_names("vllm-ascend" if is_ours else "torch_npu")
    found: set[str] = set()
    with zipfile.ZipFile(wheel) as archive:
        yield from definitions(archive)
        yield from c_functions(archive)
        if own := sorted(own_operators(archive)):
            yield f"{OWN_OPERATORS}{' '.join(own)}"
        for name in archive.namelist():
            if ".so" in name:
                found |= schemas_in(archive.read(name), names)
        of_python = [n for n in archive.namelist() if n.endswith(".py") and _OTHER_CHIPS not in n]
        if is_ours:
            sources = (archive.read(name).decode("utf-8-sig") for name in of_python)
            called = {call for source in sources for call in calls_of_torch_npu(source)}
            yield f"{CALLED}{' '.join(sorted(called))}"
        read = [archive.read(n).decode("utf-8-sig") for n in archive.namelist() if _is_source(n)]
    if is_ours:
        found |= schemas_of_sources(read, names)
    else:
        found |= _documented_schemas(read, found, names)
    yield from sorted(found)


def definitions_of(release: str) -> dict[str, Any]:
    """Return the definitions that were read from a release's wheel, by kernel type."""
    lines = (FOLDER / f"{release}.txt").read_text().splitlines()
    reported = (line.removeprefix(DEFINITION) for line in lines if line.startswith(DEFINITION))
    return {one["kernel"]: one for one in map(json.loads, reported)}


def definitions(archive: zipfile.ZipFile) -> Iterator[str]:
    """Return the slots of declared kernels on A2 from the custom OPP: names, dtypes, required or
    not."""
    declared = frozenset(op.kernel for op in all_ops() if op.library == "vllm-ascend")
    for name in archive.namelist():
        if not name.endswith(_OF_A2):
            continue
        for kernel, reported in sorted(json.loads(archive.read(name)).items()):
            if kernel in declared:
                sides = {side: _slots(reported, side) for side in ("input", "output")}
                yield f"{DEFINITION}{json.dumps({'kernel': kernel, **sides})}"


def _slots(reported: Mapping[str, Mapping[str, str]], side: str) -> list[tuple[str, str, str]]:
    """Return name, dtypes and whether it is required, of each slot in order."""
    count = sum(name.startswith(side) for name in reported)
    slots = (reported[f"{side}{number}"] for number in range(count))
    return [(slot["name"], slot["dtype"], slot["paramType"]) for slot in slots]


def own_operators(archive: zipfile.ZipFile) -> set[str]:
    """Return all operators of `torch.ops._C_ascend`: vLLM-Ascend's extension contains no other
    schemas."""
    extensions = (n for n in archive.namelist() if n.startswith("vllm_ascend/vllm_ascend_C."))
    texts = (t.group().decode() for n in extensions for t in _TEXT.finditer(archive.read(n)))
    return {found[1] for text in texts if (found := _SCHEMA.fullmatch(text)) is not None}


def calls_of_torch_npu(source: str) -> set[str]:
    """Return the functions of torch_npu and ATB that a module in Python calls or names."""
    reported = (ast.unparse(n) for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Attribute))
    return {found[1] for text in reported if (found := _OF_TORCH_NPU.fullmatch(text)) is not None}


def _is_source(name: str) -> bool:
    """Return sources about operators: all of vLLM-Ascend's, and torch_npu's pages of ATB's."""
    is_of_atb = name.rpartition("/")[2] in ("_atb_ops.py", "_atb_api_docs.py")
    is_ours = name.startswith("vllm_ascend/") and _OF_OPP not in name
    return name.endswith(".py") and (is_ours or is_of_atb)


def _documented_schemas(sources: Iterable[str], found: set[str], names: Iterable[str]) -> set[str]:
    """Return those of operators without a schema as text; their pages precede the list of their
    names."""
    have = {parse_schema(text).name for text in found}
    best: dict[str, str] = {}
    for text in (t for source in sources for t in schemas_of_texts(source, set(names) - have)):
        name = parse_schema(text).name
        if name not in best or "..." in best[name]:
            best[name] = text
    return set(best.values())
