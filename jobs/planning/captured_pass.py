"""The time of a captured pass from the durations of its operators, measured alone.

On a CPU the thread that calls an operator also runs it, so that the parts of a pass add up:

    pass = sum over kernels of (context factor x time) + calls x host time of a call

The time is that behind the launches that precede it in the capture (`cache: context`), where this
was measured, else that alone. A context factor is the time of a kernel type in a pass, in relation
to it. The factors and the time of the host are fitted to other passes, whose whole time is measured
too, by Bayesian linear regression of relative errors: where the passes say nothing, the prior
remains. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from collector.report.comparison import ComparedCase, Isolated

Floats = npt.NDArray[np.float64]
PASS_FILE = "pass.jsonl"  # the case of the captured pass, as a source of a campaign
HOST = "host, each call"
# Priors: mean and deviation of a factor, and of the time of the host for a call in us (the
# dispatcher of torch, Python of a module, views).
_FACTOR, _HOST_US = (1.0, 0.3), (8.0, 8.0)
# Relative deviations of passes from the model, which the fit weighs.
_NOISES = np.geomspace(0.02, 0.5, 25)
_LOW, _HIGH = 0.025, 0.975


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The launches of a kernel type in one pass: the time of those that were measured, alone; how
    much longer they take behind others, where that was measured; and the time in the capture of
    those that were not."""

    launches: float = 0.0
    alone_us: float = 0.0
    neighbours_us: float = 0.0
    unknown_us: float = 0.0

    @property
    def known_us(self) -> float:
        """Return the time that a context factor multiplies."""
        return self.alone_us + self.neighbours_us + self.unknown_us


@dataclass(frozen=True, slots=True)
class CapturedPass:
    """A pass: its case, its kernels by type, and its time as a whole if that was measured."""

    name: str
    case: str
    kernels: Mapping[str, KernelTime]
    measured: Isolated | None

    @property
    def calls(self) -> float:
        return fsum(one.launches for one in self.kernels.values())

    @property
    def alone_us(self) -> float:
        return fsum(one.alone_us for one in self.kernels.values())

    @property
    def neighbours_us(self) -> float:
        return fsum(one.neighbours_us for one in self.kernels.values())

    @property
    def unknown_us(self) -> float:
        return fsum(one.unknown_us for one in self.kernels.values())


def captured_pass(
    name: str, case: str, found: Iterable[ComparedCase], steps: int, measured: Isolated | None
) -> CapturedPass:
    """Return a pass with the cases of a capture of so many steps."""
    kernels: dict[str, list[ComparedCase]] = defaultdict(list)
    for one in found:
        kernels[one.record.kernel_type].append(one)
    return CapturedPass(
        name,
        case,
        {
            kernel: KernelTime(
                sum(one.in_situ.count for one in of) / steps,
                fsum(one.isolated_us for one in of) / steps,
                fsum(one.neighbours_us for one in of) / steps,
                fsum(one.in_situ.total_us for one in of if one.isolated is None) / steps,
            )
            for kernel, of in sorted(kernels.items())
        },
        measured,
    )


@dataclass(frozen=True, slots=True)
class Fitted:
    """A number with its 95 % interval."""

    value: float
    low: float
    high: float


