"""The `opmeter` command: thin verbs, no logic.

A verb imports its body when it runs, so that `opmeter --help` loads neither pandas nor boto3.
"""

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from collector import __version__
from collector.errors import BadInput, OpmeterError
from jobs import cli_cluster, cli_database

FAILED, BAD_INPUT = 1, 2

app = typer.Typer(
    name="opmeter",
    help="Measures every operator an LLM runs, and keeps the numbers in one versioned database.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(cli_database.app, name="db")
app.command("pull")(cli_database.pull)

CampaignArgument = Annotated[
    str, typer.Argument(help="a campaign.yaml, or the name of a bundled campaign: quickstart")
]
RootOption = Annotated[
    str | None,
    typer.Option(help="the store: a folder, file:///path or s3://bucket/prefix  [./opmeter-data]"),
]
SingleWriterOption = Annotated[
    bool,
    typer.Option(
        "--single-writer", help="nobody else merges, and the store cannot tell writers apart"
    ),
]
SupersedeOption = Annotated[
    bool,
    typer.Option("--supersede-stack", help="let this stack show where a version holds another"),
]
DatabasePathOption = Annotated[Path | None, typer.Option(help="the version directory of a tree")]
DeviceOption = Annotated[str | None, typer.Option(help="instead: the device ...")]
VllmOption = Annotated[str, typer.Option(help="... and the versions of its stack")]
VersionOption = Annotated[str, typer.Option()]
RanksOption = str | None  # of an operator that needs several ranks: known, and refused so far


@app.callback(invoke_without_command=True)
def opmeter(
    version: Annotated[bool, typer.Option("--version", help="print the version")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="say more on the way")] = False,
) -> None:
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
    )
    if version:
        typer.echo(f"opmeter {__version__}")
        raise typer.Exit


@app.command()
def run(
    campaign: CampaignArgument,
    root: RootOption = None,
    again: Annotated[bool, typer.Option("--again", help="measure everything once more")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="measure what failed once more")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="exit 1 where a case has no duration")
    ] = False,
    single_writer: SingleWriterOption = False,
    supersede_stack: SupersedeOption = False,
) -> None:
    """Plan a campaign, measure it on this machine and merge it into the database.

    Interrupted, it continues where it was when it is run again.
    """
    from jobs.verbs.run import run_verb

    raise typer.Exit(
        run_verb(campaign, root, again, retry_failed, strict, single_writer, supersede_stack)
    )


@app.command()
def plan(
    campaign: CampaignArgument,
    root: RootOption = None,
    again: Annotated[bool, typer.Option("--again", help="plan everything once more")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="plan what failed once more")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the forecast and write nothing")
    ] = False,
    single_writer: SingleWriterOption = False,
) -> None:
    """Forecast a campaign and write its plan, which is never changed afterwards."""
    from jobs.verbs.plan import plan_verb

    plan_verb(campaign, root, again, retry_failed, dry_run, single_writer)


@app.command()
def merge(
    campaign: Annotated[str, typer.Argument(help="the campaign's name or its file")],
    root: RootOption = None,
    plan: Annotated[list[int] | None, typer.Option(help="these plans only  [all]")] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="publish what there is")
    ] = False,
    single_writer: SingleWriterOption = False,
    supersede_stack: SupersedeOption = False,
    lease: Annotated[
        str | None,
        typer.Option(help="the store cannot tell writers apart: take turns in this namespace"),
    ] = None,
) -> None:
    """Publish what a campaign's plans have committed as the next version of the database."""
    from jobs.verbs.merge import merge_verb

    raise typer.Exit(
        merge_verb(campaign, root, plan or [], allow_missing, single_writer, supersede_stack, lease)
    )


@app.command()
def status(
    campaign: Annotated[
        str | None, typer.Argument(help="one campaign, by its name or its file  [all]")
    ] = None,
    root: RootOption = None,
    namespace: Annotated[
        str | None, typer.Option(help="where its Jobs run, if on a cluster  [the context's]")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="look again and again, until it is merged")
    ] = False,
) -> None:
    """Say how far campaigns are, what failed, and what they wait for."""
    from jobs.verbs.status import status_verb

    status_verb(campaign, root, namespace, watch=watch)


@app.command()
def parse(
    profiling_path: Annotated[
        list[Path] | None, typer.Option(help="a profile: a file or a folder")
    ] = None,
    bundled: Annotated[
        str | None, typer.Option(help="instead: a sample that comes along: quickstart")
    ] = None,
    database_path: DatabasePathOption = None,
    device: DeviceOption = None,
    vllm_version: VllmOption = "",
    torch_version: VersionOption = "",
    cann_version: VersionOption = "",
    group_by: Annotated[
        str, typer.Option(help="identity, or shapes as the first design had it")
    ] = "identity",
    skip_bad_rows: Annotated[
        bool, typer.Option("--skip-bad-rows", help="list bad rows and go on")
    ] = False,
) -> None:
    """Turn profiles into a tree of CSVs, one per kernel type."""
    from jobs.verbs.parse import parse_verb

    versions = (vllm_version, torch_version, cann_version)
    parse_verb(
        profiling_path or [], bundled, database_path, device, versions, group_by, skip_bad_rows
    )


