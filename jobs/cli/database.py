"""`opmeter db`, `db merge` and `db pull`: the versions of the database."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput, DamagedObject, NotFound
from collector.codec.text import counted
from collector.model import keys
from collector.store.opening import command_on
from jobs.cli import options
from jobs.cli.cleanup import du_command, gc_command
from jobs.cli.diff import diff_command
from jobs.cli.export import export_command
from jobs.cli.imports import import_command
from jobs.cli.mappings import say_kept
from jobs.cli.opening import (
    choose_guard,
    chosen_commit,
    newest,
    open_bare,
    open_campaign,
    open_database,
    open_root,
    patient,
    warned,
)
from jobs.cli.promote import promote_command
from jobs.cli.query import list_command
from jobs.cli.terminal import print_json, say, say_lines

if TYPE_CHECKING:
    from collector.database.commits import Commit
    from collector.database.merge import Guard, MergeResult
    from collector.model.plan import Plan
    from collector.store.base import Store
    from jobs.planning.damage import DamageReport


def log_command(
    *, root: options.DatabaseRootOption = "opmeter-data", as_json: options.JsonOption = False
) -> None:
    """List the versions of the database, newest first.

    \b
    Example:
      opmeter db log --root s3://bucket/prefix
    """
    from collector.database.commits import history, read_log

    store = open_root(root)
    newest(warned(read_log(store)), root)
    if as_json:
        print_json(list(history(store)))
        return
    retired = _retired(store)
    for commit in history(store):
        plans = ", ".join(f"{plan.campaign} plan {plan.number}" for plan in commit.plans)
        counted_of = sorted(commit.counts.items())
        counts = ", ".join(
            counted(number, *_NOUNS.get(name, (name, name))) for name, number in counted_of
        )
        notes = "" if commit.runtime == "real" else f"  runtime {commit.runtime}"
        notes += "  retired" if commit.number in retired else ""
        say(
            f"{commit.number:>4}  {commit.time}  {commit.author}  {plans or '-'}  "
            f"{counts}  content {commit.content_hash[:12]}  guard {commit.guard}{notes}"
        )


# Of the counts of a commit; a newer version may have others.
_NOUNS = {
    "added_measurements": ("new measurement",),
    "cases": ("case",),
    "measurements": ("measurement",),
    "versions": ("version directory", "version directories"),
}


def _retired(store: Store) -> frozenset[int]:
    """Return the retired versions; none, after a warning, if a record of them is damaged."""
    from collector.database.retired import retired_versions

    try:
        return retired_versions(store)
    except DamagedObject as error:
        say(f"warning: {error}", err=True)
        return frozenset()


def path_command(
    *,
    root: options.DatabaseRootOption = "opmeter-data",
    version: options.CommitOption = None,
    as_json: options.JsonOption = False,
) -> None:
    """Print the store prefix of each version directory.

    \b
    Example:
      opmeter db path --version 3
    """
    from collector.database.manifest import read_manifest
    from collector.store.opening import address_of

    store = open_root(root)
    commit = chosen_commit(store, root, version)
    addresses = {
        path: address_of(store.url, keys.snapshot(entry.snapshot) + path)
        for path, entry in sorted(read_manifest(store, commit).versions.items())
    }
    if as_json:
        print_json({"version": commit.number, "directories": addresses})
    else:
        say_lines(addresses.values())


def verify_command(
    *,
    root: options.DatabaseRootOption = "opmeter-data",
    version: Annotated[
        str | None, typer.Option(help="database version: its number, or a channel  [default: all]")
    ] = None,
    skip_raw: Annotated[
        bool,
        typer.Option("--skip-raw", help="skip the profiler's own records, which is faster"),
    ] = False,
    check_all: Annotated[
        bool, typer.Option("--all", help="check also what an earlier verification has checked")
    ] = False,
    mend: Annotated[
        bool, typer.Option("--mend", help="write the logs of the Delta tables as the commits say")
    ] = False,
    as_json: options.JsonOption = False,
) -> int:
    """Check every hash and every file of one version, or of all versions.

    It writes nothing, without --mend: that writes the logs of the Delta tables again where another
    tool has written into them.

    With the variable OPMETER_VERIFY_KEY, a successful check of all versions leaves a mark that is
    signed with it, and the next one checks what is new. The exit code is 1 if something is damaged.
    Objects that no version names (strays) are listed and do no harm.

    \b
    Examples:
      opmeter db verify
      opmeter db verify --version 3 --skip-raw
      opmeter db verify --mend
    """
    from collector.database.verify import find_problems, find_strays, of_other_view_versions

    store = open_root(root)
    commits = None if version is None else [chosen_commit(store, root, version)]
    secret = os.environ.get("OPMETER_VERIFY_KEY", "") if version is None else ""
    head = chosen_commit(store, root, None) if secret else None  # before a merge adds another
    since = 0 if check_all or not secret else _verified(store, secret, with_raw=not skip_raw)
    problems = find_problems(store, commits, with_raw=not skip_raw, since=since)
    damaged = {problem.key for problem in problems}
    found = [] if version else [stray for stray in find_strays(store) if stray.key not in damaged]
    count = 1 if version else _versions(store, {stray.key for stray in found})
    if not count and not problems:
        raise BadInput(f"no database at {root}: nothing was merged there yet")
    lines = [f"version {problem.commit}: {problem.text}" for problem in problems]
    lines += [f"stray {ascii(stray.key)[1:-1]}: {stray.reason}" for stray in found]
    if other := of_other_view_versions(store, commits):
        what = "rendered by another version of opmeter: checked by hash, not rendered again"
        lines.append(f"note        {counted(other, 'version')} {what}")
    if problems:
        what = "restore the listed objects from a backup of the store, and verify again"
        lines.append(f"to do       {what}")
    of_logs, foreign = ([], 0) if problems else _log_lines(store, commits, since, mends=mend)
    lines += of_logs
    if version is None and not problems and (retired := _retired(store)):
        what = "only the chain, the manifests and the measurements were checked"
        lines.append(f"note        {counted(len(retired), 'retired version')}: {what}")
    if since:
        what = f"versions up to {since} were verified before; --all checks them again"
        lines.append(f"note        {what}")
    if head is not None and not problems and not foreign:
        _mark(store, head, secret, with_raw=not skip_raw)
    checked = f"version {version}" if version else counted(count, "version")
    harmless = f", {counted(len(found), 'stray')}" if found else ""
    unread = "; raw records not read" if skip_raw else ""
    count_of = len(problems) + foreign
    result = counted(count_of, "problem") if count_of else "no problems"
    lines.append(f"{checked} at {store.url}: {result}{harmless}{unread}")
    if as_json:
        print_json({"problems": problems, "strays": found, "versions": count, "lines": lines})
    else:
        say_lines(lines)
    return int(bool(count_of))


def _verified(store: Store, secret: str, *, with_raw: bool) -> int:
    """Return the number of the newest version that was verified before; 0 if none was."""
    from collector.database.verified import verified_commit

    commit = verified_commit(store, secret, with_raw=with_raw)
    return commit.number if commit else 0


def _mark(store: Store, head: Commit, secret: str, *, with_raw: bool) -> None:
    from collector.database.verified import write_mark

    write_mark(store, head, secret, with_raw=with_raw)


def _log_lines(
    store: Store, commits: list[Commit] | None, since: int, *, mends: bool
) -> tuple[list[str], int]:
    """Return lines about the logs of Delta tables, and how many of their files readers would take
    for ours. With `mends` these are written again."""
    from collector.codec.errors import StoreError
    from collector.database import delta
    from collector.database.commits import history

    if commits is None:
        new = (commit for commit in history(store) if commit.number > since)
        commits = list(reversed(list(new)))
    if mends:
        return [f"note        mended {key}" for key in delta.mend(store, commits)], 0
    try:
        found = delta.check(store, commits)
    except StoreError as error:
        return [f"note        the logs of the Delta tables were not read: {error}"], 0
    lines = [f"delta log {ascii(one.key)[1:-1]}: {one.text}" for one in found]
    if found:
        lines.append(
            "to do       the next merge mends the newest versions, "
            f"`{command_on(store.url, 'opmeter db verify --mend')}` all"
        )
    return lines, sum(not one.is_missing for one in found)


def quality_command(
    version: Annotated[int | None, typer.Argument(help="version  [default: newest]")] = None,
    *,
    root: options.DatabaseRootOption = "opmeter-data",
    list_rows: Annotated[
        bool,
        typer.Option(
            "--list", help="list the rows with a warning, and those that a gate withholds"
        ),
    ] = False,
    tolerance: Annotated[
        str, typer.Option(help="largest half-width of the interval of a duration that is usable")
    ] = "10%",
    cards: Annotated[
        bool,
        typer.Option(
            "--card", help="print DATASET.md of each version directory, with the accuracy"
        ),
    ] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Report how well the numbers of a version are known.

    It counts the durations that are usable at the tolerance, and what each of the others needs: no
    warning, a variance from compared sessions, an interval within the tolerance.

    It shows how far sessions and devices differ, the coverage and width of the confidence
    intervals, what the gates refuse, and for each kernel type how well interpolation predicts rows
    that are left out. With --list it lists the rows concerned, the widest interval first. With
    --card it prints the card of each version directory, for a catalogue or a page.

    \b
    Examples:
      opmeter db quality --tolerance 5%
      opmeter db quality --list
      opmeter db quality --card > DATASET.md
    """
    from collector.database.snapshot import load_state
    from collector.database.version_quality import (
        quality_of,
        shown_versions,
        verdict_of,
        warned_cases,
    )
    from jobs.status.lines import accuracy_lines, suspect_lines, version_quality_lines
    from opmeter.database import database_at

    share = options.share_of_option("--tolerance", tolerance)
    store = open_database(root)
    commit = chosen_commit(store, root, version)
    if cards and (list_rows or as_json):
        raise BadInput("--card: expected neither --list nor --json, which print something else")
    if cards:
        say_lines(_cards(store, commit))
        return
    shown = shown_versions(load_state(store, commit))
    if list_rows:
        listed = [(one.path, len(one.mean_us), warned_cases(one)) for one in shown]
        if as_json:
            print_json([case for *_, cases in listed for case in cases])
            return
        for path, durations, cases in listed:
            say_lines(suspect_lines(path, durations, cases))
        return
    db = database_at(store, commit)
    qualities = [
        (quality_of(one), verdict_of(one, share), db.directory(one.path).accuracy())
        for one in shown
    ]
    if as_json:
        print_json(
            [
                {
                    **{f.name: getattr(one, f.name) for f in fields(one)},
                    "verdict": verdict,
                    "interpolation": accuracy,
                }
                for one, verdict, accuracy in qualities
            ]
        )
        return
    for quality, verdict, accuracy in qualities:
        say_lines(version_quality_lines(quality, verdict, store.url))
        say_lines(accuracy_lines(accuracy))


