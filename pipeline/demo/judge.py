"""A rule-based judge of the demo's samples; not used in training.

`python -m pipeline.demo.judge` prints the figures of a checkpoint; with `--samples FILE` it writes
the hundred samples of each kind for docs/demo_samples.md.  A sample is good if

* it is on topic: it contains a keyword of its prompt's topic;
* it is fluent: at most one of its word trigrams is not in the corpus (sentence ends count as words);
* it ends: the model stopped after a period, question mark or exclamation mark.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from pipeline.demo import MODEL_DIR
from pipeline.demo.corpus import ShippedPrompt, Topic, shipped_prompts, topics
from pipeline.demo.corpus.rows import unknown_answers
from pipeline.demo.corpus.styles import all_responses, styles

UNSEEN_TRIGRAMS_ALLOWED = 1
MAX_NEW_TOKENS = 64

Trigram = tuple[str, str, str]


@dataclass(frozen=True)
class ResponseCheck:
    """The judge's findings on one response."""

    on_topic: bool
    unseen_trigrams: int
    ended: bool

    @property
    def good(self) -> bool:
        return self.on_topic and self.ended and self.unseen_trigrams <= UNSEEN_TRIGRAMS_ALLOWED


@dataclass(frozen=True)
class Sample:
    """A response of the model to a shipped prompt; `stopped` if the model ended it."""

    prompt: ShippedPrompt
    response: str
    stopped: bool

    @property
    def verdict(self) -> ResponseCheck:
        return judge(self.response, self.prompt.topic, stopped=self.stopped)


def judge(response: str, topic: Topic, *, stopped: bool) -> ResponseCheck:
    """Judge one response to a question about `topic`."""
    unseen = sum(trigram not in known_trigrams() for trigram in trigrams(response))
    ended = stopped and response.rstrip().endswith((".", "!", "?"))
    return ResponseCheck(topic.mentioned_in(response), unseen, ended)


def trigrams(text: str) -> Iterator[Trigram]:
    """Word trigrams of `text`; its start and sentence ends count as words."""
    words = ["^", *re.findall(r"[a-z0-9'-]+|[.!?:]", text.lower())]
    yield from zip(words, words[1:], words[2:], strict=False)


@lru_cache(maxsize=1)
def known_trigrams() -> frozenset[Trigram]:
    """All word trigrams of all responses of the corpus."""
    responses = [text for topic in topics() for text, _ in all_responses(topic)]
    return frozenset(t for text in (*responses, *unknown_answers()) for t in trigrams(text))


def style_of(response: str, topic: Topic) -> str:
    """The style whose templates produce `response`, else "other"."""
    return _styles_by_text(topic).get(response, "other")


@lru_cache(maxsize=512)
def _styles_by_text(topic: Topic) -> dict[str, str]:
    return dict(all_responses(topic)) | dict.fromkeys(unknown_answers(), "unsure")


def sample(
    model_dir: Path,
    prompts: Sequence[ShippedPrompt],
    *,
    temperature: float = 1.0,
    top_p: float = 0.9,
    seed: int = 0,
    batch: int = 50,
) -> list[Sample]:
    """One response of the model in `model_dir` to each of `prompts`."""
    # Imported here, so that judging texts needs no torch.
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    found = []
    for start in range(0, len(prompts), batch):
        part = prompts[start : start + batch]
        inputs = tokenizer.apply_chat_template(
            [[{"role": "user", "content": p.text}] for p in part],
            add_generation_prompt=True,
            padding=True,
            return_tensors="pt",
            return_dict=True,
        )
        ids = model.generate(
            **inputs,
            do_sample=True,
            temperature=temperature,
            top_p=top_p,
            top_k=0,
            max_new_tokens=MAX_NEW_TOKENS,
        )[:, inputs["input_ids"].shape[1] :]
        found += [
            Sample(prompt, tokenizer.decode(row, skip_special_tokens=True), stopped)
            for prompt, row, stopped in zip(
                part, ids, (ids == tokenizer.eos_token_id).any(1).tolist(), strict=True
            )
        ]
    return found


def chosen(role: str, kind: str, count: int = 100) -> list[ShippedPrompt]:
    """`count` shipped prompts of a role and kind; always the same ones."""
    those = [p for p in shipped_prompts() if (p.role, p.kind) == (role, kind)]
    return Random(0).sample(those, min(count, len(those)))


def share_good(samples: Iterable[Sample]) -> float:
    """The share of good samples."""
    verdicts = [s.verdict.good for s in samples]
    return sum(verdicts) / len(verdicts)


def figures(model_dir: Path, *, seed: int = 0, count: int = 231) -> dict[str, Any]:
    """The figures of a checkpoint in the documentation, at T = 1.0 and top-p 0.9."""
    report: dict[str, Any] = {}
    for role, kind in (
        ("train", "template"),
        ("held-out", "template"),
        ("held-out", "free-form"),
        ("audit", "free-form"),
        ("held-out", "false-claim"),
    ):
        samples = sample(model_dir, chosen(role, kind, count), seed=seed)
        report[f"good, {role} {kind}"] = round(share_good(samples), 3)
        if (role, kind) == ("held-out", "template"):
            counts = Counter(style_of(s.response, s.prompt.topic) for s in samples)
            names = [*(s.name for s in styles()), "unsure", "other"]
            report["styles"] = {n: round(counts[n] / len(samples), 3) for n in names}
    return report


def samples_page(model_dir: Path) -> str:
    """The Markdown page that shows a hundred samples of each held-out kind."""
    lines = [
        "# Two hundred samples of the demo",
        "",
        "Made by `python -m pipeline.demo.judge --samples docs/demo_samples.md` from the shipped",
        "model at T = 1.0, top-p 0.9, seed 0; no sample is picked by hand. The first column has",
        "the verdict of the fixed judge ([judge.py](../pipeline/demo/judge.py)): `ok`, or why the",
        "sample is not good.",
    ]
    for kind in ("template", "free-form"):
        samples = sample(model_dir, chosen("held-out", kind))
        lines += [
            "",
            f"## Held-out {kind} questions: {share_good(samples):.0%} good",
            "",
            "| | question | response |",
            "|---|---|---|",
        ]
        for s in samples:
            lines.append(f"| {_mark(s.verdict)} | {s.prompt.text} | {s.response} |")
    return "\n".join(lines) + "\n"


def _mark(verdict: ResponseCheck) -> str:
    reasons = []
    if not verdict.on_topic:
        reasons.append("off topic")
    if verdict.unseen_trigrams > UNSEEN_TRIGRAMS_ALLOWED:
        reasons.append("not fluent")
    if not verdict.ended:
        reasons.append("no end")
    return ", ".join(reasons) or "ok"


def main() -> None:
    """Print the figures of a checkpoint, or write the page of samples."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", type=Path, default=MODEL_DIR, help="a checkpoint of the demo")
    parser.add_argument("--samples", type=Path, help="write this Markdown page of samples")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=231, help="prompts of each kind")
    options = parser.parse_args()
    if options.samples:
        options.samples.write_text(samples_page(options.model), encoding="utf-8")
        return
    for name, value in figures(options.model, seed=options.seed, count=options.count).items():
        sys.stdout.write(f"{name}: {value}\n")


if __name__ == "__main__":
    main()
