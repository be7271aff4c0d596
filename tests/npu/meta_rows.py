"""Compute the outputs of fixture rows with torch_npu's meta kernels and with the reference on a
cpu: `python -m tests.npu.meta_rows OUT`. Runs in a separate process."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from collector.codec.errors import OpmeterError
from collector.host import imports
from collector.model.case import Case
from collector.ops.registry import all_ops
from collector.ops.spec import Call, OpSpec
from tests.fixtures.op_rows import rows_alone


def main(out: Path) -> None:
    with imports.permanent():
        import torch
        import torch_npu

    roots = {"torch": torch, "torch_npu": torch_npu}
    answers = {
        op.kernel: [_answer(roots, op, row.case) for row in rows_alone(op.kernel)]
        for op in all_ops()
        if op.library == "torch_npu"
    }
    out.write_text(json.dumps(answers))
    os._exit(0)


def _answer(roots: dict[str, Any], op: OpSpec, case: Case) -> dict[str, Any]:
    from collector.replay.calls import resolve
    from collector.replay.tensors import CaseTensors

    torch = roots["torch"]
    try:
        own = op.build(case, CaseTensors("cpu", 7))
        reference = op.run_reference(torch, *own.args, **own.kwargs)
    except (OpmeterError, RuntimeError) as error:
        return {"error": f"the reference: {error}"}
    try:
        call = op.npu_call(case, CaseTensors("cpu", 7))
        call = Call(*_on_meta(torch, call.args), **_on_meta(torch, dict(call.kwargs)))
        outputs = op.npu.run(resolve(op.call, roots), *call.args, **call.kwargs)
    except Exception as error:  # the type of the error differs by kernel
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    return {"error": "", "meta": _shapes(outputs), "reference": _shapes(reference)}


def _on_meta(torch: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, dict):
        return {name: _on_meta(torch, each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_on_meta(torch, each) for each in value)
    return value


def _shapes(outputs: Any) -> list[Any]:
    """Return [shape, dtype] of each output, None for an absent one; lists are flattened."""
    if outputs is None:
        return [None]
    if isinstance(outputs, (list, tuple)):
        return [shape for output in outputs for shape in _shapes(output)]
    return [[list(outputs.shape), str(outputs.dtype).removeprefix("torch.")]]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
