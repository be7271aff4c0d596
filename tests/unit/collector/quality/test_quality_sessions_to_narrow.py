"""How many more sessions narrow an interval, against simulated sessions."""

from math import log

import numpy as np
import pytest

from collector.quality.precision import sessions_to_narrow
from collector.quality.statistics import student_t_factor

_DRAWN = 20_000


def half_width(sessions: int, spread: float, of_devices: float = 0.0) -> float:
    """The root mean square of the half-widths of intervals from this many simulated sessions, all
    on one device if devices differ."""
    drawn = np.random.default_rng(sessions).normal(0.0, spread, (_DRAWN, sessions))
    variance = drawn.var(axis=1, ddof=1) / sessions + of_devices**2
    return student_t_factor(sessions - 1) * float(np.sqrt(variance.mean()))


@pytest.mark.parametrize("sessions", [2, 3, 5, 12])
def test_simulated_sessions_halve_the_interval_as_predicted(sessions: int) -> None:
    spread = 0.02
    now = half_width(sessions, spread)
    more = sessions_to_narrow(now, sessions - 1, sessions, to=now / 2)
    assert more is not None
    assert half_width(sessions + more, spread) <= 1.02 * now / 2
    assert half_width(sessions + more - 1, spread) > 0.98 * now / 2


@pytest.mark.fast
def test_variance_between_devices_remains_on_one_device() -> None:
    for of_devices, is_possible in ((0.002, True), (0.009, False)):
        now = half_width(5, 0.02, of_devices)
        elsewhere = sessions_to_narrow(now, 4.0, 5, to=now / 2)
        more = sessions_to_narrow(now, 4.0, 5, to=now / 2, device_spread=of_devices)
        assert elsewhere is not None and (more is not None) == is_possible
        if more is not None:
            assert more >= elsewhere
            assert half_width(5 + more, 0.02, of_devices) <= 1.02 * now / 2


@pytest.mark.fast
def test_interval_without_width_cannot_be_narrowed() -> None:
    assert sessions_to_narrow(0.0, 3.0, 1, to=0.01) is None
    reach = log(5.1 / 5.0)
    assert sessions_to_narrow(reach, 0.0, 1, to=reach / 2) is None
    # t falls from 3.2 to 2.6, the root from 1 to 0.6
    assert sessions_to_narrow(reach, 3.0, 1, to=reach / 2) == 2