def _cards(store: Store, commit: Commit) -> Iterator[str]:
    """Yield the lines of the card of each version directory, and the accuracy of interpolation,
    which is computed by the reader: see decision 0030."""
    from collector.database.manifest import own_files, read_file, read_manifest, read_version_files
    from jobs.status.lines import accuracy_table
    from opmeter.database import database_at

    db = database_at(store, commit)
    for path, entry in read_manifest(store, commit).versions.items():
        files = read_version_files(store, commit, path, entry)
        key = keys.dataset(entry.snapshot, path)
        (card,) = (file for file in own_files(path, entry, files) if file.key == key)
        yield from read_file(store, card).decode().splitlines()
        if accuracy := db.directory(path).accuracy():
            yield from ("", "## Durations between these cases", "")
            yield from accuracy_table(accuracy)
            yield ""


def _versions(store: Store, strays: Container[str]) -> int:
    listed = (info.key for info in store.list(keys.COMMITS) if info.key not in strays)
    return sum(keys.number_in_key(key, keys.commit) is not None for key in listed)


# `opmeter db merge`.

_NOT_COMMITTED = 3
_TURN_S = 900.0  # how long a merge waits for others; a Job starts it again


def merge_command(
    campaign: Annotated[str, typer.Argument(help="name or file of the campaign")],
    *,
    root: options.RootOption = None,
    plan: Annotated[list[int] | None, typer.Option(help="plan to merge  [default: all]")] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="publish although shards are missing")
    ] = False,
    single_writer: options.SingleWriterOption = False,
    supersede_stack: options.SupersedeOption = False,
    lease: Annotated[
        str | None,
        typer.Option(help="namespace of a Lease by which merges take turns"),
    ] = None,
    allow_damaged: Annotated[
        bool,
        typer.Option("--allow-damaged", help="exit with 0 despite damage"),
    ] = False,
) -> int:
    """Publish the committed shards of a campaign as the next version of the database.

    The exit code is 3 if shards are missing and nothing was published, 1 if something committed is
    damaged (everything else is published), 75 if other merges kept the Lease.

    \b
    Example:
      opmeter db merge nightly --allow-missing
    """
    from jobs.planning import lifecycle
    from jobs.planning.damage import DamageReport

    if lease and single_writer:
        raise BadInput("--lease and --single-writer exclude each other")
    described = open_campaign(campaign, executes=False) if Path(campaign).is_file() else None
    name = described.name if described else campaign

    def publish(store: Store, guard: Callable[[], Guard]) -> int:
        chosen = _chosen(store, name, plan or [])
        result = lifecycle.publish(
            store,
            name,
            chosen,
            guard(),
            supersede_stack=supersede_stack,
            allow_missing=allow_missing,
        )
        damage = DamageReport.of(result.damaged, max(chosen))
        code = _exit_code(result, damage, allow_missing=allow_missing)
        if damage.needed:
            say_lines(damage.advice(_plan_of(store, name, max(chosen))), err=True)
        return code or int(bool(damage.needed) and not allow_damaged)

    if lease:
        return _in_turn(lease, open_bare(root, described), publish)
    store = open_root(root, described, single_writer=single_writer)
    return publish(store, lambda: choose_guard(store, single_writer=single_writer))


