"""The web application: the annotator's page, the researcher's pages, and the gate before both.

`app.create_app` puts it together.  Of this project only `storage` is imported here; what the
pages ask of the training pipeline goes through the `Loop` protocol of `ports`.
"""

import os

from labeler.stubs import leave_out_stubs

# Gradio reads this at import; nothing about a workspace is to be reported to anybody.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
leave_out_stubs()
