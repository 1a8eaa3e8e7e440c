"""Every stage on each model family: what is saved, and what plain transformers makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    GenerationConfig,
)

from pipeline.demo import corpus
from pipeline.models.generate import Response, Sampler
from pipeline.models.loading import load_causal_lm
from pipeline.models.text import ChatTokenizer, read_messages
from pipeline.ppo import ActorCritic, PPOConfig
from pipeline.ppo.checkpoint import list_checkpoints, load_checkpoint
from pipeline.ppo.network import token_stats
from pipeline.ppo.network.distributed import Processes
from pipeline.ppo.network.lora import with_lora
from pipeline.ppo.network.model import Setup, forward_at, weights_hash
from pipeline.ppo.network.packing import can_pack, last_states
from pipeline.ppo.network.quantized import quantize
from pipeline.ppo.network.token_stats import Tokens, chunked_stats, output_head
from pipeline.ppo.rollouts.backends import BuiltinSampler
from pipeline.ppo.rollouts.compiled import CompiledSampler
from pipeline.reward.scoring import RewardModel
from pipeline.runs.rundir import Job, RunDirectory
from tests.helpers.architectures import FAMILIES, WINDOW, Family
from tests.helpers.stage_inputs import (
    NAMES,
    give,
    make_job,
    make_judgments,
    make_prompts,
    rows_of,
)
from tests.helpers.worker_runs import events, events_metric, work

pytestmark = pytest.mark.slow  # half a minute a family
USUAL = {"llama3.2", "gemma2"}
"""Of the slow tests; all families are of the exhaustive ones."""
CPU = torch.device("cpu")
_MORE_ENDS = range(100, 160)
"""Ordinary tokens that end responses too, where rows should end at different times."""
TOKENS = 12
"""Tokens of the longest response."""
SETTINGS: dict[str, Any] = {
    "sft__epochs": 2,
    "sampling__max_new_tokens": TOKENS,
    "evaluate__max_new_tokens": TOKENS,
    "ppo__max_new_tokens": TOKENS,
    "ppo__max_prompt_tokens": 200,
    "ppo__updates": 12,
    "ppo__rollouts": 32,
    "ppo__minibatch": 8,
    "ppo__epochs": 2,
    "ppo__lr": 1e-2,
    "ppo__kl_weight": 0.0,
    "ppo__missing_eos_penalty": 0.0,
    "shaping__weights": {"tests.pipeline.stages.test_architectures:share_of_e": 1.0},
    "shaping__reward_weight": 0.0,
}
RANK = {"ppo__lora_rank": 4, "ppo__lr": 3e-2}
BITS = RANK | {"ppo__quantization": "nf4", "ppo__optimizer": "adamw_8bit"}


def share_of_e(text: str) -> float:
    """A rule that is easy to follow."""
    return 10 * text.count("e") / max(len(text), 20)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The run directories of a family's stages."""

    family: Family
    base: Path
    sft: RunDirectory
    reward: RunDirectory
    sampling: RunDirectory
    full: RunDirectory
    lora: RunDirectory
    qlora: RunDirectory
    evaluate: RunDirectory

    @property
    def saved(self) -> dict[str, Path]:
        """The models that are saved as causal LMs."""
        runs = {"sft": self.sft, "full": self.full, "lora": self.lora, "qlora": self.qlora}
        return {name: directory.model for name, directory in runs.items()}


