"""The demo's corpus: hand-written topics, ways to ask about them and styles of answers.

    topics_*.toml ──┬─ ask, name ─▶ phrasings (carriers.toml, noise.toml) ─▶ a question ─┐
                    └─ answer, tip, … ─▶ styles (styles.toml) ─▶ a response ─────────────┴▶ row

`examples` are the rows of supervised fine-tuning.  `prompts` are shipped with the demo for PPO
(train), evaluation (held-out) and audits.  No row of `examples` contains one of these prompts, and
held-out and audit prompts use carriers and paraphrases that are not in the training data.  Uses
only the standard library.
"""

from __future__ import annotations

from pipeline.demo.corpus.rows import examples
from pipeline.demo.corpus.shipped import ShippedPrompt, prompts, shipped_prompts, topic_of
from pipeline.demo.corpus.topic import FILES, Topic, topics

__all__ = [
    "FILES",
    "ShippedPrompt",
    "Topic",
    "examples",
    "prompts",
    "shipped_prompts",
    "topic_of",
    "topics",
]
