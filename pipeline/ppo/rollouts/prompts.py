"""The order in which a run draws its prompts."""

from typing import Any

import torch


class PromptSampler:
    """Draws prompt indices in shuffled rounds; a round has each prompt once.

    A batch may span several rounds.
    """

    def __init__(self, prompts: int, generator: torch.Generator) -> None:
        self.prompts = prompts
        self.generator = generator
        self.order: list[int] = []
        self.cursor = 0

    def draw(self, count: int) -> list[int]:
        drawn: list[int] = []
        while len(drawn) < count:
            if self.cursor == len(self.order):
                self.order = torch.randperm(self.prompts, generator=self.generator).tolist()
                self.cursor = 0
            taken = self.order[self.cursor : self.cursor + count - len(drawn)]
            self.cursor += len(taken)
            drawn += taken
        return drawn

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order, "cursor": self.cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.cursor = list(state["order"]), state["cursor"]
