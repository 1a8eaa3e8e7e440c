"""All settings with their defaults, descriptions and checks.  Does not import torch.

The sections `reward`, `optimize`, `shaping` and `ppo` are in reward.py, policy.py and shaping.py
beside this file, and in pipeline/ppo/config.py.  Presets (`presets/`) override the defaults.

Settings come from TOML files and ``--set section.name=value``.  An unknown name is an error that
suggests the nearest valid one.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from pipeline.config import openrlhf
from pipeline.config.policy import (
    ENGINE_METHODS,
    MOVED,
    OptimizeConfig,
    engine_settings,
    moved,
    require_no_moved,
    without_moved,
)
from pipeline.config.problems import problems
from pipeline.config.reward import RewardConfig
from pipeline.config.shaping import ShapingConfig
from pipeline.ppo.config import PPOConfig
from pipeline.ppo.settings import (
    Section,
    SettingInfo,
    build,
    flat,
    nested,
    parse,
    plain,
    require,
    setting,
    settings_of,
    toml,
    unknown,
)
from storage.records import CRITERIA, Arm, Criterion, check_tags
from storage.reports import InvalidSettings

CONFIGS = Path(__file__).parent / "presets"
"""The settings files that come with the project."""


SERVING_KEY = "KITESTRING_SERVING_KEY"
"""The environment variable with the key of `serving.url` and `sampling.url`: settings are shown to
researchers."""


def _check_url(name: str, url: str) -> None:
    """ValueError for an address of another protocol."""
    require(
        not url or url.startswith(("http://", "https://")),
        f"{name}={url} must begin with http:// or https://",
    )


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Section):
    """Which language model the loop starts from."""

    section: ClassVar[str] = "model"

    name: str = setting("demo", "A Hugging Face id, a local directory, or demo (embedded).")
    dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto",
        "Precision of weights loaded for inference. Training always keeps float32 master weights; "
        "ppo.precision sets the precision of PPO's computation.",
    )
    long_rows: Literal["stop", "skip"] = setting(
        "stop",
        "What to do with demonstrations and judged pairs that exceed the model's context: stop and "
        "list them, or skip them with a warning.",
    )


@dataclass(frozen=True, kw_only=True)
class LabelingConfig(Section):
    """How many judgments annotators give, and in which form."""

    section: ClassVar[str] = "labeling"

    labels: int = setting(200, "Judgments per iteration after which training is suggested.", low=1)
    overlap: float = setting(
        0.1, "Share of comparisons that two annotators judge, to measure agreement.", low=0, high=1
    )
    auto_train: bool = setting(
        False, "Start training automatically when an iteration has all its labels."
    )
    autopilot: bool = setting(
        False,
        "With auto_train: start earlier, from half of the labels on, when the gate's test has decided "
        "and the learning curve expects less than one point of accuracy from the labels that are left. "
        "With all labels, wait for up to autopilot_wait more while the test will probably decide "
        "within them.",
    )
    autopilot_wait: int = setting(
        0,
        "Most labels beyond labels for which autopilot waits for the gate's test; 0 does not wait.",
        low=0,
    )
    scale: Literal["two-step", "one-press"] = setting(
        "two-step",
        "How annotators state a preference: two-step (a strength, then A or B) or one-press (seven "
        "steps from A much better to B much better).",
    )
    strength: Literal["optional", "required"] = setting(
        "optional", "Whether A or B needs a strength (slightly, clearly, much)."
    )
    criteria: tuple[Criterion, ...] = setting(
        CRITERIA, "The qualities by which annotators can compare the two responses."
    )
    reasons: tuple[str, ...] = setting(
        (), "Reason tags that annotators can give each response, such as too long."
    )
    rationale: Literal["off", "optional", "required"] = setting(
        "optional", "Whether annotators write why they decided."
    )
    safety: Literal["off", "optional", "required"] = setting(
        "off", "Whether annotators label each response as safe, borderline or unsafe."
    )
    marks: bool = setting(
        False,
        "Whether annotators can mark passages of a response as good, bad or with a reason tag.",
    )
    gold_share: float = setting(
        0.02,
        "Share of an annotator's pairs that are gold pairs, if there are any; 0 disables them.",
        low=0,
        high=0.5,
    )
    gold_first: int = setting(
        6,
        "Gold pairs among an annotator's first 40 pairs, if gold_share makes them fewer; 0 disables them.",
        low=0,
        high=20,
    )
    reask_share: float = setting(
        0.03,
        "Share of an annotator's pairs that repeat one of their own with the sides swapped; 0 disables them.",
        low=0,
        high=0.5,
    )
    reask_after: int = setting(
        50, "Pairs that an annotator judges before one of them is asked again.", low=1
    )
    practice: bool = setting(
        False, "Whether annotators first judge the practice pairs, with an explanation after each."
    )
    practice_mark: float = setting(
        0.5,
        "The pass mark of practice: the lower bound of the share of expected answers, with 95% "
        "confidence, must exceed it.",
        low=0,
        high=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_tags("labeling.reasons", self.reasons)
        require(
            self.auto_train or not self.autopilot,
            "labeling.autopilot=true needs labeling.auto_train=true: it only changes when automatic "
            "training starts",
        )


@dataclass(frozen=True, kw_only=True)
class SFTConfig(Section):
    """Supervised fine-tuning on demonstrations, which produces the frozen reference."""

    section: ClassVar[str] = "sft"

    enabled: bool = setting(True, "Run SFT if demonstrations were imported.")
    edits: bool = setting(False, "Responses that people edited are demonstrations too.")
    epochs: float = setting(1.0, "Passes over the demonstrations.", above=0)
    lr: float = setting(
        2e-5, "Peak learning rate; after warm-up it decays to zero along a cosine.", above=0
    )
    batch: int = setting(16, "Demonstrations per optimizer step.", low=1)
    warmup: float = setting(
        0.03, "Share of the steps in which the learning rate warms up.", low=0, high=1
    )
    max_tokens: int = setting(
        2048, "Maximum tokens of prompt and response together; longer rows are an error.", low=1
    )


@dataclass(frozen=True, kw_only=True)
class SamplingConfig(Section):
    """New completions for the annotators."""

    section: ClassVar[str] = "sampling"

    surplus: float = setting(
        1.3,
        "Pairs sampled per wanted judgment; the surplus replaces skipped pairs.",
        low=1,
    )
    temperatures: tuple[float, ...] = setting(
        (1.0, 0.8),
        "Sampling temperatures of the first and the second completion of a pair by one policy. "
        "Comparisons of two policies use the first for both.",
        above=0,
    )
    top_p: float = setting(
        0.9,
        "Nucleus (top-p) threshold for annotators' samples; 1 keeps all tokens.",
        above=0,
        high=1,
    )
    max_new_tokens: int = setting(256, "Maximum tokens per completion.", low=1)
    reference_share: float = setting(
        0.15, "Share of comparisons between the policy and the SFT reference.", low=0, high=1
    )
    previous_share: float = setting(
        0.25,
        "Share of comparisons between the policy and the previous policy, if there is one.",
        low=0,
        high=1,
    )
    selection: Literal["random", "hybrid", "bald", "uncertainty", "d_optimal"] = setting(
        "random",
        "How pairs of the policy's own responses are chosen: at random, by the reward model (bald, "
        "uncertainty, d_optimal), or both (hybrid: bald and random).",
    )
    selection_share: float = setting(
        0.5,
        "Share of comparisons that the reward model chooses; only with selection=hybrid. It is limited "
        "to what reference_share and previous_share leave.",
        low=0,
        high=1,
    )
    selection_prompts: float = setting(
        1.0,
        "Prompts sampled per comparison that the reward model chooses; not used with selection=random.",
        low=1,
    )
    candidates: int = setting(
        4,
        "Completions sampled per prompt if the reward model chooses two of them; not used with "
        "selection=random.",
        low=2,
    )
    near_duplicate: float = setting(
        0.9,
        "Pairs whose texts are at least this similar (0 to 1) are sampled again, then compared with the "
        "reference, and left out if they are still similar.",
        low=0,
        high=1,
    )
    batch: int = setting(
        32, "Completions sampled in parallel; with backend=url, requests at a time.", low=1
    )
    backend: Literal["own", "vllm", "url"] = setting(
        "own",
        "What samples the completions: own (the studio's loop), vllm (in the stage's process; vLLM must "
        "be installed), or url (a running server).",
    )
    url: str = setting(
        "",
        "Address of an OpenAI-compatible server for sampling.backend=url, such as `vllm serve`, up to "
        "/v1. It must serve the models under their ids in the workspace, such as policy-2. The "
        "environment variable KITESTRING_SERVING_KEY has its key.",
    )
    vllm_memory: float = setting(
        0.8, "Share of the device's memory that vLLM uses.", above=0, high=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.backend != "url" or bool(self.url),
            "sampling.backend=url needs sampling.url, the address of the server",
        )
        _check_url("sampling.url", self.url)
        given = list(self.temperatures)
        require(len(given) == 2, f"sampling.temperatures={given} must be two positive numbers")
        require(
            self.reference_share + self.previous_share <= 1,
            "sampling.reference_share and sampling.previous_share must add up to at most 1",
        )

    def chosen(self) -> tuple[Arm, float] | None:
        """The arm whose pairs a reward model chooses, and its share of all pairs."""
        if self.selection == "random":
            return None
        return ("bald", self.selection_share) if self.selection == "hybrid" else (self.selection, 1)


@dataclass(frozen=True, kw_only=True)
class GateConfig(Section):
    """How many judgments the promotion gate needs, and the canary that it watches."""

    section: ClassVar[str] = "gate"

    labels: int = setting(
        60,
        "Minimum number of judgments per iteration that compare the policy with the SFT reference, "
        "if sampling.reference_share gives fewer.",
        low=0,
    )
    kl_raise: float = setting(
        3.0,
        "After the gate blocks a policy, PPO runs with at least this multiple of that policy's "
        "ppo.kl_weight; 1 disables it.",
        low=1,
    )
    most: float = setting(
        0.5, "Maximum share of an iteration's labels that gate.labels may use.", low=0, high=1
    )
    kl_discount: float = setting(
        0.1,
        "For the over-optimization alarm, a policy at KL nats keeps 1/(1 + kl_discount · KL) of the lead "
        "over SFT that its reward model predicts; 0 takes predictions as they are.",
        low=0,
    )
    canary: str = setting(
        "",
        "Function (module:function) that lists the capability canary: fixed prompts, and checks that "
        "the policy should pass as often as SFT. Empty disables it. It runs as code on this machine.",
    )
    canary_loss: float = setting(
        0.05,
        "A policy whose pass rate on the canary is at least this much below SFT's is not promoted.",
        above=0,
        high=1,
    )
    canary_every: int = setting(
        10,
        "Updates of the policy between measurements on the canary; 0 measures only in the evaluation.",
        low=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.canary or ":" in self.canary,
            f"gate.canary={self.canary} must be written module:function",
        )


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(Section):
    """Comparison of the policy with SFT and the previous policy on held-out prompts."""

    section: ClassVar[str] = "evaluate"

    prompts: int = setting(
        200, "Number of held-out prompts to use (all if there are fewer).", low=1
    )
    completions: int = setting(1, "Completions sampled per prompt and policy.", low=1)
    temperature: float | None = setting(
        None, "Sampling temperature; none means ppo.temperature.", above=0
    )
    beams: int = setting(
        1,
        "Width of the beam search; 1 samples instead. It applies to the evaluation only: annotators "
        "and PPO always get samples.",
        low=1,
    )
    length_penalty: float = setting(
        1.0,
        "Beam search divides log-probabilities by the length to this power. 0 selects the likeliest "
        "completion; higher values prefer longer ones.",
    )
    max_new_tokens: int = setting(256, "Maximum tokens per completion.", low=1)
    batch: int = setting(32, "Completions sampled in parallel.", low=1)
    follow_ups: int = setting(
        16,
        "Prompts judged in the iteration that the new policy answers once more, for the annotators' "
        "page; at least one for each annotator. 0 disables them.",
        low=0,
        high=1000,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.beams == 1 or self.completions == 1,
            f"evaluate.beams={self.beams} finds one completion per prompt; set evaluate.completions to 1",
        )


def _check_staging(url: str) -> None:
    """ValueError for a URL that is no store, or that carries a secret: settings are shown."""
    protocol, separator, rest = url.partition("://")
    place = rest.partition("/")[0]
    require(
        bool(separator and protocol and rest) and protocol != "memory" and "::" not in url,
        f"worker.staging={url} must be a URL that fsspec opens, such as s3://bucket/kitestring",
    )
    require(
        ":" not in place.partition("@")[0] or "@" not in place,
        "worker.staging must not contain a password: drivers read credentials from the environment "
        "and the files of their account",
    )
    require(
        "?" not in url and "#" not in url,
        "worker.staging must not contain ? or #: options belong to the configuration of fsspec",
    )


CLUSTER_SETTINGS = (
    "launcher", "nodes", "cpus", "gpus", "staging", "root", "python", "lost_after", "ray_address",
    "slurm_partition", "slurm_account", "slurm_minutes", "slurm_options",
)  # fmt: skip
"""The settings of `worker` that say where a stage runs; a resumed stage may run elsewhere."""


@dataclass(frozen=True, kw_only=True)
class WorkerConfig(Section):
    """How a job uses the machine."""

    section: ClassVar[str] = "worker"

    device: Literal["auto", "cuda", "mps", "cpu"] = setting(
        "auto", "Device for training; auto selects CUDA, else Apple's MPS, else the CPU."
    )
    threads: int = setting(
        0, "CPU threads of a job; 0 uses all cores, at a lower priority than labeling.", low=0
    )
    processes: int = setting(
        1,
        "Processes that share the work of PPO and other methods of its engine, each with its own GPU if "
        "there are GPUs; on a CPU, they also train the reward model's networks. The result does not "
        "depend on their number. Each process loads the models.",
        low=1,
    )
    report_to: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = setting(
        (),
        "Trackers that also receive the metrics: tensorboard (in WORKSPACE/tensorboard), trackio, wandb.",
    )
    nice: int = setting(15, "Scheduling priority of a job (0 normal, 19 lowest).", low=-20, high=19)
    launcher: Literal["local", "ray", "slurm"] = setting(
        "local",
        "Where the stages of the loop run: local (a process of this machine), ray (a job of a Ray "
        "cluster) or slurm (a batch job). Clusters need the workspace on a shared file system, or "
        "`worker.staging`.",
    )
    nodes: int = setting(
        1,
        "Nodes of a Ray or Slurm cluster that train the policy together; `worker.processes` is divided "
        "among them.",
        low=1,
    )
    cpus: int = setting(1, "CPU cores that a stage asks a cluster for, per node.", low=1)
    gpus: int = setting(0, "GPUs that a stage asks a cluster for, per node.", low=0)
    staging: str = setting(
        "",
        "For clusters without a shared file system: the URL of a folder in a store that the studio and "
        "the nodes reach by fsspec, such as s3://bucket/kitestring, through which files are exchanged.",
    )
    root: str = setting(
        "",
        "The path of the workspace on the cluster's nodes; empty if it is the same there. With "
        "`worker.staging`, a folder of the nodes for temporary files and models; empty for TMPDIR.",
    )
    python: str = setting(
        "",
        "The Python on the cluster's nodes that has Kitestring; empty for the path of the studio's own.",
    )
    lost_after: float = setting(
        180.0,
        "Seconds without a sign of life of a worker on a cluster, after which the run has failed.",
        low=30,
    )
    ray_address: str = setting(
        "http://127.0.0.1:8265", "Address of the Ray dashboard, which takes jobs."
    )
    slurm_partition: str = setting("", "Slurm's partition; empty for the default one.")
    slurm_account: str = setting("", "The account that Slurm charges; empty for the default one.")
    slurm_minutes: int = setting(
        0, "Slurm's time limit of a stage, in minutes; 0 for the partition's limit.", low=0
    )
    slurm_options: tuple[str, ...] = setting(
        (), "Further options of sbatch, such as --qos=high or --constraint=a100."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not self.root or Path(self.root).is_absolute(),
            f"worker.root={self.root} must be an absolute path, as the cluster's nodes see it",
        )
        require(
            self.nodes == 1 or self.launcher != "local",
            f"worker.nodes={self.nodes} needs worker.launcher=ray or slurm; local is one node",
        )
        require(
            self.processes % self.nodes == 0,
            f"worker.nodes={self.nodes} must divide worker.processes={self.processes}",
        )
        require(
            self.launcher == "local" or not self.gpus or self.processes <= self.gpus * self.nodes,
            f"worker.processes={self.processes} is more than worker.gpus={self.gpus} on "
            f"worker.nodes={self.nodes}; each process needs its own GPU",
        )
        require(
            self.ray_address.startswith(("http://", "https://")),
            f"worker.ray_address={self.ray_address} must be the dashboard's address, such as "
            "http://ray-head:8265",
        )
        if self.staging:
            _check_staging(self.staging)
            require(
                self.nodes == 1,
                f"worker.staging needs worker.nodes=1, and it is {self.nodes}: the nodes of a stage "
                "share a file system",
            )
        for option in self.slurm_options:
            require(
                option.startswith("--"),
                f"worker.slurm_options names {option!r}; an option of sbatch begins with --",
            )

    def placed_as(self, other: WorkerConfig) -> WorkerConfig:
        """These settings, on the cluster of `other`."""
        return dataclasses.replace(
            self, **{name: getattr(other, name) for name in CLUSTER_SETTINGS}
        )


@dataclass(frozen=True, kw_only=True)
class LiveConfig(Section):
    """Live conversations on the annotator's page."""

    section: ClassVar[str] = "live"

    replies: Literal["off", "policy", "reference"] = setting(
        "off",
        "Live conversations, in which annotators write the prompts: off, policy (two replies of the "
        "policy) or reference (a reply of the policy and one of the SFT model, blind).",
    )
    turns: int = setting(5, "Maximum number of turns of a live conversation.", low=1, high=50)


