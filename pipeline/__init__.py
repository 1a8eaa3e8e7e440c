"""The RLHF loop: sample → label → reward model → policy → evaluate.

Read `pipeline/stages/` first.  From the top down:

    simulation, studies   run the loop or single stages, and measure the results
    loop                  the state machine in the web process; starts a worker for each stage
    worker                the process that runs one stage
    stages                one module per stage
    policy_methods, sampling, promotion, shaping, reward    the parts of the stages
    models                language models: text in, text and log-probabilities out
    runs                  run directories: the files between web process and worker
    statistics            win rates and sequential tests
    config                every setting
    ppo                   the PPO engine; imports nothing else of Kitestring

A folder imports only those below it; `tests/test_layout.py` checks it.
"""
