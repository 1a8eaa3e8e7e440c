"""Probes in the reward stage: learned from, and in no set that measures a model or stops its training."""

from __future__ import annotations

from pipeline.config.reward import RewardConfig
from pipeline.reward.data import split_judgments
from pipeline.reward.likelihood import FIRST
from tests.helpers.judged_pairs import pair

CONFIG = RewardConfig(held_out_share=0.25, audit_share=0.2, stopping_judgments=20)


def judged(count: int = 150) -> list:
    return [
        pair(FIRST, prompt=f"p-{n}", name=f"j-{n}", arm="random", audit=n % 5 == 0)
        for n in range(count)
    ]


def test_probes_on_new_prompts_are_learned_from_and_change_no_other_set():
    probes = [pair(FIRST, prompt=f"q-{n}", name=f"probe-{n}", arm="probe") for n in range(150)]
    split, without = (
        split_judgments(rows, CONFIG, seed=3) for rows in ([*judged(), *probes], judged())
    )
    assert split == without._replace(learned=split.learned)
    assert [each for each in split.learned if each.arm == "probe"] == probes
    assert [each for each in split.learned if each.arm != "probe"] == without.learned


def test_a_probe_on_a_prompt_that_measures_is_in_no_set():
    probes = [pair(FIRST, prompt=f"p-{n}", name=f"probe-{n}", arm="probe") for n in range(150)]
    split = split_judgments([*judged(), *probes], CONFIG, seed=3)
    assert not any(each.arm == "probe" for each in (*split.unseen, *split.measured))
    apart = {each.prompt for each in split.unseen}
    assert len(apart) > 40
    assert {each.prompt for each in split.learned if each.arm == "probe"} == {
        f"p-{n}" for n in range(150)
    } - apart