@app.command()
def microbench(
    more: Annotated[
        list[str] | None, typer.Argument(metavar="KERNEL", help="further kernel types")
    ] = None,
    database_path: DatabasePathOption = None,
    device: DeviceOption = None,
    vllm_version: VllmOption = "",
    torch_version: VersionOption = "",
    cann_version: VersionOption = "",
    prof_path: Annotated[
        list[Path] | None,
        typer.Option(help="measure nothing: take what a profiler has written (PROF_..., a folder)"),
    ] = None,
    op: Annotated[
        list[str] | None,
        typer.Option("--op", "--ops", "--kernel-list", help="only these kernel types  [all]"),
    ] = None,
    repeat_count: Annotated[
        int | None,
        typer.Option(
            min=1,
            envvar="MSMODELING_OP_REPLAY_REPEAT_COUNT",
            help="repeats of each case  [as many as a second pays for]",
        ),
    ] = None,
    update_mode: Annotated[
        str, typer.Option(help="all, or missing-only: rows without any duration")
    ] = "all",
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="stop at the first case that fails, with exit 1")
    ] = False,
    prune_empty_duration_rows: Annotated[
        bool,
        typer.Option("--prune-empty-duration-rows", help="remove rows without any duration"),
    ] = False,
    backend: Annotated[str | None, typer.Option(help="npu, cpu or cuda  [npu]")] = None,
    ep_size: Annotated[RanksOption, typer.Option("--dispatch-ffn-combine-ep-size")] = None,
    nproc: Annotated[RanksOption, typer.Option("--dispatch-ffn-combine-nproc-per-node")] = None,
    nnodes: Annotated[RanksOption, typer.Option("--dispatch-ffn-combine-nnodes")] = None,
    node_rank: Annotated[RanksOption, typer.Option("--dispatch-ffn-combine-node-rank")] = None,
    master_addr: Annotated[RanksOption, typer.Option("--dispatch-ffn-combine-master-addr")] = None,
    master_port: Annotated[RanksOption, typer.Option("--dispatch-ffn-combine-master-port")] = None,
) -> None:
    """Measure the rows of a tree on this machine, or take their durations from a profile."""
    from jobs.verbs.microbench import microbench_verb

    ranks = {
        "--dispatch-ffn-combine-ep-size": ep_size,
        "--dispatch-ffn-combine-nproc-per-node": nproc,
        "--dispatch-ffn-combine-nnodes": nnodes,
        "--dispatch-ffn-combine-node-rank": node_rank,
        "--dispatch-ffn-combine-master-addr": master_addr,
        "--dispatch-ffn-combine-master-port": master_port,
    }
    raise typer.Exit(
        microbench_verb(
            database_path,
            device,
            (vllm_version, torch_version, cann_version),
            prof_path or [],
            [*(op or []), *(more or [])],
            repeat_count,
            update_mode,
            fail_fast,
            prune_empty_duration_rows,
            backend,
            ranks,
        )
    )


@app.command("fia-backfill")
def fia_backfill(
    jsonl_path: Annotated[Path, typer.Option(help="runtime values, one JSON object a line")],
    csv_path: Annotated[
        Path | None, typer.Option(help="a FusedInferAttentionScore.csv; or instead its folder:")
    ] = None,
    database_path: DatabasePathOption = None,
    device: DeviceOption = None,
    vllm_version: VllmOption = "",
    torch_version: VersionOption = "",
    cann_version: VersionOption = "",
    output_path: Annotated[
        Path | None, typer.Option(help="write this file  [the file itself]")
    ] = None,
    tag: Annotated[
        str, typer.Option(help="what `Runtime metadata_completeness` says of the rows")
    ] = "runtime_values_dumped",
) -> None:
    """Join the values of a running model into the rows of fused attention."""
    from jobs.verbs.fia_backfill import fia_backfill_verb

    versions = (vllm_version, torch_version, cann_version)
    fia_backfill_verb(csv_path, database_path, device, versions, jsonl_path, output_path, tag)


@app.command()
def ops(
    kernel: Annotated[str | None, typer.Argument(help="one kernel type in full  [all]")] = None,
) -> None:
    """List the operators that can be replayed."""
    from jobs.verbs.ops import ops_verb

    ops_verb(kernel)


@app.command()
def doctor(
    root: RootOption = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="check a cluster, and the store as its pods reach it")
    ] = False,
    namespace: Annotated[
        str | None, typer.Option(help="with --cluster: where campaigns run  [the context's]")
    ] = None,
    site: Annotated[
        str | None, typer.Option(help="with --cluster: the machines  [those of a campaign there]")
    ] = None,
    together: Annotated[
        str | None,
        typer.Option(help="measure whether devices of this backend disturb each other: npu, cuda"),
    ] = None,
) -> None:
    """Check this machine and the store, and print what to do about what is wrong."""
    from jobs.verbs.doctor import doctor_cluster_verb, doctor_together_verb, doctor_verb

    if together is not None:
        raise typer.Exit(doctor_together_verb(together))
    code = doctor_cluster_verb(namespace, site, root) if cluster else doctor_verb(root)
    raise typer.Exit(code)


cli_cluster.register(app)


def main() -> None:
    """Run the command; turn what is raised on purpose into one line and an exit code."""
    try:
        app()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else FAILED if end.code else 0
    except BadInput as error:
        typer.echo(f"opmeter: {error}", err=True)
        code = BAD_INPUT
    except OpmeterError as error:
        typer.echo(f"opmeter: {error}", err=True)
        code = FAILED
    _end(code)


def _end(code: int) -> None:
    """End at once. Taking the interpreter down after everything is done was seen to abort, once in
    many runs on a loaded machine ("terminate called without an active exception", pyarrow 26.0.1),
    and then the exit code of a finished run is a lie."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it is gone
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
