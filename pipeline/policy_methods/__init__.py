"""Methods outside the engine, and code shared with its stage (`pipeline/stages/policy.py`).

openrlhf/   PPO of OpenRLHF as a Ray job
dpo.py      TRL's DPOTrainer on the judgments that the reward model learned from
inputs.py   prompts, shaped reward and samples, of the engine's stage
"""