@dataclass(frozen=True, kw_only=True)
class ServingConfig(Section):
    """The generation service, which streams replies for live conversations."""

    section: ClassVar[str] = "serving"

    engine: Literal["transformers", "vllm", "url"] = setting(
        "transformers",
        "What generates the replies: transformers (a process of the studio), vllm (the studio starts "
        "`vllm serve` for each model; vLLM must be installed), or url (a running server).",
    )
    url: str = setting(
        "",
        "Address of an OpenAI-compatible server for serving.engine=url, up to /v1. It must serve the "
        "models under their ids in the workspace, such as policy-2. The environment variable "
        "KITESTRING_SERVING_KEY has its key.",
    )
    device: str = setting(
        "worker",
        "Device of the service: worker (as worker.device), or a name of torch such as cpu or cuda:1.",
    )
    beside_training: bool = setting(
        False,
        "Generate replies while a stage runs. By default the service stops then, because both use "
        "the same device.",
    )
    idle_minutes: float = setting(
        10.0, "Minutes without a reply after which the service stops.", above=0
    )
    queue: int = setting(
        32, "Replies of all people that are generated or wait at once; more are refused.", low=1
    )
    per_person: int = setting(
        3,
        "Replies of one person that are generated or wait at once: a live turn has two, the "
        "playground as many as this allows.",
        low=1,
    )
    vllm_memory: float = setting(
        0.4, "Share of the GPU's memory for each model with vLLM.", above=0, high=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            bool(self.url) == (self.engine == "url"),
            "serving.url is the address of the server for serving.engine=url; set both or neither",
        )
        _check_url("serving.url", self.url)


