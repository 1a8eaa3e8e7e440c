"""The commands of studies (comparisons of runs outside the loop), and judge and gate."""

from __future__ import annotations

import getpass
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from commands.app import DEFAULT, AsJson, Sets, Workspace, app, log_progress, show
from commands.studio import connect
from pipeline.loop.settings_view import check_unlocked
from pipeline.ppo.settings import assignments
from pipeline.promotion import gate
from pipeline.promotion import power as planning
from pipeline.promotion.model_board import format_board
from pipeline.runs.repeat import nats, stoppable
from pipeline.runs.study_folder import MAX_BETA, planned
from pipeline.simulation.judge import TIMEOUT, judge_all, load_judge
from pipeline.simulation.preference import load_gold
from pipeline.studies import compare, compare_report, study, sweep
from storage.analysis.intervals import NORMAL
from storage.gate_report import GateReport, ModelBoard, Standing
from storage.reports import from_json


@app.command("sweep")
@stoppable()
def sweep_command(
    kl_weight: Annotated[str, typer.Option(help="The values of β, for example 0,0.02,0.05,0.2.")],
    workspace: Workspace = DEFAULT,
    kl_budget: Annotated[
        float, typer.Option(help="KL that you would accept, nats per response.")
    ] = 5,
    name: Annotated[str, typer.Option(help="Folder under WORKSPACE/sweeps.")] = "kl_weight",
    sets: Sets = [],  # noqa: B006 (typer copies it)
    as_json: AsJson = False,
) -> None:
    """Repeat the newest PPO run at several KL weights, and plot reward against KL."""
    place = workspace.resolve()
    plan = {"kl_weight": betas(kl_weight), "kl_budget": nats("--kl-budget", kl_budget)}
    spec = planned(place, "sweep", name, plan, _policy_settings(sets))
    found, plot = study.run_sweep(place, spec, log_progress)
    typer.echo(
        json.dumps(asdict(found) | {"plot": str(plot)}) if as_json else format_sweep(found, plot)
    )


