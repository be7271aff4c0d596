"""Declarations of operators of your own: `docs/how-to/measure-an-operator-of-your-own.md`.

from opmeter.operators import Operator
SILU_SCALED = Operator("SiluScaled", "x T:float[*s] -> y T[*s]", "my_package.silu_scaled")
"""

from collector.model.case import Case, Slot
from collector.ops.own import Operator
from collector.ops.spec import Call, TensorMaker

__all__ = ["Call", "Case", "Operator", "Slot", "TensorMaker"]
