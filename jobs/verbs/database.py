"""`opmeter db ...` and `opmeter pull`."""

from pathlib import Path

import typer

from collector import keys
from collector.database.commits import Commit, find_head, history, read_commit
from collector.database.pull import pull
from collector.database.query import diff
from collector.database.snapshot import load_state, read_manifest
from collector.database.verify import verify
from collector.errors import BadInput, NotFound
from collector.store.base import Store
from collector.store.opening import address_of
from jobs.verbs.opening import open_root


def log_verb(root: str) -> None:
    """One line a version, newest first."""
    store = open_root(root)
    _commit(store, root, None)
    for commit in history(store):
        plans = ", ".join(f"{plan.campaign} plan {plan.number}" for plan in commit.plans)
        counts = ", ".join(f"{number} {name}" for name, number in sorted(commit.counts.items()))
        fake = "" if commit.runtime == "real" else f"  runtime {commit.runtime}"
        typer.echo(
            f"{commit.number:>4}  {commit.time}  {commit.author}  {plans or '-'}  "
            f"{counts}  content {commit.content_hash[:12]}  guard {commit.guard}{fake}"
        )


def path_verb(root: str, number: int | None) -> None:
    """Where each folder of a version lies, one for each stack: a path, or an address in S3."""
    store = open_root(root)
    commit = _commit(store, root, number)
    prefix = keys.snapshot(commit.snapshot)
    for path in sorted(read_manifest(store, commit).versions):
        typer.echo(address_of(store.url, prefix + path))


def verify_verb(root: str, number: int | None) -> int:
    """List what is broken; the exit code is 1 where anything is."""
    store = open_root(root)
    commit = _commit(store, root, number)
    problems = verify(store, None if number is None else [commit])
    for problem in problems:
        typer.echo(f"version {problem.commit}: {problem.text}")
    checked = f"version {number}" if number else f"{commit.number} versions"
    typer.echo(f"{checked} at {store.url}: {len(problems) or 'no'} problems")
    return int(bool(problems))


def diff_verb(root: str, before: int, after: int) -> None:
    """One line for each case that differs."""
    store = open_root(root)
    old, new = (load_state(store, _commit(store, root, number)) for number in (before, after))
    changes = diff(old, new)
    for change in changes:
        ratio = f"  x{change.ratio:.3f}" if change.ratio is not None else ""
        typer.echo(
            f"{change.kind:<8} {change.kernel_type} {change.shapes} {change.dtypes}  "
            f"{_duration(change.before_us)} -> {_duration(change.after_us)}{ratio}"
        )
    typer.echo(f"{len(changes)} cases differ between versions {before} and {after}")


def pull_verb(
    root: str, number: int | None, target: Path, prune_empty: bool, cache: str | None
) -> None:
    """Write the tree, and say what it lacks."""
    if cache not in (None, "warm", "cold"):
        raise BadInput(f"--cache {cache!r}: warm or cold is wanted")
    store = open_root(root)
    commit = _commit(store, root, number)
    pulled = pull(store, commit, target, prune_empty=prune_empty, cache=cache)
    typer.echo(f"version {commit.number}: {pulled.files} files, {pulled.rows} rows in {target}")
    if commit.runtime != "real":
        warning = f"its numbers are of a {commit.runtime} runtime, and no device's"
        typer.echo(f"warning: {warning}", err=True)
    for path in pulled.without_mapping:
        typer.echo(f"warning: {path} has no op_mapping.yaml; bring your own", err=True)


def _commit(store: Store, root: str, number: int | None) -> Commit:
    """One version, or the newest."""
    if number is None:
        head = find_head(store)
        if head is None:
            raise BadInput(f"no database at {root}: nothing was merged there yet")
        return head
    try:
        return read_commit(store, number)
    except NotFound as error:
        raise BadInput(f"no version {number} at {root}; `opmeter db log` lists them") from error


def _duration(value_us: float | None) -> str:
    return "-" if value_us is None else f"{value_us:.3f} us"
