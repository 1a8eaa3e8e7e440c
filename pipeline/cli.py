"""The commands of studies: training runs outside the loop, compared with each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline import sweep
from pipeline.lab.cli import add_lab_commands
from pipeline.settings import assignments


def add_study_commands(app: typer.Typer) -> None:
    """Add `sweep` and the sycophancy lab's commands."""
    add_lab_commands(app)

    @app.command("sweep")
    def sweep_command(
        kl_weight: Annotated[str, typer.Option(help="The βs to try, as in 0,0.02,0.05,0.2.")],
        workspace: Annotated[Path, typer.Option(help="The workspace.")] = Path("workspace"),
        kl_budget: Annotated[float, typer.Option(help="Nats a response that you would spend.")] = 5,
        name: Annotated[str, typer.Option(help="Folder under WORKSPACE/sweeps.")] = "kl_weight",
        sets: Annotated[list[str], typer.Option("--set", help="A setting; repeatable.")] = [],  # noqa: B006
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Repeat the newest PPO run at several KL weights: one plot of reward against KL."""
        curves = sweep.sweep(
            workspace.resolve(),
            betas(kl_weight),
            name=name,
            overrides=assignments(sets),
            progress=lambda line: typer.echo(line, err=True),
        )
        found = sweep.summary(curves, kl_budget)
        plot = sweep.write_report(workspace.resolve() / "sweeps" / name, curves, found)
        typer.echo(json.dumps(found | {"plot": str(plot)}) if as_json else readable(found, plot))


def betas(text: str) -> list[float]:
    """``0,0.02,0.2`` as numbers, each once."""
    try:
        found = list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise ValueError(f"--kl-weight {text} must be numbers, as in 0,0.02,0.05,0.2") from None
    return found


def readable(found: dict[str, Any], plot: Path) -> str:
    """The table, samples and plot of a sweep for people."""
    budget = found["kl_budget"]
    lines = [f"{'β':>8}  {'reward':>8}  {'KL':>7}  {'gain, sd':>8}  reward within {budget:g} nats"]
    for row in found["runs"]:
        within = row["reward_within_budget"]
        lines.append(
            f"{row['kl_weight']:>8g}  {row['reward']:>8.3f}  {row['kl']:>7.2f}  {row['gain']:>8.2f}  "
            + ("never so near" if within is None else f"{within:.3f}")
            + ("  ← spends the budget best" if row["kl_weight"] == found["best"] else "")
            + ("  (the reference is unmoved)" if row["unmoved"] else "")
        )
    for row in found["runs"]:
        lines.append(f"\nβ = {row['kl_weight']:g} at its end:")
        lines += [f"  [{s['reward']:+.2f}, KL {s['kl']:.1f}] {s['text']}" for s in row["samples"]]
    return "\n".join([*lines, f"\n{plot}"])
