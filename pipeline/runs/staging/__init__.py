"""Files of a run on a cluster without a shared file system: they travel through a store (`worker.staging`).

`store` is the store; `inputs` says what a node gets, and `outbox` what it sends; `streams` sends files
that grow; `attempt` is the studio's side.  The node's side is `pipeline.worker.staged`.  `layout` names
what both sides exchange.
"""
