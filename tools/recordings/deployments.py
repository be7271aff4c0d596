"""Makes the files of packaged deployments from their recipes.

`python -m tools recordings --release RELEASE [--model MODEL]` records them with the environments of
`opmeter model record`; each layout takes some minutes. `tests/stacks/test_stacks_deployments.py`
compares small ones with the launches of the software. Read the difference of a file before it is
committed.
"""

import argparse
import logging
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from collector.engine.engine_process import (
    EngineFailed,
    RunningEngine,
    running_engine,
)
from collector.engine.model_folder import ModelFolder
from collector.engine.recorded_calls import PassTokens, derived_again
from collector.workloads.deployments import LoadRange, PackagedDeployment, write_deployment
from collector.workloads.layout import Layout, layout_of
from collector.workloads.recorded_step import (
    Prompts,
    RecordedPass,
    Recording,
    read_recording,
    write_recording,
)
from collector.workloads.serving import Batch
from tools.recordings.formulas import Constants, Solved, differences, solved_in_spaces
from tools.recordings.layout_formulas import solved_family
from tools.recordings.recipes import (
    FOLDER,
    PREDICTED,
    PREDICTING,
    Range,
    Recipe,
    chosen_recipes,
    constants_of,
    folder_of,
    ranges_of,
    ranges_of_predicting,
    settings_of,
)
from tools.recordings.solver import NotSolved
from tools.recordings.spaces import LoadSpan, batches_of, random_batches

logger = logging.getLogger(__name__)

_MOST_ATTEMPTS = 4  # until loads that are drawn follow from the others


def recorded(recipe: Recipe, text: str, options: argparse.Namespace) -> PackagedDeployment:
    """Record a layout of a recipe, and return it."""
    layout, folder = layout_of(text), folder_of(recipe.model, text)
    longest = constants_of(folder).longest
    found = determined(recipe, folder, layout, ranges_of(recipe.model, layout, longest), 0, options)
    if recipe.model not in PREDICTING:
        return found
    ranges = ranges_of_predicting()
    return with_predicting(found, determined(recipe, folder, layout, ranges, PREDICTED, options))


def determined(
    recipe: Recipe,
    folder: ModelFolder,
    layout: Layout,
    ranges: Sequence[Range],
    predicted: int,
    options: argparse.Namespace,
) -> PackagedDeployment:
    """Record the loads of ranges, and further ones until they determine every condition and size;
    then loads that are drawn at random, which have to follow.

    Raises NotSolved where one does not, and where no load tells apart what fits."""
    constants = constants_of(folder)
    first = ranges[0][-1][:1]
    settings = replace(
        settings_of(recipe.release, layout, constants, first, predicted), has_all_graphs=True
    )
    name = f"{recipe.model}_{recipe.release}_{layout}" + "_predicted" * bool(predicted)
    with ExitStack() as engines, tempfile.TemporaryDirectory() as work:
        passes = Passes(
            lambda: engines.enter_context(running_engine(folder, settings, Path(work) / "engine")),
            options.kept / f"{name}.json.gz" if options.kept else None,
        )
        session = _Session(passes, str(layout), ranges, constants, predicted)
        for attempt in range(_MOST_ATTEMPTS):
            while any((found := session.solved()).further):
                for at, further in enumerate(found.further):
                    session.record(at, map(pass_tokens, further))
                passes.keep()
            if any(found.left):
                raise NotSolved(f"{recipe.file_name}: no load determines {found.left} sizes")
            wrong = session.held_out(found.deployment, options.held_out, attempt)
            logger.info("%s: %d loads", name, len(passes.known))
            for one in wrong:
                logger.info("held out: %s", one)
            if not wrong:
                passes.keep()
                return found.deployment
    raise NotSolved(f"{recipe.file_name}: held out loads do not follow from the others")


class Passes:
    """Recorded passes: those of a file that was kept, derived again from their calls, and those of
    an engine, which starts when another one is needed."""

    def __init__(self, start: Callable[[], RunningEngine], kept: Path | None) -> None:
        self._start, self._kept = start, kept
        self.known: dict[PassTokens, RecordedPass] = {}
        self._stored: dict[PassTokens, RecordedPass] = {}
        self._recording: Recording | None = None
        if kept is not None and kept.exists():
            self._recording = read_recording(kept)
            self._stored = {_tokens_of(one): one for one in self._recording.passes}

    @cached_property
    def _engine(self) -> RunningEngine:
        engine = self._start()
        self._recording = self._recording or engine.recording
        return engine

    @property
    def recording(self) -> Recording:
        """The recording of the passes so far."""
        assert self._recording is not None
        return replace(self._recording, passes=tuple(self.known.values()))

    def record(self, wanted: Sequence[PassTokens]) -> None:
        """Record passes that are not known; those that the engine does not run stay unknown."""
        for tokens in wanted:
            if (one := self._stored.get(tokens)) is not None:
                self.known.setdefault(tokens, derived_again(one))
        left = [tokens for tokens in dict.fromkeys(wanted) if tokens not in self.known]
        for tokens, found in zip(left, self._engine.record(left) if left else (), strict=True):
            if isinstance(found, EngineFailed):
                logger.info("%s: not recorded: %s", tokens, found)
            else:
                self.known[tokens] = found

    def keep(self) -> None:
        """Write the passes to their file, with those that it had."""
        if self._kept is not None:
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            passes = (self._stored | self.known).values()
            self._kept.write_bytes(write_recording(replace(self.recording, passes=tuple(passes))))


