"""The generation service: a process that streams replies of the workspace's models.

`client.py` is the web process's side and imports no torch: it starts the service on demand, stops
it when it is idle or when a stage needs the device, and limits replies.  `service.py` is the
service (``python -m pipeline.serving DIR``), OpenAI-compatible HTTP on a Unix socket; `engine.py`
decodes, and `models.py` loads.
"""
