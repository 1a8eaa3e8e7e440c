"""A stand-in for OpenRLHF's trainer, which needs GPUs: it trains nothing.

It is called with the same command, reads the same files, calls the reward function, writes TensorBoard
files and saves a policy, as OpenRLHF 0.11.2 does.  The option ``--stand_in`` chooses what goes wrong.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.tensorboard import SummaryWriter
from transformers import AutoModelForCausalLM, AutoTokenizer


def options(arguments: list[str]) -> Any:
    assert arguments[:2] == ["-m", "openrlhf.cli.train_ppo_ray"], arguments[:2]
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name in (
        "actor.model_name_or_path", "data.prompt_dataset", "data.input_key", "data.label_key",
        "reward.remote_url", "ckpt.output_dir", "ckpt.path", "logger.tensorboard_dir",
        "logger.wandb.run_name",
    ):  # fmt: skip
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rollout.batch_size", type=int, required=True)
    parser.add_argument("--rollout.n_samples_per_prompt", type=int, required=True)
    parser.add_argument("--ckpt.load_enable", action="store_true")
    parser.add_argument("--stand_in", default="")
    found, _ = parser.parse_known_args(arguments[2:])
    return vars(found)


def main(arguments: list[str]) -> None:
    asked = options(arguments)
    if asked["stand_in"] == "crashes":
        say("(PPOTrainer pid=7, ip=10.0.0.1) \x1b[36mINFO\x1b[0m starting")
        raise RuntimeError("CUDA out of memory in rank 3")
    if asked["stand_in"] == "waits":
        time.sleep(600)
    train(asked)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def train(asked: dict[str, Any]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(asked["actor.model_name_or_path"])
    spec = importlib.util.spec_from_file_location("reward_func", asked["reward.remote_url"])
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = [
        json.loads(line) for line in Path(asked["data.prompt_dataset"]).read_text().splitlines()
    ]
    size, samples = asked["rollout.batch_size"], asked["rollout.n_samples_per_prompt"]
    folder = Path(asked["logger.tensorboard_dir"]) / asked["logger.wandb.run_name"]
    writer = SummaryWriter(str(folder))
    first = 2 if asked["ckpt.load_enable"] else 1
    for step in range(first, len(rows) // size + 1):
        logged: dict[str, list[float]] = {}
        for row in rows[(step - 1) * size : step * size] * samples:
            prompt, label = row[asked["data.input_key"]], row[asked["data.label_key"]]
            ids = tokenizer(text=prompt, add_special_tokens=False)["input_ids"]
            response = [*tokenizer(f"z{step}")["input_ids"], tokenizer.eos_token_id]
            query = tokenizer.decode(ids + response, skip_special_tokens=False)
            found = module.reward_func([query], [prompt], [label])
            for name, value in {"reward": found["rewards"], **found["extra_logs"]}.items():
                logged.setdefault(name, []).append(value.flatten()[0].item())
        status = {name: sum(values) / len(values) for name, values in logged.items()}
        status |= {
            "kl": 0.01 * step, "return": 1.5, "policy_loss": 0.1, "ppo_kl": 0.2,
            "actor_lr": 1e-6, "rollout/truncated_rate": 0.25, "rollout/response_length_mean": 3.0,
        }  # fmt: skip
        for name, value in status.items():
            writer.add_scalar(f"train/{name}", value, step)
        writer.flush()
        say(f"(PPOTrainer pid=7) INFO ppo_trainer.py:1] Global step {step}: {status}")
        if step == 1:
            (Path(asked["ckpt.path"]) / "_actor").mkdir(parents=True)
        if step == 2 and asked["stand_in"] == "dies after a checkpoint":
            sys.exit("ray.exceptions.ActorDiedError: The actor died unexpectedly.")
    writer.close()
    model: Any = AutoModelForCausalLM.from_pretrained(
        asked["actor.model_name_or_path"], dtype=torch.bfloat16
    )
    with torch.no_grad():
        model.get_input_embeddings().weight += 1
    model.save_pretrained(asked["ckpt.output_dir"])
    tokenizer.save_pretrained(asked["ckpt.output_dir"])


if __name__ == "__main__":
    main(sys.argv[1:])
