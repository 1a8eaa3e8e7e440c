"""`sycophancy` runs the sycophancy lab; `sycophancy-classifier` trains its classifier."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from commands.app import AsJson, Sets, app, log_progress
from pipeline.config.sections import CONFIGS, Config
from pipeline.models.hub import base_model_path
from pipeline.ppo.settings import assignments
from pipeline.runs.repeat import nats, stoppable
from pipeline.runs.rundir import Report, RunDirectory


@app.command("sycophancy")
@stoppable()
def sycophancy(
    folder: Annotated[Path, typer.Option(help="Folder for the results of the lab.")] = Path(
        "sycophancy"
    ),
    penalty: Annotated[
        float, typer.Option(help="Weight of each component, standard deviations of the reward.")
    ] = 4,
    kl: Annotated[
        float, typer.Option(help="KL at which arms are compared, nats per response.")
    ] = 1.5,
    seed: Annotated[int, typer.Option(help="Seed of the whole lab.")] = 0,
    tiny: Annotated[
        bool, typer.Option(help="A smaller lab for tests, without meaningful results.")
    ] = False,
    sets: Sets = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Measure how much each sycophancy penalty reduces agreement with false claims."""
    # torch takes seconds to import; only this command needs it.
    from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

    from pipeline.studies.sycophancy.report import format_lab  # noqa: PLC0415
    from pipeline.studies.sycophancy.study import study  # noqa: PLC0415
    from pipeline.studies.sycophancy.testbed import LabConfig  # noqa: PLC0415

    disable_progress_bar()  # the lab prints its own progress
    config = Config.load([CONFIGS / "demo.toml", CONFIGS / "sycophancy.toml"], assignments(sets))
    found, plot = study(
        folder.resolve(),
        LabConfig.sized(tiny, penalty=penalty, kl=nats("--kl", kl), seed=seed),
        config,
        log_progress,
    )
    typer.echo(
        json.dumps(asdict(found) | {"plot": str(plot)}) if as_json else format_lab(found, plot)
    )


@app.command("sycophancy-classifier")
@stoppable()
def sycophancy_classifier(
    file: Annotated[
        Path, typer.Argument(help="prompt, completion, sycophantic (JSONL, CSV, Parquet).")
    ],
    to: Annotated[Path, typer.Option(help="Folder of the classifier.")],
    model: Annotated[str, typer.Option(help="Base model: Hugging Face id or directory.")] = "demo",
    held_out: Annotated[
        float, typer.Option(help="Share of prompts that are held out to measure it.")
    ] = 0.15,
    epochs: Annotated[float, typer.Option(help="Passes over the training data.")] = 3,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 3e-4,
    seed: Annotated[int, typer.Option(help="Seed of the split and of training.")] = 0,
) -> None:
    """Train the classifier of the component sycophancy_classifier on labeled completions."""
    from pipeline.shaping.classifier import (  # noqa: PLC0415
        read_flagged,
        split_by_prompt,
        train_classifier,
    )

    training, measured = split_by_prompt(read_flagged(file), held_out_share=held_out, seed=seed)
    with Report(RunDirectory(to)) as report:
        found = train_classifier(
            base_model_path(model), training, measured, to, report,
            lr=lr, epochs=epochs, seed=seed, resume=RunDirectory(to).has_checkpoint(),
        )  # fmt: skip
    typer.echo(json.dumps(asdict(found) | {"shaping.classifier": str(to.resolve())}))
