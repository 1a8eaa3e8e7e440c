"""Passwords: hashing with scrypt, and what slows guessing down."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Sequence

from labeler.security.addresses import network

SHORTEST, LONGEST = 12, 128
"""Characters of a password (NIST SP 800-63B asks for length, not for symbols)."""

# OWASP's password storage cheat sheet lists these as equivalent to N=2^17: 32 MiB, ~0.2 s.
_N, _R, _P = 2**15, 8, 3
_MEMORY = 2 * 128 * _N * _R
# One derivation at a time: otherwise a burst of sign-ins could take all memory and both cores.
# Few may wait for it: each holds a thread that labeling needs too.  Strangers have places of their
# own, so that they cannot take those of people who have an invite or have signed in before.
_ONE_AT_A_TIME = threading.Lock()
_STRANGERS = threading.BoundedSemaphore(4)
_KNOWN = threading.BoundedSemaphore(8)


class Busy(RuntimeError):
    """Too many passwords are being checked; `seconds` until trying again makes sense."""

    def __init__(self, sentence: str, seconds: float = 5.0) -> None:
        super().__init__(sentence)
        self.seconds = seconds


def hash_password(password: str) -> str:
    """``scrypt$N$r$p$salt$hash`` (base64); ``ValueError`` for a password of a wrong length.

    For people who have proved who they are, by an invite.
    """
    if not SHORTEST <= len(password) <= LONGEST:
        raise ValueError(
            f"Choose a password of at least {SHORTEST} characters, and at most {LONGEST}."
        )
    salt = secrets.token_bytes(16)
    derived = _scrypt(password, salt, n=_N, r=_R, p=_P, places=_KNOWN)
    return "$".join(["scrypt", str(_N), str(_R), str(_P), _base64(salt), _base64(derived)])


def check_password(password: str, stored: str | None, *, known: bool = False) -> bool:
    """Whether `password` is the stored one; takes as long when there is none to compare with.

    `known` says that the browser is one in which the person has signed in before.
    """
    # An unknown name must not answer faster than a known one.
    _, n, r, p, salt, derived = (stored or _NOBODY).split("$")
    places = _KNOWN if known else _STRANGERS
    found = _scrypt(password, base64.b64decode(salt), n=int(n), r=int(r), p=int(p), places=places)
    return hmac.compare_digest(found, base64.b64decode(derived)) and stored is not None


def _scrypt(
    password: str, salt: bytes, *, n: int, r: int, p: int, places: threading.BoundedSemaphore
) -> bytes:
    if not places.acquire(blocking=False):
        raise Busy("Many people are signing in at this moment. Try again in a few seconds.")
    try:
        with _ONE_AT_A_TIME:
            return hashlib.scrypt(
                password.encode("utf-8", "surrogatepass"), salt=salt, n=n, r=r, p=p, maxmem=_MEMORY
            )
    finally:
        places.release()


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


_NOBODY = "$".join(["scrypt", str(_N), str(_R), str(_P), _base64(bytes(16)), _base64(bytes(64))])


class Lockout:
    """Counts failed sign-ins per name; after five the name waits, longer each time.

    A browser in which somebody has signed in before counts by itself, under a name of its own.

    Kept in memory: a restart forgets it, and guessing a ten-character password five times a
    restart leads nowhere.  `clock` gives seconds.
    """

    FREE = 5
    FIRST_WAIT, LONGEST_WAIT = 60.0, 3600.0
    NAMES = 10_000  # names remembered at most: strangers may try any name
    TIMES = 12  # attempts remembered of a name; by then the pause is the longest

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When each attempt of a name was, oldest first; names by their last attempt.
        self._failures: dict[bytes, tuple[float, ...]] = {}
        self._lock = threading.Lock()

    def attempt(self, name: str) -> float:
        """Count an attempt as failed, or give the seconds until `name` may try again.

        Counted before the password is checked, so that a burst of guesses at once is one too many
        as well; `succeeded` forgets it.
        """
        key = _digest(name)
        with self._lock:
            times, moment = self._failures.pop(key, ()), self._clock()
            wait = self._wait(times, moment)
            if len(self._failures) >= self.NAMES:
                # A flood of names must free none that waits; of the others the one goes that was
                # tried longest ago, for one that is being guessed at comes again at once.
                free = (
                    name for name, each in self._failures.items() if not self._wait(each, moment)
                )
                del self._failures[next(free, next(iter(self._failures)))]
            self._failures[key] = times if wait else (*times, moment)[-self.TIMES :]
            return wait

    def _wait(self, times: Sequence[float], moment: float) -> float:
        """Seconds from `moment` until a name with these failures may try again."""
        if len(times) < self.FREE:
            return 0.0
        pause = min(self.FIRST_WAIT * 2 ** (len(times) - self.FREE), self.LONGEST_WAIT)
        return max(0.0, times[-1] + pause - moment)

    def forgive(self, name: str) -> None:
        """Take back an attempt that came to no answer: all is as it was before it."""
        key = _digest(name)
        with self._lock:
            *earlier, _ = self._failures.pop(key, (0.0,))
            if earlier:
                self._failures[key] = tuple(earlier)

    def succeeded(self, name: str) -> None:
        """Forget the failures of `name`."""
        with self._lock:
            self._failures.pop(_digest(name), None)


def _digest(name: str) -> bytes:
    """As long for any name: strangers choose them."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()


class Allowance:
    """How many wrong passwords an address may send: some at once, then one every few seconds.

    A right one costs nothing, so people who share an address do not use it up for each other.
    Kept in memory.  `clock` gives seconds.
    """

    AT_ONCE = 20
    EVERY = 6.0
    ADDRESSES = 10_000

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When each address will have all its attempts again; the one that asked last comes last.
        self._full_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, address: str) -> float:
        """Use one attempt up, or give the seconds until there is one."""
        key = network(address)
        with self._lock:
            moment = self._clock()
            full_at = max(self._full_at.pop(key, moment), moment) + self.EVERY
            wait = full_at - moment - self.AT_ONCE * self.EVERY
            if len(self._full_at) >= self.ADDRESSES:
                del self._full_at[next(iter(self._full_at))]
            self._full_at[key] = full_at if wait <= 0 else full_at - self.EVERY
            return max(0.0, wait)

    def give_back(self, address: str) -> None:
        """The attempt was right."""
        with self._lock:
            if (key := network(address)) in self._full_at:
                self._full_at[key] -= self.EVERY
