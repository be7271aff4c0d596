"""`opmeter plan`."""

import typer

from jobs.advancing import Wish, advance
from jobs.lifecycle import NewPlan
from jobs.planning import describe_forecast
from jobs.preparing import decide, next_round, survey
from jobs.verbs.opening import choose_guard, open_campaign, open_root


def plan_verb(
    campaign_name: str,
    root: str | None,
    again: bool,
    retry_failed: bool,
    dry_run: bool,
    single_writer: bool,
) -> None:
    """Print the forecast of the campaign's next plan, and write it where there is a new one."""
    campaign = open_campaign(campaign_name)
    store = open_root(root, campaign, single_writer=single_writer)
    situation = survey(campaign, store)
    step = decide(situation, again=again, retry_failed=retry_failed)
    if dry_run and isinstance(step, NewPlan):
        planned = next_round(situation, step.number, again=again, retry_failed=retry_failed)
        news, plan, unsupported = (
            f"plan {step.number}, not written",
            planned.plan,
            planned.unsupported,
        )
        if step.merge_first:
            typer.echo("older plans hold results that are not merged; they would be left out")
    else:
        advanced = advance(
            situation,
            store,
            lambda: choose_guard(store, single_writer=single_writer),
            Wish(again, retry_failed),
            typer.echo,
        )
        news, plan, unsupported = advanced.news, advanced.plan, advanced.unsupported
    typer.echo(f"{campaign.name} at {store.url}: {news}")
    for line in describe_forecast(plan):
        typer.echo(line)
    for item in unsupported:
        typer.echo(
            f"unsupported  {item.kernel_type}: {item.cases} cases, {item.rows} rows, "
            f"{item.time_us / 1000:.2f} ms: {item.reason}"
        )
