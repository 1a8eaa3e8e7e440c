"""Answers as frozen dataclasses, lists of them that become data frames, and lists read page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from kitestring.client.connection import StudioError

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
NO_PANDAS = "Data frames need pandas. Install it with `pip install pandas`."


def parsed(kind: type[T], data: Mapping[str, Any]) -> T:
    """A dataclass from JSON; fields that a newer server adds are ignored.

    Raises StudioError if a field is missing.
    """
    values = {}
    for each in fields(kind):  # pyright: ignore[reportArgumentType]
        if each.name in data:
            values[each.name] = _value(_types(kind)[each.name], data[each.name])
        elif each.default is MISSING and each.default_factory is MISSING:
            raise StudioError(
                f"The studio's answer has no {each.name!r} ({kind.__name__}). Install the client of "
                "the studio's version."
            )
    return kind(**values)


@cache
def _types(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _value(wanted: Any, value: Any) -> Any:
    if value is None:
        return None
    if get_origin(wanted) in (Union, UnionType):
        kinds = [each for each in get_args(wanted) if each is not type(None)]
        wanted = kinds[0] if len(kinds) == 1 else Any
    if wanted is datetime:
        return datetime.fromisoformat(value)
    if is_dataclass(wanted):
        return parsed(wanted, value)  # pyright: ignore[reportArgumentType]
    if get_origin(wanted) in (tuple, Rows):
        inner = get_args(wanted)[0]
        made = [_value(inner, each) for each in value]
        return Rows(inner, made) if get_origin(wanted) is Rows else tuple(made)
    if get_origin(wanted) is Mapping:
        return {key: _value(get_args(wanted)[1], each) for key, each in value.items()}
    return value


class Rows(Sequence[T], Generic[T]):
    """Records of one kind, in order; `frame` has them as a pandas DataFrame."""

    def __init__(self, kind: type[T], rows: Iterable[T]) -> None:
        self._kind, self._rows = kind, tuple(rows)

    @classmethod
    def of(cls, kind: type[T], data: Iterable[Mapping[str, Any]]) -> Rows[T]:
        """From JSON."""
        return cls(kind, (parsed(kind, each) for each in data))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        found = self._rows[index]
        return Rows(self._kind, found) if isinstance(index, slice) else found

    def __iter__(self) -> Iterator[T]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and self._rows == other._rows

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"Rows({self._kind.__name__}, {len(self)} rows; .frame() is a DataFrame)"

    def frame(self) -> pd.DataFrame:
        """A row for each record and a column for each field; times are in UTC."""
        return frame(self._kind, self._rows)


def frame(kind: type[Any], rows: Iterable[Any]) -> pd.DataFrame:
    """A data frame whose columns are the fields of `kind`, also without rows."""
    try:
        import pandas as pd  # noqa: PLC0415 (the client works without it)
    except ImportError:
        raise StudioError(NO_PANDAS) from None
    names = [each.name for each in fields(kind)]
    cells = [[getattr(row, name) for name in names] for row in rows]
    return pd.DataFrame(cells, columns=pd.Index(names))


class Pages(Generic[T]):
    """A list that is read from the studio page by page, as far as it is needed.

    Each loop over it reads it again, so it shows what has changed in the meantime.
    """

    def __init__(
        self, kind: type[T], page: Callable[[str | None, int], Mapping[str, Any]], size: int
    ) -> None:
        self._kind, self._page, self._size = kind, page, size
        self._first: Mapping[str, Any] | None = None

    @property
    def total(self) -> int:
        """How many records match."""
        return self._head()["total"]

    @property
    def facets(self) -> Mapping[str, Any]:
        """The rest of the first page: how many records have each value (docs/http.md)."""
        return {k: v for k, v in self._head().items() if k not in ("rows", "total", "after")}

    def __iter__(self) -> Iterator[T]:
        after = None
        while True:
            page = self._page(after, self._size)
            for row in page["rows"]:
                yield parsed(self._kind, row)
            after = page["after"]
            if after is None:
                return

    def rows(self, limit: int | None = None) -> Rows[T]:
        """The first `limit` records, or all."""
        found = []
        for row in self if limit is None or limit > 0 else ():
            found.append(row)
            if len(found) == limit:
                break
        return Rows(self._kind, found)

    def frame(self, limit: int | None = None) -> pd.DataFrame:
        """The same as a pandas DataFrame."""
        return self.rows(limit).frame()

    def __repr__(self) -> str:
        return f"Pages({self._kind.__name__}; loop over it, or call .rows() or .frame())"

    def _head(self) -> Mapping[str, Any]:
        if self._first is None:
            self._first = self._page(None, 1)
        return self._first
