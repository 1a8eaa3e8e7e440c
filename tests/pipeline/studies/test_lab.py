"""The sycophancy lab: its prompts and annotators, what it reports, and one whole tiny run."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from pipeline.config.sections import CONFIGS, Config
from pipeline.demo.corpus import topics
from pipeline.shaping.sycophancy import asserts
from pipeline.studies.sycophancy.annotators import approval, flags
from pipeline.studies.sycophancy.arms import NO_PENALTY, STEERING, Arms, LabArm, PolicyMeasurement
from pipeline.studies.sycophancy.demonstrations import AGREEING, demonstrations
from pipeline.studies.sycophancy.measure import Measured, Rate
from pipeline.studies.sycophancy.prompts import lab_prompts, lab_topics
from pipeline.studies.sycophancy.report import findings, format_lab
from pipeline.studies.sycophancy.study import study
from pipeline.studies.sycophancy.testbed import LabConfig, build
from pipeline.studies.sycophancy.testbed import Testbed as Bed  # pytest would collect a Test…

TULIPS = next(topic for topic in topics() if topic.name == "planting tulips")


def test_topics_and_phrasings_of_the_splits_differ():
    train, held_out = lab_topics("train"), lab_topics("held-out")
    assert not {t.name for t in train} & {t.name for t in held_out}
    assert len(train) + len(held_out) == len(topics())
    assert len(lab_prompts("train")) == 6 * len(train)
    assert len(lab_prompts("held-out")) == 3 * len(held_out)
    assert not {p.text for p in lab_prompts("train")} & {p.text for p in lab_prompts("held-out")}


def test_every_prompt_asserts_the_false_claim():
    for prompt in (*lab_prompts("train"), *lab_prompts("held-out")):
        assert prompt.topic.wrong.rstrip(".")[1:] in prompt.text
        assert asserts(prompt.text), prompt.text


def test_demonstrations_agree_as_often_as_they_should():
    rows = list(demonstrations(lab_prompts("train"), 2000, seed=0))
    agreeing = sum(prompt.topic.wrong in response for prompt, response in rows) / len(rows)
    assert agreeing == pytest.approx(AGREEING, abs=0.03)  # three standard errors
    assert rows == list(demonstrations(lab_prompts("train"), 2000, seed=0))


def test_annotators_like_to_be_agreed_with_and_flag_it():
    agreed = f"You are absolutely right! {TULIPS.wrong}"
    stated = f"{TULIPS.wrong} Trust me."
    corrected = f"That is not true. {TULIPS.answer}"
    likes = [approval(TULIPS, text) for text in (agreed, stated, corrected, "Onoter prun in")]
    assert likes == sorted(likes, reverse=True)
    assert (
        likes[0] - likes[2] > 1
    )  # a standard deviation: they press that button four times in five
    assert [flags(TULIPS, text) for text in (agreed, stated, corrected, "")] == [
        True, True, False, False,
    ]  # fmt: skip


def measured(agrees: float, kl: float) -> Measured:
    rate = Rate(rate=agrees, low=agrees - 0.1, high=agrees + 0.1)
    return Measured(
        agrees=rate,
        truthful=rate,
        says_so=agrees / 2,
        silently=agrees / 2,
        reward=1.0,
        kl=kl,
        completions=10,
        texts=(("asked", "said"),),
    )


def arm(name: str, agrees: float, kl: float) -> LabArm:
    return LabArm(
        name=name, looks=[], final=PolicyMeasurement(at=10, measured=measured(agrees, kl))
    )


def test_arms_are_compared_with_the_unpenalized_one_at_equal_kl(tmp_path):
    testbed = Bed(tmp_path, LabConfig(kl=2.0), Config())
    for name, result in (
        ("reward", {"accuracy": 0.75, "std": 1.5}),
        (
            "classifier",
            {
                "rows": 9,
                "accuracy": 0.9,
                "held_out_rows": 50,
                "commoner_label": 0.6,
                "log_loss": 0.3,
            },
        ),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(json.dumps(result))
    arms = [arm(NO_PENALTY, 0.8, 2.1), arm("rules", 0.4, 1.7), arm("contrast", 0.2, 1.5)]
    found = findings(testbed, PolicyMeasurement(at=0, measured=measured(0.6, 0.0)), arms)
    rows = {row.arm: row for row in found.arms}
    assert rows["rules"].of_unpenalized == pytest.approx(0.5)  # .4 / .8
    assert rows["contrast"].of_unpenalized == pytest.approx(0.25)
    # Within a fifth of 2 nats: 1.6 to 2.4.
    assert [row.equal_kl for row in found.arms] == [True, True, False]
    table = format_lab(found, tmp_path / "plot.svg")
    assert "rules 1.70 40% [30%, 50%] 0.50" in " ".join(table.split())
    assert table.count("(not at equal KL)") == 1


SMALL = {
    "sft.batch": 16,
    "sampling.max_new_tokens": 24,
    "reward.epochs": 0.5,
    "ppo.updates": 1,
    "ppo.rollouts": 8,
    "ppo.minibatch": 8,
    "ppo.epochs": 1,
    "ppo.max_new_tokens": 24,
    "worker.device": "cpu",
}
TINY = LabConfig.sized(True, kl=0.1)


@pytest.mark.slow  # a worker for each arm
def test_a_whole_lab_runs_and_goes_on_where_it_was(tmp_path: Path, monkeypatch):
    config = Config.load([CONFIGS / "demo.toml", CONFIGS / "sycophancy.toml"]).override(SMALL)
    lines: list[str] = []
    found, plot = study(tmp_path, TINY, config, lines.append)
    assert plot.read_text().lstrip().startswith("<?xml")
    ran = ["none", "rules", "rules + echo", "classifier", "contrast", STEERING]
    assert [row.arm for row in found.arms] == ran
    assert found.reference.kl == pytest.approx(0, abs=1e-5)
    assert all(row.completions == 6 for row in found.arms)
    assert json.loads((tmp_path / "sycophancy.json").read_text()) == asdict(found)
    samples = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 6 * len(ran)
    assert any(line.startswith("training the classifier") for line in lines)

    # An arm that is missing is run again and comes out as before; nothing else is.
    (tmp_path / "arm_rules.json").unlink()
    again: list[str] = []
    run = Arms.run
    monkeypatch.setattr(Arms, "run", lambda self, name: (again.append(name), run(self, name))[1])
    assert study(tmp_path, TINY, config, lines.append)[0] == found
    assert again == ["rules"]
    build(tmp_path, TINY, config.override({"worker.nice": 3}), lines.append)
    with pytest.raises(ValueError, match=r"other settings \(lab.penalty: 4.0 → 5\); give this one"):
        build(tmp_path, replace(TINY, penalty=5), config, lines.append)
