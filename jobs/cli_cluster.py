"""The verbs of a cluster, declared: launch, controller, work, cancel, pause, logs, stack."""

import sys
from typing import Annotated

import typer

NamespaceOption = Annotated[
    str | None, typer.Option(help="the namespace of the workers  [that of this pod or context]")
]
RootOption = Annotated[
    str | None,
    typer.Option(help="the store, as this machine reaches it  [as pods reach it]"),
]


def launch(
    campaign: Annotated[str, typer.Argument(help="a campaign.yaml, or quickstart")],
    image: Annotated[str, typer.Option(help="the workers' image, by digest")],
    store: Annotated[str, typer.Option(help="the store, as pods reach it: s3:// or file:///store")],
    controller_image: Annotated[
        str, typer.Option(help="the image of merges, without torch  [the workers']")
    ] = "",
    site: Annotated[
        str, typer.Option(help="the machines: a bundled profile, or a YAML file")
    ] = "cpu",
    namespace: NamespaceOption = None,
    store_secret: Annotated[
        str, typer.Option(help="a Secret of the files credentials and config")
    ] = "",
    store_claim: Annotated[str, typer.Option(help="a volume claim for file:///store")] = "",
    site_packages: Annotated[
        str, typer.Option(help="a read-only volume claim that holds torch")
    ] = "",
    pull_policy: Annotated[
        str, typer.Option(help="IfNotPresent, Always or Never")
    ] = "IfNotPresent",
    merge_memory: Annotated[
        str, typer.Option(help="what a merge may take: it holds the rows of the database")
    ] = "8Gi",
    single_writer: Annotated[bool, typer.Option("--single-writer")] = False,
    allow_unpinned: Annotated[
        bool, typer.Option("--allow-unpinned", help="take an NPU image without a digest")
    ] = False,
    root: RootOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="print the objects and create none")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="be the controller until it is merged")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="measure all of it once more")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="measure what has no good answer once more")
    ] = False,
) -> None:
    """Start a campaign on a cluster: upload its cases, and apply its ConfigMap.

    A controller in the cluster does the rest; with --watch this command is one.
    """
    from jobs.advancing import Wish
    from jobs.deployment import Deployment
    from jobs.verbs.launch import launch_verb

    deployment = Deployment(
        namespace=namespace or "",
        image=image,
        controller_image=controller_image or image,
        root=store,
        store_secret=store_secret,
        store_claim=store_claim,
        site_packages=site_packages,
        single_writer=single_writer,
        pull_policy=pull_policy,
        merge_memory=merge_memory,
    )
    code = launch_verb(
        campaign,
        site,
        deployment,
        root,
        dry_run=dry_run,
        watch=watch,
        unpinned=allow_unpinned,
        wish=Wish(again=again, retry_failed=retry_failed),
    )
    raise typer.Exit(code)


def controller(
    namespace: NamespaceOption = None,
    metrics_port: Annotated[int, typer.Option(help="for Prometheus; 0 for none")] = 9400,
    interval: Annotated[float, typer.Option(help="seconds between two looks")] = 5.0,
) -> None:
    """Move every campaign of a namespace on, for ever: what runs in the cluster."""
    from jobs.verbs.controller import controller_verb

    raise typer.Exit(controller_verb(namespace, metrics_port, interval))


def work() -> None:
    """Do the work of one index of a wave: what runs in a worker pod."""
    from jobs.init import run_as_init
    from jobs.pod import work_in_pod

    sys.exit(run_as_init(work_in_pod))


def cancel(
    campaign: Annotated[str, typer.Argument(help="the campaign's name")],
    namespace: NamespaceOption = None,
) -> None:
    """Take a campaign off the cluster. What is committed stays; launching it again goes on."""
    from jobs.verbs.controller import cancel_verb

    cancel_verb(campaign, namespace)


def pause(
    campaign: Annotated[str, typer.Argument(help="the campaign's name")],
    resume: Annotated[bool, typer.Option("--resume", help="go on")] = False,
    namespace: NamespaceOption = None,
) -> None:
    """Suspend a campaign's Jobs, or let them go on."""
    from jobs.verbs.controller import pause_verb

    pause_verb(campaign, namespace, on=not resume)


def logs(
    shard: Annotated[str, typer.Argument(help="the shard's id, or the beginning of it")],
    root: Annotated[
        str | None, typer.Option(help="the store  [./opmeter-data, or that of the cluster]")
    ] = None,
    campaign: Annotated[str | None, typer.Option(help="of this campaign only")] = None,
    namespace: NamespaceOption = None,
) -> None:
    """Print what the attempts at a shard logged, and its pods where they left nothing."""
    from jobs.verbs.logs import logs_verb

    logs_verb(shard, root, campaign, namespace)


def stack(
    backend: Annotated[str, typer.Option(help="npu, cuda or cpu")] = "npu",
    root: Annotated[str | None, typer.Option(help="also look whether this store answers")] = None,
    device: Annotated[
        str | None, typer.Option(help="the NPU's name, where its chip may have several")
    ] = None,
    limit: Annotated[float, typer.Option(help="give up after so many seconds; 0 for never")] = 0.0,
) -> None:
    """Print the stack of this machine as JSON, in one line."""
    from jobs.verbs.stack import stack_verb

    stack_verb(backend, root, device, limit)


def register(app: typer.Typer) -> None:
    """Add these verbs to the command."""
    for verb in (launch, controller, work, cancel, pause, logs, stack):
        app.command()(verb)
