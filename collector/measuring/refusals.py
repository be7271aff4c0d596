"""The cases that need no device to be answered: nobody could launch them, or none should."""

import logging
from collections.abc import Callable, Sequence

from collector.case import Case
from collector.errors import CaseRejected
from collector.measurement import Outcome
from collector.measuring.answers import Unmeasured
from collector.ops.spec import OpSpec
from collector.shard import ShardCase

logger = logging.getLogger(__name__)

# What a mistake in an operator's declaration raises. Its case is not answered for that here: the
# session meets the mistake again, and has a fence around each case.
_MISTAKES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)

FindOperator = Callable[[str], OpSpec | None]


def find_refusals(cases: Sequence[ShardCase], find: FindOperator, backend: str) -> list[Unmeasured]:
    """Those of the cases that cannot be measured, each with why."""
    refused = ((case.record, refusal(case.record.case, find, backend)) for case in cases)
    return [Unmeasured(record, *why) for record, why in refused if why is not None]


def refusal(case: Case, find: FindOperator, backend: str) -> tuple[Outcome, str] | None:
    """Why a case needs no device to be answered; None where it can be measured."""
    if case.inputs is None:
        return Outcome.UNSUPPORTED, "its inputs are unknown (N/A in the source)"
    op = find(case.kernel_type)
    if op is None:
        return Outcome.UNSUPPORTED, f"no operator is declared for {case.kernel_type}"
    try:
        op.check(case, backend)
    except CaseRejected as error:
        return Outcome.REJECTED, str(error)
    except _MISTAKES as error:
        logger.warning("%s cannot be checked: %r", case.describe(), error)
    return None
