"""Passwords: hashing with scrypt, and the pause after repeated failures."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

SHORTEST = 10
"""Characters a password needs (NIST SP 800-63B asks for length, not for symbols)."""

# OWASP's password storage cheat sheet lists these as equivalent to N=2^17: 32 MiB, ~0.2 s.
_N, _R, _P = 2**15, 8, 3
_MEMORY = 2 * 128 * _N * _R
# One derivation at a time: otherwise a burst of sign-ins could take all memory and both cores.
_ONE_AT_A_TIME = threading.Lock()


def hash_password(password: str) -> str:
    """``scrypt$N$r$p$salt$hash`` (base64); ``ValueError`` when the password is too short."""
    if len(password) < SHORTEST:
        raise ValueError(f"Choose a password of at least {SHORTEST} characters.")
    salt = secrets.token_bytes(16)
    derived = _scrypt(password, salt, n=_N, r=_R, p=_P)
    return "$".join(["scrypt", str(_N), str(_R), str(_P), _base64(salt), _base64(derived)])


def check_password(password: str, stored: str | None) -> bool:
    """Whether `password` is the stored one; takes as long when there is none to compare with."""
    # An unknown name must not answer faster than a known one.
    _, n, r, p, salt, derived = (stored or _NOBODY).split("$")
    found = _scrypt(password, base64.b64decode(salt), n=int(n), r=int(r), p=int(p))
    return hmac.compare_digest(found, base64.b64decode(derived)) and stored is not None


def _scrypt(password: str, salt: bytes, *, n: int, r: int, p: int) -> bytes:
    with _ONE_AT_A_TIME:
        return hashlib.scrypt(
            password.encode("utf-8", "surrogatepass"), salt=salt, n=n, r=r, p=p, maxmem=_MEMORY
        )


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


_NOBODY = "$".join(["scrypt", str(_N), str(_R), str(_P), _base64(bytes(16)), _base64(bytes(64))])


class Lockout:
    """Counts failed sign-ins per name; after five the name waits, longer each time.

    Kept in memory: a restart forgets it, and guessing a ten-character password five times a
    restart leads nowhere.  `clock` gives seconds.
    """

    FREE = 5
    FIRST_WAIT, LONGEST_WAIT = 60.0, 3600.0
    NAMES = 10_000  # names remembered at most: strangers may try any name

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._lock = threading.Lock()

    def wait(self, name: str) -> float:
        """Seconds until `name` may try again; 0 when it may now."""
        with self._lock:
            count, last = self._failures.get(name, (0, 0.0))
            if count < self.FREE:
                return 0.0
            pause = min(self.FIRST_WAIT * 2 ** (count - self.FREE), self.LONGEST_WAIT)
            return max(0.0, last + pause - self._clock())

    def failed(self, name: str) -> None:
        """Note a wrong password."""
        with self._lock:
            count, _ = self._failures.pop(name, (0, 0.0))
            self._failures[name] = (count + 1, self._clock())
            if len(self._failures) > self.NAMES:
                self._failures.popitem(last=False)

    def succeeded(self, name: str) -> None:
        """Forget the failures of `name`."""
        with self._lock:
            self._failures.pop(name, None)
