"""The web application: the annotator's page, the researcher's pages, and access control.

`app.create_app` builds it.  This package imports only `storage` from this project; the pages use
the training pipeline through the `Loop` protocol in `ports`.
"""

import os

from labeler.stubs import leave_out_stubs

# Gradio reads this at import and would otherwise send usage data.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
leave_out_stubs()
