"""Methods that improve the policy: PPO, and DPO and RLOO to compare it with.

ppo.py      joins the engine in `pipeline/ppo` to a job
dpo.py      TRL's DPOTrainer on the judgments that the reward model learned from
rloo.py     TRL's RLOOTrainer on the reward model's score
inputs.py   prompts, shaped reward and samples, as PPO and RLOO share them
"""
