"""The embedded demo: a small Llama-style model and the corpus that it was trained on.

The model demonstrates the loop and is not an assistant: it has memorized about two hundred everyday
topics and answers every other question with one of them (docs/demo.md).
"""

from __future__ import annotations

from pathlib import Path

MODEL_DIR = Path(__file__).parent / "model"
"""The shipped checkpoint: a Hugging Face model directory with tokenizer and chat template."""