def _in_turn(
    namespace: str, store: Store, publish: Callable[[Store, Callable[[], Guard]], int]
) -> int:
    """Publish while this process holds the Lease; it is checked before every create-only write."""
    from collector.store.waiting import SingleWriterStore
    from collector.worker.exit_codes import ExitCode

    # The Kubernetes client takes half a second to import, and other merges do not need it.
    from jobs.kube.cluster import Cluster
    from jobs.kube.leader_election import LeaseTaken, MergeLease, identity

    turns = MergeLease(Cluster.connect(namespace), identity())
    try:
        with turns.held(_TURN_S) as guard:
            return publish(patient(SingleWriterStore(store, guard.still_holds)), lambda: guard)
    except LeaseTaken as error:
        say(f"opmeter: {error}", err=True)
        return ExitCode.TEMPORARY


def _plan_of(store: Store, campaign: str, number: int) -> Plan | None:
    from collector.database.plans import read_plan

    try:
        return read_plan(store, campaign, number)
    except (BadInput, NotFound):
        return None


def _exit_code(result: MergeResult, damage: DamageReport, *, allow_missing: bool) -> int:
    say_lines(damage.lines())
    for _, number, shard in result.missing:
        say(f"missing     shard {shard} of plan {number}")
    if result.missing and not allow_missing:
        say("nothing published: measure the rest, or use --allow-missing", err=True)
        return _NOT_COMMITTED
    if result.commit:
        new = counted(result.added_measurements, "measurement")
        say(f"version {result.commit.number}: {new} new")
    else:
        stands = (
            f"version {result.head.number} is the newest" if result.head else "no version exists"
        )
        say(f"nothing new: {stands}")
    return 0


