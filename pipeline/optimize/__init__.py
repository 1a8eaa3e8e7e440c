"""Ways to improve the policy: PPO (`pipeline.ppo_stage`), and DPO and RLOO to compare it with.

    config.py     the settings, and which method runs
    stage.py      runs that method
    inputs.py     prompts, shaped reward and samples, as PPO and RLOO share them
    dpo.py        TRL's DPOTrainer on the judgments that the reward model learned from
    rloo.py       TRL's RLOOTrainer on the reward model's score
    snapshots.py  policies kept along training

Importing this package or its `config` loads no torch.
"""