@pytest.fixture(
    scope="module",
    params=[
        name if name in USUAL else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in FAMILIES
    ],
)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Every stage, run by the worker, on what the stage before has saved."""
    family, root = FAMILIES[request.param], tmp_path_factory.mktemp(request.param)
    base = family.save(root / "base")
    prompts = make_prompts(12)
    answers = corpus.shipped_prompts()[::10]
    rows = zip(make_prompts(60), answers, strict=False)
    examples = [row | {"response": answer.text} for row, answer in rows]
    sft = run(root, "sft", {"policy": base}, {"examples": examples})
    models: dict[str, Path] = {"policy": sft.model, "reference": sft.model}
    judged = {"judgments": make_judgments(48), "prompts": prompts[:4]}
    reward = run(root, "reward", models, judged, reward__held_out_share=0.25)
    plan = {"prompts": [row | {"arm": "random", "pairs": 1} for row in prompts]}
    sampling = run(root, "sampling", models, plan)
    models |= {"reward": reward.model}
    full = run(root, "policy", models, {"prompts": prompts})
    lora = run(root, "policy", models, {"prompts": prompts}, name="lora", **RANK)
    qlora = run(root, "policy", models, {"prompts": prompts}, name="qlora", **BITS)
    models |= {"policy": full.model, "previous": lora.model}
    evaluate = run(root, "evaluate", models, {"prompts": prompts})
    return Trained(
        family=family, base=base, sft=sft, reward=reward, sampling=sampling, full=full, lora=lora,
        qlora=qlora, evaluate=evaluate,
    )  # fmt: skip


def run(
    root: Path,
    stage: str,
    models: Mapping[str, Path],
    inputs: dict[str, list[dict[str, Any]]],
    *,
    name: str = "",
    **settings: Any,
) -> RunDirectory:
    given = {role: str(path) for role, path in models.items()}
    job: Job = make_job(stage, given, **SETTINGS | settings)
    directory = RunDirectory.create(root / (name or stage), job)
    for table, rows in inputs.items():
        give(directory, f"{table}.parquet", rows)
    assert work(directory) == 0, directory.failure()
    return directory


def plain(path: Path, **options: Any) -> Any:
    """A saved model, loaded as its users load it."""
    return AutoModelForCausalLM.from_pretrained(path, **options).eval()


def responses_of(path: Path, temperature: float = 1.0) -> tuple[Any, ChatTokenizer, list[Response]]:
    sampler = Sampler.load(str(path), device=CPU, dtype=torch.float32)
    conversations = [read_messages(row["messages"]) for row in make_prompts(6)]
    found = sampler.sample(
        conversations, temperature=temperature, max_new_tokens=2 * TOKENS, seed=3, batch=6
    )
    return sampler.model, sampler.chat, found


def logprobs_of(model: Any, response: Response) -> Tensor:
    """The log-probability of each response token, by a plain forward pass of this text alone."""
    with torch.no_grad():
        logits = model(torch.tensor([[*response.prompt_ids, *response.ids]])).logits[0].float()
    start = len(response.prompt_ids) - 1
    ids = torch.tensor(response.ids)[:, None]
    return logits[start:-1].log_softmax(-1).gather(1, ids)[:, 0]


def test_the_tokenizer_is_the_familys_own(trained: Trained):
    family, chat = trained.family, ChatTokenizer.load(str(trained.base))
    ids = chat.tokenizer.convert_tokens_to_ids
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert chat.tokenizer.decode(chat.prompt(turns)) == family.rendered
    assert chat.prompt(turns)[:2].count(ids(family.bos or family.eos)) <= 1
    assert chat.stop_ids == sorted(ids(list({*family.ends, family.eos, family.end})))
    assert chat.tokenizer.convert_ids_to_tokens(chat.end_id) == family.end
    if family.pad is not None:
        assert chat.pad_id == ids(family.pad)


@pytest.mark.parametrize("kind", ["sft", "full", "lora", "qlora"])
def test_saved_models_keep_what_the_base_names(trained: Trained, kind: str):
    base, saved = trained.base, trained.saved[kind]
    before, after = (GenerationConfig.from_pretrained(path) for path in (base, saved))
    as_list = [
        ids if isinstance(ids, list) else [ids] for ids in (before.eos_token_id, after.eos_token_id)
    ]
    assert set(as_list[0]) <= set(as_list[1])
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in (base, saved)]
    assert tokenizers[0].get_vocab() == tokenizers[1].get_vocab()
    assert tokenizers[0]("Hi there").input_ids == tokenizers[1]("Hi there").input_ids
    assert tokenizers[1].chat_template == (trained.family.template or tokenizers[1].chat_template)
    _, info = AutoModelForCausalLM.from_pretrained(saved, output_loading_info=True)
    assert not any(info.values()), info
    models = [plain(path) for path in (base, saved)]
    shapes = [{n: tuple(p.shape) for n, p in model.named_parameters()} for model in models]
    assert shapes[0] == shapes[1]
    assert models[1].dtype == torch.float32
    assert models[0].config._attn_implementation == models[1].config._attn_implementation


def test_stages_say_what_they_did(trained: Trained):
    steps = [e["values"] for e in events(trained.sft) if e["kind"] == "metrics"]
    losses = [values["train/loss"] for values in steps if "train/loss" in values]
    assert fmean(losses[-3:]) < fmean(losses[:3]) - 0.5, losses
    assert trained.reward.result()["pairs"] > 0
    assert trained.sampling.result()["comparisons"] >= 6
    figures = trained.evaluate.result()
    assert figures["reference"]["kl"] == 0.0
    assert figures["policy"]["kl"] > 0.01
    assert figures["previous"]["kl"] > 0.01
    completions = rows_of(trained.evaluate.outputs / "completions.parquet")
    assert {row["policy"] for row in completions} == {
        NAMES[n] for n in ("policy", "reference", "previous")
    }


@pytest.mark.parametrize("kind", ["full", "lora", "qlora"])
def test_ppo_raises_the_reward_and_leaves_the_reference(trained: Trained, kind: str):
    directory: RunDirectory = getattr(trained, kind)
    rewards = events_metric(directory, "reward/mean")
    assert fmean(rewards[-3:]) > fmean(rewards[:2]) + 0.3, rewards
    assert set(events_metric(directory, "reference/changed")) == {0.0}
    assert max(events_metric(directory, "rollout/mismatch_kl"), default=0) < 1e-8


@pytest.mark.parametrize("kind", ["sft", "full", "lora", "qlora"])
def test_recorded_logprobs_are_those_of_a_plain_forward_pass(trained: Trained, kind: str):
    path = trained.saved[kind]
    model, chat, responses = responses_of(path)
    reloaded = plain(path)
    assert weights_hash(model) == weights_hash(reloaded)
    generated = recorded(model, chat, [response.prompt_ids for response in responses])
    if kind == "sft":  # rows were dropped along the way
        assert len({len(ids) for ids, _ in generated}) > 1
    for response, (ids, logprobs) in zip(responses, generated, strict=True):
        again = Response(prompt_ids=response.prompt_ids, ids=ids, text="", finish_reason="stop")
        torch.testing.assert_close(logprobs, logprobs_of(reloaded, again), atol=1e-4, rtol=0)


def recorded(
    model: Any, chat: ChatTokenizer, prompts: list[list[int]]
) -> list[tuple[list[int], Tensor]]:
    """Sampled tokens and their recorded log-probabilities, by the cache of the engine's loop."""
    setup = setup_of(model, chat)
    uniforms = uniforms_for(prompts, setup.config)
    rollout = BuiltinSampler(setup)(prompts, uniforms)
    lists = rollout.token_lists()
    return [(ids, rollout.logprobs[row, : len(ids)]) for row, ids in enumerate(lists)]


