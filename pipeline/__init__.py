"""The loop: sample → label → reward model → policy → evaluate, and everything that it is made of.

Read `pipeline/stages/` first.  From the top down:

    simulation, studies   drive the loop, or its stages outside it, and measure them
    loop                  the state machine in the web process; starts a worker for each stage
    worker                the process that runs one stage
    stages                one module per stage
    policy_methods, sampling, promotion, shaping, reward    what the stages are made of
    models                language models: text in, text and log-probabilities out
    runs                  run directories: the files between web process and worker
    statistics            win rates and sequential tests
    config                every setting
    ppo                   the PPO engine; imports nothing else of Kitestring

A folder imports only those below it; `tests/test_layout.py` checks it.
"""
