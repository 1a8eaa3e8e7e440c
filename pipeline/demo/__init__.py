"""The embedded demo: a small Llama-style model and the corpus that it was trained on.

It is a demo of the loop, not an assistant: it memorises some two hundred everyday topics and
answers anything else with one of them.  `docs/demo.md` tells the whole story.
"""

from __future__ import annotations

from pathlib import Path

MODEL_DIR = Path(__file__).parent / "model"
"""The shipped checkpoint: a Hugging Face model directory with tokenizer and chat template."""
