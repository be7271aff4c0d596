"""Which tensors a Triton kernel reads and writes, from its source: what triton-ascend's compiler
finds out, and reports to the profiler.

    layout(kernel, arguments)    "0 3 -> 1 2": positions of the tensors that are read, and written

A pointer that is neither loaded nor stored counts as read, as the compiler counts it.
"""

import ast
import inspect
import textwrap
from functools import cache

_STORES = ("store", "store_tensor_descriptor")
_LOADS = ("load", "load_tensor_descriptor")
_ROUNDS = 3  # assignments in loops reach the statements before them


def layout(kernel, arguments):
    """Return the positions of the tensors among the arguments, by name."""
    import torch

    read, written = _accesses(kernel.fn)
    tensors = [
        (at, name)
        for at, (name, value) in enumerate(arguments.items())
        if isinstance(value, torch.Tensor)
    ]
    inputs = [str(at) for at, name in tensors if name in read or name not in written]
    outputs = [str(at) for at, name in tensors if name in written]
    return " -> ".join((" ".join(inputs), " ".join(outputs)))


@cache
def _accesses(function):
    """Return the parameters that a function loads from, and those that it stores to."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    found = _Accesses(function, [one.arg for one in definition.args.args])
    for _ in range(_ROUNDS):
        found.visit(definition)
    return found.read, found.written


class _Accesses(ast.NodeVisitor):
    """Follows pointers from parameters through assignments to loads and stores."""

    def __init__(self, function, parameters):
        self._function = function
        self._roots = {name: {name} for name in parameters}
        self.read, self.written = set(), set()

    def _of(self, node):
        """Return the parameters that the value of an expression points to."""
        if isinstance(node, ast.Name):
            return self._roots.get(node.id, set())
        if isinstance(node, ast.Call):
            if _called(node) in _LOADS:
                return set()  # a value, and no pointer
            return set().union(*map(self._of, [*node.args, *(one.value for one in node.keywords)]))
        return set().union(*map(self._of, ast.iter_child_nodes(node)))

    def visit_Assign(self, node):
        self.generic_visit(node)
        for target in node.targets:
            for name in (one for one in ast.walk(target) if isinstance(one, ast.Name)):
                self._roots[name.id] = self._roots.get(name.id, set()) | self._of(node.value)

    def visit_AugAssign(self, node):
        self.generic_visit(node)
        if isinstance(node.target, ast.Name):
            of_target = self._roots.get(node.target.id, set())
            self._roots[node.target.id] = of_target | self._of(node.value)

    def visit_Call(self, node):
        self.generic_visit(node)
        name = _called(node)
        pointed = self._of(node.args[0]) if node.args else set()
        if name in _LOADS or name.startswith("atomic_"):
            self.read |= pointed
        if name in _STORES or name.startswith("atomic_"):
            self.written |= pointed
        if isinstance(node.func, ast.Name):
            self._inside(node)

    def _inside(self, node):
        """Add what a function of the same module, which the kernel calls, does with pointers."""
        called = self._function.__globals__.get(node.func.id)
        function = getattr(called, "fn", None)
        if not inspect.isfunction(function) or function is self._function:
            return
        read, written = _accesses(function)
        names = list(inspect.signature(function).parameters)
        given = [*zip(names, node.args, strict=False), *((k.arg, k.value) for k in node.keywords)]
        for name, value in given:
            if name in read:
                self.read |= self._of(value)
            if name in written:
                self.written |= self._of(value)


def _called(node):
    """Return the last name of what a call calls: `load` of `tl.load(...)`."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))