def uniforms_for(prompts: list[list[int]], config: PPOConfig) -> Tensor:
    size = (len(prompts), config.max_new_tokens)
    return torch.rand(size, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def setup_of(model: Any, chat: ChatTokenizer, **settings: Any) -> Setup:
    config = PPOConfig(max_new_tokens=2 * TOKENS, **settings)
    return Setup(
        model=ActorCritic(model),
        reference=model,
        config=config,
        eos_token_ids=[*chat.stop_ids, *_MORE_ENDS],
        pad_token_id=chat.pad_id,
        precision="fp32",
        device=CPU,
    )


def test_the_saved_policy_is_the_one_that_was_trained(trained: Trained):
    """The last checkpoint holds the weights of the update that was saved."""
    state = last_state(trained.full)
    inside = load_causal_lm(str(trained.sft.model))
    inside.load_state_dict(policy_weights(state))
    assert_same_logits(inside, plain(trained.full.model), trained, atol=0)


@pytest.mark.parametrize("kind", ["lora", "qlora"])
def test_merged_adapters_equal_the_policy_with_its_adapters_on(trained: Trained, kind: str):
    directory: RunDirectory = getattr(trained, kind)
    base = load_causal_lm(str(trained.sft.model))
    if kind == "qlora":
        quantize(base, CPU)
    inside = with_lora(base, rank=4, alpha=job_alpha(directory))
    found = inside.load_state_dict(policy_weights(last_state(directory)), strict=False)
    assert not found.unexpected_keys
    assert_same_logits(inside, plain(directory.model), trained, atol=1e-4)
    if kind == "lora":
        with inside.disable_adapter():
            assert_same_logits(inside, plain(trained.sft.model), trained, atol=1e-5)


def last_state(directory: RunDirectory) -> dict[str, Any]:
    return load_checkpoint(list_checkpoints(directory.checkpoint / "checkpoints")[-1])


def policy_weights(state: dict[str, Any]) -> dict[str, Tensor]:
    prefix = "policy."
    weights = state["model"].items()
    return {n.removeprefix(prefix): x for n, x in weights if n.startswith(prefix)}


def job_alpha(directory: RunDirectory) -> float:
    return directory.job().config.ppo.lora_alpha


def assert_same_logits(ours: Any, theirs: Any, trained: Trained, *, atol: float) -> None:
    """At every position of some texts, but for one in a hundred where the layers amplify rounding."""
    _, _, responses = responses_of(trained.sft.model)
    differences = []
    with torch.no_grad():
        for response in responses:
            ids = torch.tensor([[*response.prompt_ids, *response.ids]])
            found, expected = (model(input_ids=ids).logits for model in (ours.eval(), theirs))
            differences.append((found - expected).abs().amax(-1)[0])
    by_position = torch.cat(differences)
    assert by_position.quantile(0.99) <= atol
    assert by_position.max() <= 100 * atol


def test_the_reloaded_reward_model_scores_the_same(trained: Trained):
    model = RewardModel.load(trained.reward.model)
    table = rows_of(trained.reward.outputs / "held_out.parquet")
    judged = {row["judgment"]: row for row in make_judgments(48)}
    assert len(table) > 4
    for row in table:
        source = judged[row["judgment"]]
        messages = read_messages(source["messages"])
        first, second = model([messages] * 2, [source["first_text"], source["second_text"]])
        assert first - second == pytest.approx(row["d"], abs=1e-4)


def test_transformers_reads_the_first_reward_network(trained: Trained):
    ours = RewardModel.load(trained.reward.model)
    if ours.chat.pad_id == ours.chat.end_id:  # transformers takes that for padding: GPT-2
        return
    theirs = AutoModelForSequenceClassification.from_pretrained(trained.reward.model).eval()
    level = ours.network.score.bias.item()
    for row in make_judgments(6):
        ids = ours.chat.chat(read_messages(row["messages"]), row["first_text"]).ids
        with torch.no_grad():
            read = theirs(input_ids=torch.tensor([ids])).logits.item()
        assert read + level == pytest.approx(ours.rewards([ids])[0][0], abs=1e-4)


def test_rewards_of_texts_together_are_those_of_each_alone(trained: Trained):
    model = RewardModel.load(trained.reward.model)
    rows = make_judgments(9)
    messages = [read_messages(row["messages"]) for row in rows]
    texts = [row["first_text"] for row in rows]
    alone = [model([asked], [text])[0] for asked, text in zip(messages, texts, strict=True)]
    assert model(messages, texts) == pytest.approx(alone, abs=1e-4)
    assert max(alone) - min(alone) > 1e-3


def test_typed_control_tokens_stay_text(trained: Trained):
    chat = ChatTokenizer.load(str(trained.full.model))
    control = set(chat.tokenizer.added_tokens_decoder)
    typed = " ".join(trained.family.specials)
    for role in ("system", "user"):
        turns = [{"role": role, "content": "{}"}, {"role": "user", "content": "Hi"}][-2:]
        if role == "user":
            turns = turns[:1]
        counts = [
            sum(id in control for id in chat.prompt([turns[0] | {"content": text}, *turns[1:]]))
            for text in ("Say hi", f"Say {typed}")
        ]
        assert counts[0] == counts[1]
    assert sum(id in control for id in chat.completion(typed)) == 1


def test_transformers_generates_the_greedy_response(trained: Trained):
    """With the end-of-text ids that the saved files name."""
    _, chat, responses = responses_of(trained.full.model, temperature=0.0)
    model, tokenizer = plain(trained.full.model), AutoTokenizer.from_pretrained(trained.full.model)
    for response in responses:
        ids = torch.tensor([response.prompt_ids])
        found = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=2 * TOKENS,
            pad_token_id=tokenizer.pad_token_id,
        )
        assert found[0, ids.shape[1] :].tolist() == response.ids
    assert tokenizer.pad_token_id == chat.pad_id


