"""`opmeter plan`."""

import typer

from jobs.lifecycle import NewPlan
from jobs.planning import describe_forecast
from jobs.preparing import decide, next_round, survey, write
from jobs.verbs.opening import open_campaign, open_root


def plan_verb(
    campaign_name: str, root: str | None, again: bool, retry_failed: bool, dry_run: bool
) -> None:
    """Print the forecast of the campaign's next plan, and write it where there is a new one."""
    campaign = open_campaign(campaign_name)
    store = open_root(root, campaign)
    situation = survey(campaign, store)
    step = decide(situation, again=again, retry_failed=retry_failed)
    if not isinstance(step, NewPlan):
        typer.echo(f"plan {step.plan.number} of {campaign.name} stands ({store.url})")
        _print(describe_forecast(step.plan))
        return
    planned = next_round(situation, step.number, again=again, retry_failed=retry_failed)
    if not dry_run:
        write(store, situation, planned)
    written = "not written" if dry_run else f"written to {store.url}"
    typer.echo(f"plan {planned.plan.number} of {campaign.name}, {written}")
    _print(describe_forecast(planned.plan))
    for item in planned.unsupported:
        typer.echo(
            f"unsupported  {item.kernel_type}: {item.cases} cases, {item.rows} rows, "
            f"{item.time_us / 1000:.2f} ms: {item.reason}"
        )


def _print(lines: list[str]) -> None:
    for line in lines:
        typer.echo(line)
