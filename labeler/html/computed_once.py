"""A cache with a limit in bytes, because users' texts and their HTML may be large."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class ComputedOnce(Generic[P, T]):
    """A function with a least-recently-used cache of at most `most` bytes. Thread-safe.

    Threads that ask for the same result at the same time wait for the first of them and get its
    result or error. `size` returns the bytes of the arguments (positional, hashable) and the result.
    """

    __wrapped__: Callable[P, T]

    def __init__(
        self, function: Callable[P, T], *, most: int, size: Callable[[tuple[Hashable, ...], T], int]
    ) -> None:
        functools.update_wrapper(self, function)
        self.bytes = 0
        self._most, self._size = most, size
        self._results: OrderedDict[tuple[Hashable, ...], tuple[T, int]] = OrderedDict()
        self._making: dict[tuple[Hashable, ...], Future[T]] = {}
        self._lock = threading.Lock()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        if kwargs:
            raise TypeError("a cached function takes its arguments by position")
        with self._lock:
            if (known := self._results.get(args)) is not None:
                self._results.move_to_end(args)
                return known[0]
            others, mine = self._making.get(args), Future[T]()
            if others is None:
                self._making[args] = mine
        if others is not None:
            return others.result()
        try:
            made = self.__wrapped__(*args, **kwargs)
            size = self._size(args, made)
        except BaseException as error:
            with self._lock:
                del self._making[args]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._making[args]
            self._keep(args, made, size)
        mine.set_result(made)
        return made

    def _keep(self, args: tuple[Hashable, ...], made: T, size: int) -> None:
        if size > self._most:
            return
        self._results[args] = (made, size)
        self.bytes += size
        while self.bytes > self._most:
            _, (_, gone) = self._results.popitem(last=False)
            self.bytes -= gone
