"""How likely the differences of pairs of sessions are, each as Student's t about nothing."""

from math import lgamma, log, pi

import numpy as np

from collector.quality.evidence import Floats, Pairs


def log_likelihood(pairs: Pairs, variance: Floats, tails: float) -> float:
    """The logarithm of how likely pairs are that differ with these variances and tails."""
    squares = pairs.difference**2 / variance
    density = -(tails + 1) / 2 * np.log1p(squares / tails) - np.log(variance) / 2
    constant = lgamma((tails + 1) / 2) - lgamma(tails / 2) - log(tails * pi) / 2
    return float(pairs.weights @ (density + constant))