@dataclass(frozen=True, kw_only=True)
class PluginsConfig(Section):
    """Which user functions a researcher may name."""

    section: ClassVar[str] = "plugins"

    allowed: tuple[str, ...] = setting(
        (),
        "Functions (module:function) that researchers may use in shaping.weights and gate.canary, in "
        "addition to those in config.toml. They run as code on this machine.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.allowed:
            require(":" in name, f"plugins.allowed names {name!r}; write it module:function")


@dataclass(frozen=True, kw_only=True)
class Config(Section):
    """All sections.

    The defaults suit a full-size model; ``pipeline/config/presets/demo.toml`` suits the embedded
    one.
    """

    section: ClassVar[str] = ""

    seed: int = setting(0, "Seed of all random choices in the pipeline.", low=0, high=2**31)
    model: ModelConfig = field(default_factory=ModelConfig)
    labeling: LabelingConfig = field(default_factory=LabelingConfig)
    sft: SFTConfig = field(default_factory=SFTConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    optimize: OptimizeConfig = field(default_factory=OptimizeConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    shaping: ShapingConfig = field(default_factory=ShapingConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    live: LiveConfig = field(default_factory=LiveConfig)
    serving: ServingConfig = field(default_factory=ServingConfig)
    plugins: PluginsConfig = field(default_factory=PluginsConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        method, nodes = self.optimize.method, self.worker.nodes
        require(
            method in ENGINE_METHODS or nodes == 1,
            f"optimize.method={method} runs on one node, but worker.nodes is {nodes}; set it to 1",
        )
        if method in ENGINE_METHODS:
            engine_settings(method, self.ppo)  # raises for settings that contradict the method
            self._require_work_for(self.worker.processes)
        if method == "openrlhf":
            require(
                self.worker.launcher == "local" or not self.worker.staging,
                "optimize.method=openrlhf needs a shared file system; worker.staging is not for it",
            )
            chosen = self.optimize
            openrlhf.check(
                self.ppo,
                chosen.openrlhf_cluster,
                snapshots=chosen.snapshots,
                options=chosen.openrlhf_options,
            )

    def _require_work_for(self, processes: int) -> None:
        """ValueError if the engine's work cannot be divided among so many processes."""
        minibatch, sharding = self.ppo.minibatch, self.ppo.sharding
        require(
            processes <= minibatch,
            f"worker.processes={processes} is more than ppo.minibatch={minibatch}; each process needs at least one response",
        )
        require(
            processes > 1 or sharding == "none",
            f"ppo.sharding={sharding} divides the weights among processes, but worker.processes is "
            "1; set it to the number of GPUs, or ppo.sharding to none",
        )

    @property
    def functions(self) -> Mapping[str, frozenset[str]]:
        """The user functions, ``module:function``, by the setting that names them."""
        canary = frozenset({self.gate.canary} - {""})
        return {"shaping.weights": self.shaping.functions, "gate.canary": canary}

    @property
    def evaluation_temperature(self) -> float:
        """The sampling temperature of the evaluation: PPO's if `evaluate` has none."""
        return self.evaluate.temperature or self.ppo.temperature

    @classmethod
    def load(cls, files: Sequence[Path], overrides: Mapping[str, str] | None = None) -> Config:
        """Settings from TOML files (later ones win), then overrides such as ppo.lr=1e-6."""
        merged: dict[str, Any] = {}
        for file in files:
            try:
                table = tomllib.loads(Path(file).read_text(encoding="utf-8-sig"))
            except FileNotFoundError:
                raise ValueError(f"there is no settings file {file}") from None
            except IsADirectoryError:
                raise ValueError(f"{file} is a folder; name a settings file in it") from None
            except UnicodeDecodeError as error:
                raise ValueError(f"{file} is not UTF-8 text: {error}") from None
            except tomllib.TOMLDecodeError as error:
                raise ValueError(f"{file} is not valid TOML: {error}") from None
            require_no_moved(file, table.get("optimize", {}))
            for section, value in table.items():
                if isinstance(value, dict) and isinstance(merged.get(section), dict):
                    merged[section].update(value)
                else:
                    merged[section] = value
        return cls.from_dict(merged).override(overrides or {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Config:
        """The inverse of `to_dict`; InvalidSettings names every unknown key and wrong value.

        Settings of earlier versions that only RLOO read are left out.
        """
        if isinstance(optimize := data.get("optimize"), Mapping):
            data = {**data, "optimize": without_moved(optimize)}
        try:
            return build(cls, data, prefix="")
        except ValueError:
            wrong = problems(lambda some: build(cls, nested(some), prefix=""), flat(cls, data))
            raise InvalidSettings(wrong) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain nested values, ready for JSON."""
        return plain(dataclasses.asdict(self))

    def to_toml(self) -> str:
        """The settings that differ from the defaults, as a config.toml."""
        sections: dict[str, list[str]] = {}
        for s in self.settings():
            if s.value != s.default:
                section, _, key = s.name.rpartition(".")
                sections.setdefault(section, []).append(f"{key} = {toml(plain(s.value))}")
        head = "# Settings of this workspace; others have their defaults.\n"
        tables = [
            (f"\n[{name}]\n" if name else "") + "\n".join(lines) + "\n"
            for name, lines in sorted(sections.items())
        ]
        return head + "".join(tables)

    def override(self, overrides: Mapping[str, Any]) -> Config:
        """A copy with ``{"ppo.kl_weight": "0.1"}`` applied; text is read as the field's type.

        InvalidSettings names every wrong setting.
        """
        try:
            return self._with(overrides)
        except ValueError:
            raise InvalidSettings(problems(self._with, overrides)) from None

    def _with(self, overrides: Mapping[str, Any]) -> Config:
        """`override`, with a ValueError for the first wrong setting."""
        data = self.to_dict()
        valid = {s.name: s for s in self.settings()}
        for name, value in overrides.items():
            if name not in valid:
                raise ValueError(moved(name) if name in MOVED else unknown(name, list(valid)))
            parsed = parse(value, valid[name].type) if isinstance(value, str) else value
            section, _, key = name.rpartition(".")
            (data[section] if section else data)[key] = parsed
        return build(Config, data, prefix="")

    def settings(self) -> Iterator[SettingInfo]:
        """Every setting as ``section.name`` with value, default, type and help."""
        yield from settings_of(self, prefix="")
