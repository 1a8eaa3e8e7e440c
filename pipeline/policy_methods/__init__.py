"""The baselines DPO and RLOO, and code shared with PPO's stage (`pipeline/stages/policy.py`).

dpo.py      TRL's DPOTrainer on the judgments that the reward model learned from
rloo.py     TRL's RLOOTrainer on the reward model's score
inputs.py   prompts, shaped reward and samples, shared by PPO and RLOO
"""
