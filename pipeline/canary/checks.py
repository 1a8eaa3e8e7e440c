"""The checks of a canary, and which of them a model's answers pass.  Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.config.plugins import in_a_line, load_function
from storage.gate_records import CanaryResults, CheckResults, LostAnswer
from storage.records import Message, Prompt
from storage.wording import shortened

BUILT_IN = "pipeline.demo.canary:checks"
"""The canary of the embedded demo, which every researcher may name."""
MIN_PROMPTS = 40
"""With fewer prompts, one or two answers decide about a loss of five points."""
_LOST_SHOWN, _SHOWN_LENGTH = 3, 300
_MAX_NAME_LENGTH = 40


@dataclass(frozen=True)
class CanaryCheck:
    """A check of the answer to a fixed prompt.

    `name` says what it checks, such as "on topic"; pages show the share of answers that pass by
    name.  `prompt` is a user's message, or the messages of a chat that ends with the user's turn.
    `passes` receives the answer and returns whether it passes, always the same for the same answer.
    A prompt may have several checks: its answer passes if it passes all of them.
    """

    name: str
    prompt: str | Sequence[Message | Mapping[str, str]]
    passes: Callable[[str], bool]

    def __post_init__(self) -> None:
        if not (self.name.strip() and self.name.isprintable() and "/" not in self.name):
            raise ValueError(
                f"the name of a check must be printable, without a slash: {self.name!r}"
            )
        if len(self.name) > _MAX_NAME_LENGTH:
            raise ValueError(
                f"the check {self.name!r} has a name of more than {_MAX_NAME_LENGTH} characters"
            )


@dataclass(frozen=True)
class Canary:
    """The checks of the function `name`.

    `prompts` are all different; `numbers` has the number of the prompt of each check.
    """

    name: str
    checks: tuple[CanaryCheck, ...]
    prompts: tuple[tuple[Message, ...], ...]
    numbers: tuple[int, ...]

    def passed(self, answers: Sequence[str]) -> list[bool]:
        """Whether each check passes, from one answer to each prompt.

        ValueError for a check that raises an exception or returns anything but True and False.
        """
        rows = zip(self.checks, self.numbers, strict=True)
        return [_passes(check, answers[number]) for check, number in rows]

    def compared(
        self,
        policy: Sequence[bool],
        reference: Sequence[bool],
        *,
        answers: Sequence[str],
        allowed_loss: float,
    ) -> CanaryResults:
        """What a policy and SFT pass, from whether each check passes; `answers` are the policy's."""
        rows = list(zip(self.checks, self.numbers, policy, reference, strict=True))
        names = dict.fromkeys(check.name for check in self.checks)
        lost = [
            LostAnswer(
                check=check.name,
                prompt=shortened(self.prompts[number][-1].content, _SHOWN_LENGTH),
                answer=shortened(answers[number], _SHOWN_LENGTH),
            )
            for check, number, ours, theirs in rows
            if theirs and not ours
        ]
        return CanaryResults(
            function=self.name,
            allowed_loss=allowed_loss,
            checks=tuple(
                CheckResults(
                    name=name,
                    prompts=tuple(number for check, number, *_ in rows if check.name == name),
                    policy=_marks(ours for check, _, ours, _ in rows if check.name == name),
                    reference=_marks(theirs for check, *_, theirs in rows if check.name == name),
                )
                for name in names
            ),
            lost=tuple(lost[:_LOST_SHOWN]),
        )


def load_canary(name: str) -> Canary:
    """The canary of the function ``module:function``; ValueError says what is wrong with it."""
    function = load_function(name, what="gate.canary")
    try:
        listed: Any = list(function())
    except Exception as error:
        raise ValueError(f"gate.canary {name!r} raised {in_a_line(error)}") from error
    wrong = next((each for each in listed if not isinstance(each, CanaryCheck)), None)
    if wrong is not None:
        raise ValueError(
            f"gate.canary {name!r} must return CanaryCheck objects, and it returned {wrong!r:.80}"
        )
    try:
        prompts = [Prompt.make(check.prompt, role="held-out").messages for check in listed]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"gate.canary {name!r}: a prompt is wrong: {in_a_line(error)}") from error
    numbers = {prompt: n for n, prompt in enumerate(dict.fromkeys(prompts))}
    if len(numbers) < MIN_PROMPTS:
        raise ValueError(
            f"gate.canary {name!r} has {len(numbers)} different prompts; it needs at least "
            f"{MIN_PROMPTS}, so that one or two answers do not decide"
        )
    pairs = [(check.name, prompt) for check, prompt in zip(listed, prompts, strict=True)]
    if twice := next((pair for pair in pairs if pairs.count(pair) > 1), None):
        raise ValueError(
            f"gate.canary {name!r} has the check {twice[0]!r} twice for the prompt "
            f"{twice[1][-1].content[:80]!r}; give one of them another name"
        )
    return Canary(
        name=name,
        checks=tuple(listed),
        prompts=tuple(numbers),
        numbers=tuple(numbers[prompt] for prompt in prompts),
    )


def _passes(check: CanaryCheck, answer: str) -> bool:
    try:
        found: Any = check.passes(answer)
    except Exception as error:
        raise ValueError(
            f"gate.canary: the check {check.name!r} raised {in_a_line(error)} for the answer "
            f"{answer[:80]!r}"
        ) from error
    if not isinstance(found, bool):
        raise ValueError(
            f"gate.canary: the check {check.name!r} must return True or False, and it returned "
            f"{found!r:.80}"
        )
    return found


def _marks(passed: Any) -> str:
    return "".join("1" if each else "0" for each in passed)
