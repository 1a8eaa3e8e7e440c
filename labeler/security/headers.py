"""The security headers of every response.

`AccessMiddleware` (access.py) adds them to every response, including refusals and errors:
`GRADIO_POLICY` for the two Gradio pages, `WORKER_POLICY` for the service worker, `STRICT_POLICY` for
the rest. HSTS is sent only if `--public-url` is https.
"""

from __future__ import annotations

from starlette.types import Message, Send

_NOWHERE = ("base-uri 'none'", "frame-ancestors 'none'", "object-src 'none'")

STRICT_POLICY = "; ".join(
    ["default-src 'none'", "style-src 'self'", "img-src 'self'", "form-action 'self'", *_NOWHERE]
)
"""For everything but Gradio's pages: forms and style sheets, no scripts."""

GRADIO_POLICY = "; ".join(
    [
        "default-src 'self'",
        # Gradio writes its settings into the page, and gr.HTML compiles its template and script
        # with Function(). Model output is never markup (labeler/html/markdown.py).
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "form-action 'self'",
        "base-uri 'self'",
        *_NOWHERE[1:],
    ]
)

WORKER_POLICY = "; ".join(["default-src 'none'", "connect-src 'self'", *_NOWHERE])
"""For the service worker (labeler/annotate/worker.py): it only fetches files of the studio."""

_ALWAYS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    # with "no-referrer", a browser would send "Origin: null" with our own forms
    "referrer-policy": "same-origin",
    "permissions-policy": (
        "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), "
        "magnetometer=(), microphone=(), midi=(), payment=(), usb=()"
    ),
}
_BY_TLS = {"strict-transport-security": "max-age=31536000"}
_NO_STORE = (b"cache-control", b"no-store")


class Hardening:
    """Adds the headers to responses; `secure` if browsers use only TLS."""

    def __init__(self, *, secure: bool) -> None:
        always = _ALWAYS | (_BY_TLS if secure else {})
        self._fixed = [(name.encode(), value.encode()) for name, value in always.items()]
        self._ours = frozenset([*(name for name, _ in self._fixed), b"content-security-policy"])

    def wrap(self, send: Send, policy: str = STRICT_POLICY) -> Send:
        """`send` with these headers, which replace others of the same name."""

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = self._headers(message.get("headers", ()), policy.encode())
            await send(message)

        return hardened

    def _headers(
        self, given: list[tuple[bytes, bytes]], policy: bytes
    ) -> list[tuple[bytes, bytes]]:
        headers = [
            (name, value)
            for name, value in given
            # Gradio allows all origins with credentials on a public host; we allow none.
            if (low := name.lower()) not in self._ours and not low.startswith(b"access-control-")
        ]
        headers += self._fixed
        headers.append((b"content-security-policy", policy))
        if not any(name.lower() == b"cache-control" for name, _ in given):
            headers.append(_NO_STORE)
        return headers
