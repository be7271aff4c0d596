"""What prompt and incremental attention share: both are fused attention of inference with other
slots, so that they are read, built and computed as such a row."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from collector.case import Case, Slot
from collector.ops.catalog.attention import _fused_replay as fused
from collector.ops.catalog.attention._fused import TABLE, FusedCall, Rule
from collector.ops.catalog.attention._fused_reading import columns, read_call
from collector.ops.catalog.attention._fused_rules import FUSED_RULES
from collector.ops.catalog.attention._lengths import untold_lengths
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

_ABSENT = Slot(None, "", "")


def flash(
    kernel: str,
    call: str,
    slots: tuple[str, ...],
    places: Mapping[int, int],
    run: Callable[..., Any],
    limits: Mapping[str, Callable[[FusedCall], bool]],
) -> OpSpec:
    """An operator whose input `i` is input `places[i]` of fused attention; others want no shape.
    `run` takes the function, the tensors as fused attention has them, and the sizes."""

    def view(case: Case) -> Case:
        inputs = dict(enumerate(case.inputs or ()))
        seen = [_ABSENT] * (max(places.values()) + 1)
        for mine, theirs in places.items():
            seen[theirs] = inputs.get(mine, _ABSENT)
        return replace(case, inputs=tuple(seen))

    def build(case: Case, make: TensorMaker) -> Call:
        return fused.build(view(case), make)

    def reference(torch: Any, *args: Any, call: FusedCall) -> Any:
        out, _ = fused.reference(torch, *args, call=call)
        return out

    def limit(holds: Callable[[FusedCall], bool]) -> Callable[[Case], bool]:
        def check(case: Case) -> bool:
            sizes = read_call(view(case))
            return isinstance(sizes, Rule) or (holds(sizes) and not sizes.wants_lse)

        return check

    def on_view(holds: Callable[[Case], bool]) -> Callable[[Case], bool]:
        return lambda case: holds(view(case))

    return OpSpec(
        kernel=kernel,
        call=call,
        assumes=(
            "queries, and keys that lie in no pages, in equal parts; of pages those that "
            "Runtime columns name, all over the pool"
        ),
        slots=slots,
        optional=frozenset(range(3, len(slots))),
        reference=reference,
        build=build,
        flops=lambda case: fused.flops(view(case)),
        traffic=lambda case: fused.traffic(view(case)),
        npu=NpuCall(run=run),
        runtime=lambda case: columns(view(case)),
        untold=lambda case: untold_lengths(view(case), TABLE),
        constraints=(
            Constraint(
                "quantisation, padding and position shifts are not replayed: those slots want no "
                "shape",
                lambda case: all(
                    slot.shape is None or i in places for i, slot in enumerate(case.inputs or ())
                ),
            ),
            *(Constraint(rule.text, on_view(rule.holds)) for rule in FUSED_RULES),
            *(Constraint(text, limit(holds)) for text, holds in limits.items()),
        ),
    )