def _chosen(store: Store, campaign: str, numbers: list[int]) -> list[int]:
    """Return the requested plans, or all. Raises BadInput for numbers that the store lacks."""
    from jobs.planning.stored_plans import plan_numbers

    known = plan_numbers(store, campaign)
    if not known:
        raise BadInput(
            f"no campaign {campaign!r} at {store.url}; "
            f"`{command_on(store.url, 'opmeter status')}` lists the campaigns"
        )
    if unknown := sorted(set(numbers) - set(known)):
        raise BadInput(
            f"campaign {campaign!r} at {store.url} has no plan {', '.join(map(str, unknown))}; "
            f"there are: {', '.join(map(str, known))}"
        )
    return numbers or known


# `opmeter db pull`.


def pull_command(
    target: Annotated[Path, typer.Argument(help="folder to write")],
    *,
    root: options.DatabaseRootOption = "opmeter-data",
    version: options.CommitOption = None,
    directory: Annotated[
        str | None, typer.Option(help="version directory to write  [default: all]")
    ] = None,
    prune_empty_duration_rows: Annotated[
        bool,
        typer.Option("--prune-empty-duration-rows", help="leave out rows without a duration"),
    ] = False,
    cache: options.CacheOption = None,
) -> None:
    """Write a version of the database as a tree of CSVs, every hash checked.

    \b
    Examples:
      opmeter db pull tree
      opmeter db pull tree --version 3 --cache cold
    """
    from collector.database.pull import pull_version

    options.check_cache(cache)
    store = open_root(root)
    commit = chosen_commit(store, root, version)
    pulled = pull_version(
        *(store, commit, target),
        directory=directory,
        prune_empty=prune_empty_duration_rows,
        cache=cache,
    )
    written = f"{counted(pulled.files, 'file')}, {counted(pulled.rows, 'row')}"
    say(f"version {commit.number}: {written} in {target}")
    if commit.runtime != "real":
        warning = f"its numbers are from a {commit.runtime} runtime, not from a device"
        say(f"warning: {warning}", err=True)
    for path in pulled.own_mappings:
        say_kept(target / path)


COMMANDS: dict[str, Callable[..., int | None]] = {
    "merge": merge_command,
    "pull": pull_command,
    "log": log_command,
    "list": list_command,
    "diff": diff_command,
    "promote": promote_command,
    "quality": quality_command,
    "export": export_command,
    "import": import_command,
    "verify": verify_command,
    "path": path_command,
    "du": du_command,
    "gc": gc_command,
}