def _tokens_of(one: RecordedPass) -> PassTokens:
    return PassTokens(one.phase, one.requests, one.queries, one.keys, one.prompts)


class _Session:
    """The passes of each range so far, and the loads of which they have to determine all."""

    def __init__(
        self,
        passes: Passes,
        layout: str,
        ranges: Sequence[Range],
        constants: Constants,
        predicted: int,
    ) -> None:
        self._passes, self._layout, self._ranges = passes, layout, ranges
        self._constants, self._predicted = constants, predicted
        self._chosen: list[list[PassTokens]] = [[] for _ in ranges]
        self._solved: dict[Any, tuple[LoadRange, Sequence[Batch], int]] = {}
        self._spans = [_span(one, predicted, constants.longest) for one in ranges]
        self._spaces = [list(batches_of(span, ())) for span in self._spans]
        passes.record([one for *_, loads in ranges for one in loads])
        for at, (*_, loads) in enumerate(ranges):
            self.record(at, loads)

    def solved(self) -> Solved:
        """Return what the passes so far give."""
        pairs = zip(self._ranges, self._chosen, strict=True)
        ranges = [(least, most, tuple(loads)) for (least, most, _), loads in pairs]
        return solved_in_spaces(
            *(self._passes.recording, self._layout, ranges, self._constants),
            *(self._spaces, self._predicted, self._solved),
        )

    def record(self, at: int, wanted: Iterable[PassTokens]) -> None:
        """Record loads of a range. What the engine does not run is no load of its space."""
        new = [one for one in dict.fromkeys(wanted) if one not in self._chosen[at]]
        self._passes.record(new)
        self._chosen[at] += [one for one in new if one in self._passes.known]
        if refused := {one for one in new if one not in self._passes.known}:
            self._spaces[at] = [x for x in self._spaces[at] if pass_tokens(x) not in refused]

    def held_out(self, deployment: PackagedDeployment, count: int, seed: int) -> list[str]:
        """Record so many loads of each range, which are drawn at random; return what does not
        follow from the deployment."""
        found = []
        for at, span in enumerate(self._spans):
            drawn = {pass_tokens(one): one for one in random_batches(span, count, seed)}
            new = [one for one in drawn if one not in self._chosen[at]]
            self.record(at, new)
            for tokens in new:
                if (one := self._passes.known.get(tokens)) is not None and (
                    only := differences(deployment, one, self._constants, self._predicted)
                ):
                    found.append(f"{drawn[tokens]}: {'; '.join(only[:3])}")
        return found


def _span(one: Range, predicted: int, longest: int) -> LoadSpan:
    least, most, (first, *_) = one
    is_chunk = first.phase == "prefill" and first.keys > first.queries
    phase = "chunk" if is_chunk else first.phase
    return LoadSpan(phase, least, most, predicted, is_chunk, longest)


def pass_tokens(batch: Batch) -> PassTokens:
    """Return the pass of a load."""
    requests = batch.requests - batch.padding
    if not batch.mixed_decodes:
        return PassTokens(str(batch.phase), requests, batch.queries, batch.keys)
    prompts = Prompts(requests, batch.queries, batch.keys)
    return PassTokens("mixed", batch.mixed_decodes, 1, batch.followed_keys, prompts)


def with_predicting(one: PackagedDeployment, other: PackagedDeployment) -> PackagedDeployment:
    """Return a deployment with the ranges of an engine that predicts tokens, whose graphs have the
    same sizes and larger ones."""
    sizes = other.graph_sizes
    if sizes[: len(one.graph_sizes)] != one.graph_sizes:
        raise NotSolved(f"{one.model}: expected graphs of {one.graph_sizes} tokens, got {sizes}")
    return replace(one, graph_sizes=sizes, ranges=(*one.ranges, *other.ranges))


def make(options: argparse.Namespace) -> int:
    """Record the files of the chosen recipes."""
    FOLDER.mkdir(exist_ok=True)
    for recipe in chosen_recipes(options):
        *members, last = [recorded(recipe, layout, options) for layout in recipe.recorded]
        found = solved_family(members, last, recipe.layouts) if members else last
        (FOLDER / recipe.file_name).write_bytes(write_deployment(found))
        logger.info("made %s", recipe.file_name)
    return 0
