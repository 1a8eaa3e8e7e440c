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

# RFC 9106's second recommended option (64 MiB, 3 passes), on one core, because annotators need the
# others.
_ARGON2 = argon2.PasswordHasher(parallelism=1)
# The hash for unknown names; checking it must take as long as checking a real one.
_NOBODY = (
    f"$argon2id$v=19$m={_ARGON2.memory_cost},t={_ARGON2.time_cost},p={_ARGON2.parallelism}"
    f"${'A' * 22}${'A' * 43}"
)
# One hash at a time: a burst of sign-ins must not take all memory and cores. Few requests may wait,
# because each holds a thread that labeling needs too. Anonymous clients have separate places, so
# that they do not block users who have an invite or have signed in before.
_ONE_AT_A_TIME = threading.Lock()
_ANONYMOUS = threading.BoundedSemaphore(4)
_KNOWN = threading.BoundedSemaphore(8)


WRONG_LENGTH = f"Choose a password of {MIN_PASSWORD_LENGTH} to {MAX_PASSWORD_LENGTH} characters."
MANY_SIGN_INS = "Many people are signing in right now. Try again in a few seconds."


class Busy(RuntimeError):
    """Too many passwords are being checked; try again after `seconds`."""

    def __init__(self, sentence: str, seconds: float = 5.0) -> None:
        super().__init__(sentence)
        self.seconds = seconds


def hash_password(password: str) -> str:
    """The Argon2id hash of a new password; ``ValueError`` if its length is not allowed.

    Only for users who have proved their identity with an invite.
    """
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        raise ValueError(WRONG_LENGTH)
    return rehash_password(password)


def rehash_password(password: str) -> str:
    """The Argon2id hash of a password that was just checked; any length is allowed."""
    with _turn(_KNOWN):
        return _ARGON2.hash(_as_bytes(password))


def check_password(password: str, stored: str | None, *, known: bool = False) -> bool:
    """Whether `password` matches the hash `stored`; takes equally long without a hash.

    `known`: the request comes from a browser in which the user has signed in before.
    """
    with _turn(_KNOWN if known else _ANONYMOUS):
        if stored is not None and _is_scrypt(stored):
            return _check_scrypt(password, stored)
        try:
            return _ARGON2.verify(stored or _NOBODY, _as_bytes(password)) and stored is not None
        except argon2.exceptions.VerifyMismatchError:
            return False


def needs_rehash(stored: str) -> bool:
    """Whether a hash was made with scrypt or with outdated parameters."""
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
    """Wait until no other hash is being computed; `Busy` if all places are taken."""
    if not places.acquire(blocking=False):
        raise Busy(MANY_SIGN_INS)
    try:
        with _ONE_AT_A_TIME:
            yield
    finally:
        places.release()


def _as_bytes(password: str) -> bytes:
    return password.encode("utf-8", "surrogatepass")


class Lockout:
    """Counts failed sign-ins per name; after five, each pause is longer than the previous one.

    A browser in which a user has signed in before is counted separately, under its own name.
    Kept in memory: five guesses per restart do not find a password of twelve characters.
    `clock` returns seconds.
    """

    FREE = 5
    FIRST_WAIT, MAX_WAIT = 60.0, 3600.0
    NAMES = 10_000  # limit of stored names, because attackers may try any name
    TIMES = 12  # stored attempts per name; by then the pause has its maximum

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # The times of each name's attempts, oldest first; names in the order of the last attempt.
        self._failures: dict[bytes, tuple[float, ...]] = {}
        self._lock = threading.Lock()

    def attempt(self, name: str) -> float:
        """Count an attempt as failed, or return the seconds until `name` may try again.

        Call it before the password is checked, so that simultaneous guesses count too. `succeeded`
        forgets it.
        """
        key = _digest(name)
        with self._lock:
            times, moment = self._failures.pop(key, ()), self._clock()
            wait = self._wait(times, moment)
            if len(self._failures) >= self.NAMES:
                # A flood of names must not end the pause of another name. Among names without a
                # pause, forget the least recent: a name under attack is tried again soon.
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
        """Remove an attempt that was not answered."""
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
    """A key of fixed length, because attackers choose the names."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()


class Refusals:
    """Limits the audit log's entries on refused sign-ins: one for each account in `PAUSE` seconds, and
    `AT_ONCE` for all of them in an hour, so that strangers cannot fill the disk.

    Kept in memory. `clock` returns seconds.
    """

    PAUSE = 600.0
    AT_ONCE = 100
    HOUR = 3600.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, float] = {}
        self._waiting: dict[str, int] = {}
        self._lock = threading.Lock()

    def count(self, account: str) -> int:
        """Count a refused sign-in.  Returns how many to note now; 0 to note them later.

        `account` is the id of an account, or "" for all unknown names: so the ids are few.
        """
        with self._lock:
            moment = self._clock()
            self._waiting[account] = self._waiting.get(account, 0) + 1
            recent = sum(moment - last < self.HOUR for last in self._last.values())
            if moment - self._last.get(account, -self.PAUSE) < self.PAUSE or recent >= self.AT_ONCE:
                return 0
            self._last[account] = moment
            return self._waiting.pop(account)


class Allowance:
    """Limits wrong passwords per address: `AT_ONCE` attempts, then one per `EVERY` seconds.

    A correct password does not count, so users who share an address do not block each other.
    Kept in memory. `clock` returns seconds.
    """

    AT_ONCE = 20
    EVERY = 6.0
    ADDRESSES = 10_000

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # When each address has all its attempts again, in the order of the last attempt.
        self._full_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def take(self, address: str) -> float:
        """Use one attempt, or return the seconds until one is available."""
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
        """Return an attempt whose password was correct."""
        with self._lock:
            if (key := network(address)) in self._full_at:
                self._full_at[key] -= self.EVERY
