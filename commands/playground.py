"""`launch.py ask`: a prompt to several models of the workspace, as in the playground."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from commands.app import DEFAULT, AsJson, Workspace, app, show
from commands.studio import connect


@app.command("ask")
def ask_command(
    prompt: Annotated[str, typer.Argument(help="The user's message.")],
    system: Annotated[str, typer.Option(help="A system message before it.")] = "",
    model: Annotated[
        list[str],
        typer.Option(
            help="A model to ask, e.g. policy-2; repeatable. By default SFT and the two newest policies."
        ),
    ] = [],  # noqa: B006 (typer copies it)
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling; 1 disables it.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(help="Tokens of a reply, at most.")] = 256,
    seed: Annotated[int | None, typer.Option(help="By default another one each time.")] = None,
    send: Annotated[
        bool,
        typer.Option("--send", help="Send the replies of two models to the annotators, as a pair."),
    ] = False,
    workspace: Workspace = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Ask several models the same prompt; print their replies, rewards and KL to SFT."""
    messages = [{"role": "user", "content": prompt}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    with connect(workspace) as target:
        found = target.call(
            "ask",
            messages=messages,
            models=model,
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            seed=seed,
            send=send,
        )
    if as_json:
        show(found, as_json)
    else:
        typer.echo("\n".join(_lines(found)))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The replies one below the other, each under a line with its figures."""
    for reply in found["replies"]:
        if reply["error"]:
            yield f"{reply['model']}: {reply['error']}\n"
            continue
        figures = {"reward": reply["reward"], "audit reward": reply["audit"], "KL": reply["kl"]}
        shown = [f"{name} {value:.2f}" for name, value in figures.items() if value is not None]
        shown.append(f"{reply['tokens']} tokens")
        cut = ", cut off" if reply["finish_reason"] == "length" else ""
        yield f"{reply['model']}: {', '.join(shown)}{cut}"
        yield from (f"    {line}" for line in reply["text"].strip().splitlines())
        if reply["no_tokens"]:
            yield f"  ({reply['no_tokens']})"
        yield ""
    yield f"seed {found['seed']}, rewards by {found['reward'] or 'no model'}"
    if sent := found["sent"]:
        learned = (
            "" if sent["learned_from"] else "; no model learns from it (held-out or audit prompt)"
        )
        yield f"sent to the annotators as {sent['id']}{learned}"
