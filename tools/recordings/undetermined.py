"""Counts conditions of packaged deployments that their own loads do not determine.

A condition is undetermined if another candidate is true in the same recorded loads and differs in a
load of the range, in the first recorded layout of a file.
"""

import argparse
import logging
from collections.abc import Mapping

from collector.workloads.deployments import (
    LoadRange,
    PackagedDeployment,
    find_deployment,
    load_names,
)
from collector.workloads.layout import layout_of
from collector.workloads.serving import Batch
from tools.recordings.candidates import Conditions, Terms
from tools.recordings.recipes import chosen_recipes, constants_of, folder_of
from tools.recordings.spaces import LoadSpan, batches_of, recorded_batches

logger = logging.getLogger(__name__)


def count(options: argparse.Namespace) -> int:
    """Log the conditions of each chosen file, and how many of them are undetermined."""
    total = [0, 0, 0]
    for recipe in chosen_recipes(options):
        layout = layout_of(recipe.recorded[0])
        deployment = find_deployment(recipe.model, recipe.release, layout)
        if deployment is None:
            logger.info("%s: not packaged", recipe.file_name)
            continue
        longest = constants_of(folder_of(recipe.model, recipe.recorded[0])).longest
        counts = [_of_range(deployment, one, longest) for one in deployment.ranges]
        found = [sum(column) for column in zip(*counts, strict=True)]
        logger.info("%s: %d conditions, %d and %d undetermined", recipe.file_name, *found)
        total = [one + more for one, more in zip(total, found, strict=True)]
    logger.info("%d conditions; of one term %d undetermined, of one or two terms %d", *total)
    return 0


def _of_range(deployment: PackagedDeployment, one: LoadRange, longest: int) -> tuple[int, int, int]:
    """Return how many conditions a range has, and how many have a rival of one term, or any."""
    whens = [launch.when for launch in one.launches] + [message.when for message in one.messages]
    whens = [when for when in whens if when != "1"]
    if not whens:
        return 0, 0, 0
    ranks = layout_of(deployment.layout).tp

    def names(batch: Batch) -> Mapping[str, int]:
        return load_names(batch, ranks)

    batches = batches_of(LoadSpan.of(one, longest), deployment.graph_sizes)
    recorded = recorded_batches(one, deployment.graph_sizes)
    terms = Terms([*map(names, recorded)], [*map(names, batches)])
    conditions, rivals = Conditions(terms), dict[str, list[str]]()
    for text in dict.fromkeys(whens):
        truth = terms.all(text) != 0
        fitting = conditions.fitting(truth[: terms.recorded].tolist())
        rivals[text] = [other.text for other in fitting if (other.truth != truth).any()]
    single = sum(any(map(_has_one_term, rivals[text])) for text in whens)
    return len(whens), single, sum(bool(rivals[text]) for text in whens)


def _has_one_term(text: str) -> bool:
    return " and " not in text and " or " not in text
