"""A queue in which several owners, each with any number of items, take turns."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class RoundRobin(Generic[T]):
    """The items of several owners, who take turns."""

    def __init__(self) -> None:
        self._items: OrderedDict[Hashable, deque[T]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._items)

    def of(self, owner: Hashable) -> int:
        """Returns the number of an owner's items."""
        return len(self._items.get(owner, ()))

    def add(self, owner: Hashable, item: T) -> None:
        self._items.setdefault(owner, deque()).append(item)

    def next(self, may: Callable[[T], bool] | None = None) -> T | None:
        """Removes and returns the first item of the owner whose turn it is, among those whose first item may go."""
        owner = next((one for one, items in self._items.items() if may is None or may(items[0])), None)
        if owner is None:
            return None
        items = self._items.pop(owner)
        item = items.popleft()
        if items:
            self._items[owner] = items
        return item

    def remove(self, owner: Hashable, item: T) -> bool:
        """Removes an item; returns False if `next` has returned it already."""
        items = self._items.get(owner, deque())
        if item not in items:
            return False
        items.remove(item)
        if not items:
            del self._items[owner]
        return True
