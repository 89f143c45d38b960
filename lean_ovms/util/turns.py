"""Who is next, when several wait with any number of items each."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """Items of several owners; the owners take turns."""

    def __init__(self) -> None:
        self._items: OrderedDict[Hashable, deque[T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._items)

    def of(self, owner: Hashable) -> int:
        """Returns how many items an owner has."""
        return len(self._items.get(owner, ()))

    def add(self, owner: Hashable, item: T) -> None:
        self._items.setdefault(owner, deque()).append(item)

    def next(self) -> T | None:
        """Returns the first item of the owner whose turn it is, removed."""
        if not self._items:
            return None
        owner, items = self._items.popitem(last=False)
        item = items.popleft()
        if items:
            self._items[owner] = items
        return item
