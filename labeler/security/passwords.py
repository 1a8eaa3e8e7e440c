"""Password hashing with Argon2id, and limits on guessing."""

from __future__ import annotations

import base64
import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import argon2

from labeler.security.addresses import network

MIN_PASSWORD_LENGTH, MAX_PASSWORD_LENGTH = 12, 128
"""Characters of a password. NIST SP 800-63B asks for length, not for symbols."""

# RFC 9106's second recommended option (64 MiB, 3 passes), on one core: annotators need the others.
_ARGON2 = argon2.PasswordHasher(parallelism=1)
# The hash that unknown names are compared with: it must take as long as a real one.
_NOBODY = (
    f"$argon2id$v=19$m={_ARGON2.memory_cost},t={_ARGON2.time_cost},p={_ARGON2.parallelism}"
    f"${'A' * 22}${'A' * 43}"
)
# One hash at a time: a burst of sign-ins must not take all memory and all cores. Few may wait for
# it, because each holds a thread that labeling needs too. Strangers have places of their own, so
# they cannot take those of people who have an invite or have signed in before.
_ONE_AT_A_TIME = threading.Lock()
_STRANGERS = threading.BoundedSemaphore(4)
_KNOWN = threading.BoundedSemaphore(8)


class Busy(RuntimeError):
    """Too many passwords are being checked; try again after `seconds`."""

    def __init__(self, sentence: str, seconds: float = 5.0) -> None:
        super().__init__(sentence)
        self.seconds = seconds


def hash_password(password: str) -> str:
    """The Argon2id hash of a new password; ``ValueError`` if its length is not allowed.

    Only for people who have proved who they are, by an invite.
    """
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        raise ValueError(
            f"Choose a password of {MIN_PASSWORD_LENGTH} to {MAX_PASSWORD_LENGTH} characters."
        )
    return rehash_password(password)


def rehash_password(password: str) -> str:
    """The Argon2id hash of a password that was just checked, whatever its length."""
    with _turn(_KNOWN):
        return _ARGON2.hash(_as_bytes(password))


def check_password(password: str, stored: str | None, *, known: bool = False) -> bool:
    """Whether `password` matches the hash `stored`; takes as long if there is none.

    `known`: the request comes from a browser in which the person has signed in before.
    """
    with _turn(_KNOWN if known else _STRANGERS):
        if stored is not None and _is_scrypt(stored):
            return _check_scrypt(password, stored)
        try:
            return _ARGON2.verify(stored or _NOBODY, _as_bytes(password)) and stored is not None
        except argon2.exceptions.VerifyMismatchError:
            return False


def needs_rehash(stored: str) -> bool:
    """Whether a hash was made by scrypt or with other parameters than today's."""
    return _is_scrypt(stored) or _ARGON2.check_needs_rehash(stored)


def _is_scrypt(stored: str) -> bool:
    return stored.startswith("scrypt$")


def _check_scrypt(password: str, stored: str) -> bool:
    """Check a hash of earlier versions: ``scrypt$N$r$p$salt$hash``, the last two in base64."""
    _, n, r, p, salt, derived = stored.split("$")
    found = hashlib.scrypt(
        _as_bytes(password),
        salt=base64.b64decode(salt),
        n=int(n),
        r=int(r),
        p=int(p),
        maxmem=2 * 128 * int(n) * int(r),
    )
    return hmac.compare_digest(found, base64.b64decode(derived))


@contextmanager
def _turn(places: threading.BoundedSemaphore) -> Iterator[None]:
    """Wait for the turn to hash; `Busy` if all places are taken."""
    if not places.acquire(blocking=False):
        raise Busy("Many people are signing in right now. Try again in a few seconds.")
    try:
        with _ONE_AT_A_TIME:
            yield
    finally:
        places.release()


def _as_bytes(password: str) -> bytes:
    return password.encode("utf-8", "surrogatepass")


class Lockout:
    """Counts failed sign-ins per name; after five, each pause is longer than the one before.

    A browser in which somebody has signed in before is counted separately, under its own name.
    Kept in memory: five guesses per restart do not find a password of twelve characters.
    `clock` gives seconds.
    """

    FREE = 5
    FIRST_WAIT, MAX_WAIT = 60.0, 3600.0
    NAMES = 10_000  # remembered at most: strangers may try any name
    TIMES = 12  # attempts remembered per name; by then the pause is the longest

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Times of each name's attempts, oldest first. Names are in the order of their last attempt.
        self._failures: dict[bytes, tuple[float, ...]] = {}
        self._lock = threading.Lock()

    def attempt(self, name: str) -> float:
        """Count an attempt as failed, or return the seconds until `name` may try again.

        Call it before the password is checked, so that guesses sent at the same time count too.
        `succeeded` forgets it.
        """
        key = _digest(name)
        with self._lock:
            times, moment = self._failures.pop(key, ()), self._clock()
            wait = self._wait(times, moment)
            if len(self._failures) >= self.NAMES:
                # A flood of names must not free one that waits. Of the others, forget the one that
                # was tried longest ago: a name under attack is tried again soon.
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
        pause = min(self.FIRST_WAIT * 2 ** (len(times) - self.FREE), self.MAX_WAIT)
        return max(0.0, times[-1] + pause - moment)

    def forgive(self, name: str) -> None:
        """Take back an attempt that was not answered."""
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
    """A key of fixed length: strangers choose the names."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()


class Allowance:
    """How many wrong passwords an address may send: `AT_ONCE`, then one `EVERY` few seconds.

    A right password costs nothing, so people who share an address do not block each other.
    Kept in memory. `clock` gives seconds.
    """

    AT_ONCE = 20
    EVERY = 6.0
    ADDRESSES = 10_000

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When each address has all its attempts again, in the order of their last attempts.
        self._full_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, address: str) -> float:
        """Use one attempt, or return the seconds until there is one."""
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
        """Return the attempt: the password was right."""
        with self._lock:
            if (key := network(address)) in self._full_at:
                self._full_at[key] -= self.EVERY