@app.command("compare")
@stoppable()
def compare_command(
    methods: Annotated[
        str, typer.Option(help="Methods to compare with SFT.")
    ] = "sft,best_of_n,ppo,dpo,rloo",
    workspace: Workspace = DEFAULT,
    kl: Annotated[float, typer.Option(help="KL at which methods are compared, nats.")] = 2,
    snapshots: Annotated[
        int, typer.Option(help="Policies kept during training, as points of a curve.", min=0)
    ] = 5,
    gold: Annotated[
        str | None, typer.Option(help="module:function, (prompt, response) -> float")
    ] = None,
    name: Annotated[str, typer.Option(help="Folder under WORKSPACE/compare.")] = "methods",
    sets: Sets = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Run each method on the inputs of the newest PPO run, and compare gold score, reward and KL."""
    place = workspace.resolve()
    plan = {
        "methods": compare.chosen_methods(methods),
        "kl": nats("--kl", kl),
        "snapshots": snapshots,
        "gold": gold,
    }
    if gold:
        load_gold(gold)  # refuses a name that cannot be imported before anything runs
    spec = planned(place, "compare", name, plan, _policy_settings(sets))
    found, plot = study.run_comparison(place, spec, log_progress)
    if as_json:
        typer.echo(json.dumps(asdict(found) | {"plot": str(plot)}))
    else:
        typer.echo(compare_report.format_comparison(found, plot))


def _policy_settings(sets: list[str]) -> dict[str, str]:
    """The assignments; InvalidSettings for one that the policy stage does not read.

    Those of the worker say where a study's runs run, and are the operator's to choose.
    """
    found = assignments(sets)
    check_unlocked([name for name in found if not name.startswith("worker.")], "policy")
    return found


@app.command("studies")
def studies_command(
    study: Annotated[
        str | None,
        typer.Argument(help="One study, as sweep-NAME, compare-NAME or retrain-NAME."),
    ] = None,
    workspace: Workspace = DEFAULT,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Stop it after the current step.")
    ] = False,
    go_on: Annotated[
        bool, typer.Option("--continue", help="Continue it in the background.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List studies (sweeps, comparisons, retrained reward models) with their runs; show, cancel or
    continue one."""
    if cancel and go_on:
        raise ValueError("give --cancel or --continue, not both")
    if study is None and (cancel or go_on):
        raise ValueError("--cancel and --continue belong to one study: give its id")
    with connect(workspace) as target:
        if cancel:
            target.call("studies.cancel", id=study)
        if go_on:
            target.call("studies.continue", id=study)
        if study is None:
            found = target.call("studies.list")
        else:
            found = target.call("studies.get", id=study)
    if as_json:
        show(found, as_json)
    elif cancel or go_on:
        doing = "stops after its current step" if cancel else "continues in the background"
        typer.echo(f"the study {study} {doing}")
    else:
        typer.echo(format_studies(found if isinstance(found, list) else [found]))


def format_studies(found: list[dict[str, Any]]) -> str:
    """Studies as groups of their runs."""
    lines = []
    for each in found:
        finished = sum(run["status"] == "succeeded" for run in each["runs"])
        state = f"{each['status']}, {finished} of {each['planned']} runs finished"
        doing = each["message"] or each["reason"] or ""
        lines.append(f"{each['id']}  {state}  (repeats {each['repeats']})" + f"  {doing}".rstrip())
        for run in each["runs"]:
            reward, kl = run["reward"], run["kl"]
            figures = "" if reward is None else f"  reward {reward:.3f}  KL {kl or 0:.2f}"
            lines.append(f"  {run['title']:<12} {run['status']:<10}{figures}")
        if each.get("plot"):
            lines.append(f"  {each['plot']}")
    return "\n".join(lines) or (
        "no studies yet; `launch.py sweep`, `launch.py compare` or `launch.py reward retrain` starts one"
    )


@app.command("judge")
@stoppable()
def judge_command(
    judge: Annotated[
        str, typer.Option(help='module:function, (prompt, left, right) -> "A", "B" or "tie"')
    ],
    workspace: Workspace = DEFAULT,
    name: Annotated[
        str | None, typer.Option(help="Name of the annotator; module:function by default.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Largest number of pairs to judge.", min=1)
    ] = None,
    both_orders: Annotated[
        bool,
        typer.Option(
            "--both-orders/--one-order",
            help="Ask twice with swapped sides, and count a contradiction as a tie; "
            "or ask once with random sides.",
        ),
    ] = True,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for one answer.")] = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Let a function judge the newest iteration's pairs, as an annotator of kind "model"."""
    function = load_judge(judge)
    with connect(workspace) as target:
        report = judge_all(
            target.call,
            function,
            name=name or judge,
            both_orders=both_orders,
            limit=limit,
            timeout=timeout,
            progress=log_progress,
        )
    found = asdict(report)
    lines = [f"{key}: {value}" for key, value in found.items() if value is not None]
    typer.echo(json.dumps(found) if as_json else "\n".join(lines))


@app.command("plan")
def plan_command(
    win_rate: Annotated[float, typer.Option(help="The true win rate to detect; ties count half.")],
    ties: Annotated[float, typer.Option(help="Share of judgments that are ties.")] = 0.0,
    power: Annotated[float, typer.Option(help="Probability of detecting it.")] = 0.8,
    per_prompt: Annotated[int, typer.Option(help="Judgments per prompt.")] = 1,
    correlation: Annotated[
        float, typer.Option(help="Correlation of two judgments of the same prompt.")
    ] = planning.CORRELATION,
    seed: Annotated[int, typer.Option(help="Seed of the simulated stopping times.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Compute how many judgments show that one policy is better than another."""
    scenario = planning.Scenario(
        win_rate=win_rate, ties=ties, per_prompt=per_prompt, correlation=correlation
    )
    found = planning.plan(scenario, power=power, seed=seed)
    typer.echo(json.dumps(asdict(found)) if as_json else planning.format_plan(found))


@app.command("gate")
def gate_command(
    workspace: Workspace = DEFAULT,
    override: Annotated[
        str | None, typer.Option(help="promote, block, or evidence to withdraw a ruling.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="The policy to show (default: all) or to rule on (default: the candidate)."
        ),
    ] = None,
    reason: Annotated[str, typer.Option(help="The reason; it stays in the history.")] = "",
    by: Annotated[
        str | None, typer.Option(help="Your name; by default your account on this machine.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show whether people prefer each policy to SFT, with the evidence and the leaderboard."""
    with connect(workspace) as target:
        if override:
            found = target.call(
                "gate.override",
                ruling=override, reason=reason, policy=policy, researcher=by or _account(),
            )  # fmt: skip
            text = gate.format_verdict(from_json(Standing, found))
        elif reason or by:
            raise ValueError("--reason and --by need --override promote or block")
        elif policy:
            standing = from_json(GateReport, target.call("gate")).standing(policy)
            found, text = asdict(standing), gate.format_verdict(standing)
        else:
            found = target.call("gate")
            text = gate.format_gate(from_json(GateReport, found))
    typer.echo(json.dumps(found) if as_json else text)


@app.command("leaderboard")
def leaderboard_command(
    workspace: Workspace = DEFAULT,
    category: Annotated[
        str | None, typer.Option(help="Only judgments on prompts of this category.")
    ] = None,
    anchor: Annotated[
        str | None,
        typer.Option(
            help="The model with the rating 0. Default: SFT, otherwise the model with the most "
            "judgments."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rank all models in the judgments, including those of imported judgments."""
    with connect(workspace) as target:
        found = target.call("leaderboard", anchor=anchor, category=category)
    typer.echo(json.dumps(found) if as_json else format_board(from_json(ModelBoard, found)))


@app.command("evidence")
def evidence_command(
    out: Annotated[Path, typer.Option(help="FILE.zip, outside the workspace.")],
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Write a package with which a reviewer recomputes every figure from the judgments."""
    with connect(workspace) as target:
        show(target.call("evidence", out=str(out.resolve())), as_json)


def _account() -> str:
    """The name of the account that runs the command; ValueError if it has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container that runs under a user id without an account
        raise ValueError("give your name with --by: this account has no name") from None


def betas(text: str) -> list[float]:
    """``0,0.02,0.2`` as numbers without duplicates; ValueError if one is not a valid β."""
    try:
        found = list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise ValueError(f"--kl-weight {text} must be numbers, as in 0,0.02,0.05,0.2") from None
    for weight in found:
        if not 0 <= weight <= MAX_BETA:
            raise ValueError(
                f"--kl-weight {text}: {weight:g} is not between 0 and {MAX_BETA:g}; β is the "
                "penalty per nat of KL, as in 0,0.02,0.05,0.2"
            )
    return found


def format_sweep(found: sweep.SweepReport, plot: Path) -> str:
    """The report of a sweep as text: table, samples and path of the plot."""
    budget = found.kl_budget
    lines = [f"{'β':>8}  {'reward':>8}  {'KL':>7}  {'gain, sd':>8}  reward within {budget:g} nats"]
    for row in found.runs:
        within = row.reward_within_budget
        lines.append(
            f"{row.kl_weight:>8g}  {row.reward:>z8.3f}  {row.kl:>z7.2f}  {row.gain:>z8.2f}  "
            + ("above budget" if within is None else f"{within:.3f}")
            + ("  ← best within the budget" if row.kl_weight == found.best else "")
            + ("  (did not move from the reference)" if row.unmoved else "")
        )
    lines.append(_verdict(found))
    for row in found.runs:
        lines.append(f"\nβ = {row.kl_weight:g} at its end:")
        lines += [f"  [{s.reward:+z.2f}, KL {s.kl:z.1f}] {s.text}" for s in row.samples]
    return "\n".join([*lines, f"\n{plot}"])


def _verdict(found: sweep.SweepReport) -> str:
    """The conclusion of the sweep in a sentence."""
    best, lead = found.best, found.lead
    if all(row.unmoved for row in found.runs):
        return (
            "\nno winner: with every β the policy stayed at the reference; train longer, raise "
            "ppo.lr or lower β"
        )
    if best is None:
        return f"\nno winner: no policy that moved stayed within {found.kl_budget:g} nats"
    if lead is None:
        return f"\nβ = {best:g} has no competitor"
    text = f"\nβ = {best:g} is {lead.by:.3f} ± {NORMAL * lead.error:.3f} above β = {lead.over:g}"
    return text if lead.by > NORMAL * lead.error else f"{text}: within noise"