class ContextFactors:
    """The context factor of each kernel type, and the time of the host for a call, fitted to
    passes. `passes` is their number: without any, the factors are the priors."""

    def __init__(self, kernels: Iterable[str], passes: Sequence[CapturedPass]) -> None:
        known = [one for one in passes if one.measured is not None]
        self.passes = len(known)
        self.kernels = tuple(sorted({*kernels, *(k for one in known for k in one.kernels)}))
        means = np.array([_FACTOR[0]] * len(self.kernels) + [_HOST_US[0]])
        self._means: list[Floats] = []
        self._covariances: list[Floats] = []
        spread = np.diag(
            np.square([_FACTOR[1]] * len(self.kernels) + [_HOST_US[1]], dtype=np.float64)
        )
        whole = np.array([one.measured.mean_us for one in known if one.measured])
        rows = np.array([self._row(one) for one in known]).reshape(len(known), len(means))
        shares = rows / whole[:, None]
        difference = 1.0 - shares @ means
        evidence = []
        for noise in _NOISES:
            of_passes = shares @ spread @ shares.T + noise**2 * np.eye(len(known))
            gain = np.linalg.solve(of_passes, shares @ spread).T
            self._means.append(means + gain @ difference)
            self._covariances.append(spread - gain @ shares @ spread)
            _, determinant = np.linalg.slogdet(of_passes)
            evidence.append(
                -0.5 * (difference @ np.linalg.solve(of_passes, difference) + determinant)
            )
        weights = np.exp(np.array(evidence) - max(evidence))
        self._weights: Floats = weights / weights.sum()

    def factor(self, kernel: str) -> Fitted:
        """Return the factor of a kernel type, or the time of HOST in us."""
        row = np.zeros(len(self.kernels) + 1)
        row[-1 if kernel == HOST else self.kernels.index(kernel)] = 1.0
        return self._fitted(row, 0.0)

    def predict(self, one: CapturedPass) -> Fitted:
        """Return the time of a pass in us; its interval has what passes differ from the model."""
        row = self._row(one)
        return self._fitted(row, 1.0)

    def _row(self, one: CapturedPass) -> Floats:
        times = (one.kernels.get(kernel, KernelTime()) for kernel in self.kernels)
        return np.array([*(each.known_us for each in times), one.calls])

    def _fitted(self, row: Floats, noise_share: float) -> Fitted:
        values = np.array([row @ mean for mean in self._means])
        deviations = [
            float(np.sqrt(max(row @ spread @ row, 1e-18) + (noise_share * noise * value) ** 2))
            for spread, noise, value in zip(self._covariances, _NOISES, values, strict=True)
        ]
        parts = [NormalDist(*one) for one in zip(values.tolist(), deviations, strict=True)]
        return Fitted(
            float(self._weights @ values),
            max(0.0, _quantile(parts, self._weights, _LOW)),
            _quantile(parts, self._weights, _HIGH),
        )


@dataclass(frozen=True, slots=True)
class ExplainedPass:
    """A pass with its predicted time, and the context factors of its kernels and the time of the
    host that this time is made of. `fitted_to` is the number of passes that gave them."""

    captured: CapturedPass
    time: Fitted
    factors: Mapping[str, Fitted]
    host: Fitted
    fitted_to: int

    @property
    def parts_us(self) -> dict[str, float]:
        """Return the parts of the predicted time; they add up to it."""
        one = self.captured
        return {
            "operators, alone": one.alone_us,
            "neighbours, measured": one.neighbours_us,
            "operators, unknown": one.unknown_us,
            "context factors": sum(
                (self.factors[kernel].value - 1) * time.known_us
                for kernel, time in one.kernels.items()
            ),
            "host": self.host.value * one.calls,
        }


def explained(one: CapturedPass, others: Sequence[CapturedPass]) -> ExplainedPass:
    """Return a pass with what other passes say of its kernels and of the host."""
    factors = ContextFactors(one.kernels, others)
    of_kernels = {kernel: factors.factor(kernel) for kernel in one.kernels}
    return ExplainedPass(
        one, factors.predict(one), of_kernels, factors.factor(HOST), factors.passes
    )


def _quantile(parts: Sequence[NormalDist], weights: Floats, share: float) -> float:
    """Return a quantile of a mixture of normal distributions, by bisection."""
    ends = [one.inv_cdf(share) for one in parts]
    low, high = min(ends), max(ends)
    for _ in range(60):
        middle = (low + high) / 2
        below = fsum(
            weight * one.cdf(middle) for weight, one in zip(weights.tolist(), parts, strict=True)
        )
        low, high = (middle, high) if below < share else (low, middle)
    return (low + high) / 2
