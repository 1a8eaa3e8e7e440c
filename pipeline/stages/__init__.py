"""The five stages, in the order in which an iteration runs them: sft, sample, reward, policy, evaluate.

Each module has ``run(job, report, directory) -> summary``, which the worker calls."""
