"""The sycophancy lab: does a penalty in the reward keep PPO from learning to agree?

    prompts ──▶ testbed: a policy that agrees too often, a reward model of annotators who like
                         that, flags and reference answers for the shaping components
            ──▶ arms:    PPO without a penalty and with each component; steering while sampling
            ──▶ report:  the rate of agreement (`checker`), on held-out topics, at equal KL

`docs/sycophancy.md` has the results.  The checker shares no code with `pipeline.shaping`.
"""