@pytest.mark.parametrize(
    "settings",
    [
        {"ppo__rollout_backend": "transformers"},
        {"ppo__packing": "off"},
        {"ppo__gradient_checkpointing": True},
        "chunks",
    ],
    ids=str,
)
def test_what_only_saves_time_or_memory_changes_no_figure(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
):
    models = {"policy": trained.sft.model, "reference": trained.sft.model}
    models |= {"reward": trained.reward.model}
    given = {"prompts": make_prompts(6)}
    few = {"ppo__updates": 2, "ppo__rollouts": 8, "ppo__kl_weight": 0.05}
    before = run(tmp_path, "policy", models, given, name="before", **few)
    if settings == "chunks":
        monkeypatch.setattr(token_stats, "CHUNK_BYTES", 5 * 4 * 420)
        settings = {}
    after = run(tmp_path, "policy", models, given, name="after", **few | settings)
    figures = [[e["values"] for e in events(d) if e["kind"] == "metrics"] for d in (before, after)]
    for ours, theirs in zip(*figures, strict=True):
        names = [name for name in ours if not name.startswith(("speed/", "memory/", "rollout/"))]
        assert len(names) > 20
        expected = {name: ours[name] for name in names}
        assert {name: theirs[name] for name in names} == pytest.approx(expected, rel=2e-3, abs=1e-4)


