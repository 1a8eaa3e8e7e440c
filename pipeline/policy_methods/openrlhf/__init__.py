"""PPO of OpenRLHF as a Ray job, for models that are too large for the engine.

stage.py      the policy stage: writes, submits, follows, takes over
exchange.py   the files that OpenRLHF reads, and its command
reward.py     the reward function that runs inside OpenRLHF
metrics.py    its TensorBoard files as our metrics
follow.py     the Ray job: found again after a restart, followed, cancelled
takeover.py   the checks of the policy that it saved
"""