def test_packing_is_equal_or_off(trained: Trained):
    model = load_causal_lm(str(trained.full.model))
    _, _, responses = responses_of(trained.sft.model)
    texts = [[*r.prompt_ids, *r.ids] for r in responses]
    assert min(map(len, texts)) > 2 * WINDOW
    assert can_pack(model, longest=max(map(len, texts))) == trained.family.packs
    is_capped = getattr(model.config, "attn_logit_softcapping", None) is not None
    assert can_pack(model, longest=WINDOW) != is_capped  # texts within the window
    if trained.family.packs:
        with torch.no_grad():
            found = last_states(model.base_model, texts)
            alone = [model.base_model(torch.tensor([t])).last_hidden_state[0, -1] for t in texts]
        torch.testing.assert_close(found, torch.stack(alone), atol=1e-4, rtol=0)


def test_chunked_logprobs_are_the_plain_ones(trained: Trained, monkeypatch: pytest.MonkeyPatch):
    model, chat, responses = responses_of(trained.full.model)
    head = output_head(model, Processes())
    assert head is not None
    assert head.cap == getattr(model.config, "final_logit_softcapping", None)
    monkeypatch.setattr(token_stats, "CHUNK_BYTES", 3 * 4 * model.config.vocab_size)
    for response in responses:
        ids = torch.tensor([[*response.prompt_ids, *response.ids]])
        places = torch.zeros_like(ids, dtype=torch.bool)
        places[:, len(response.prompt_ids) - 1 : -1] = True
        with torch.no_grad():
            _, hidden, _ = forward_at(model, ids, places, makes_logits=False)
            stats = chunked_stats(
                head,
                hidden,
                Tokens(ids=torch.tensor(response.ids), ends=torch.tensor(chat.stop_ids)),
                temperature=1.0,
                wants_entropy=False,
            )
        expected = logprobs_of(plain(trained.full.model), response)
        torch.testing.assert_close(stats.logprobs, expected, atol=1e-4, rtol=0)


def test_the_compiled_sampler_draws_the_same_tokens(trained: Trained):
    torch._dynamo.reset()
    model, chat, responses = responses_of(trained.sft.model)
    prompts = [response.prompt_ids for response in responses]
    setup = setup_of(model, chat)
    uniforms = uniforms_for(prompts, setup.config)
    ours, compiled = (kind(setup)(prompts, uniforms) for kind in (BuiltinSampler, CompiledSampler))
    assert compiled.token_lists() == ours.token_lists()
    torch.testing.assert_close(compiled.logprobs, ours.logprobs, atol=1e-4, rtol=0)
