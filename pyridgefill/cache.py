"""Caches of saved states, in which those with filled cells have keys of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyridgefill._library import import_llama_cpp

import_llama_cpp()

from llama_cpp.llama_cache import BaseLlamaCache  # noqa: E402

# no token: what is looked up by tokens alone never meets a key that starts with it
_FILLED = -1


class FilledCache(BaseLlamaCache):
    """A cache for an object with maps, on top of one that others may share.

    `llama_cpp.Llama` does not ask which cells of a state were filled; it does not find such states here.

    Parameters
    ----------
    cache
        Keeps the states.
    is_filled
        Whether the state that is stored now has cells that an exact prompt must not build on.
    """

    def __init__(self, cache: Any, is_filled: Callable[[], bool]) -> None:
        super().__init__(cache.capacity_bytes)
        self._cache, self._is_filled = cache, is_filled

    @property
    def cache_size(self) -> int:
        """Bytes of all states."""
        return int(self._cache.cache_size)

    def _longer(self, key: Sequence[int]) -> tuple[int, ...]:
        """The key, filled or exact, under which the longer prefix is stored."""

        def matching(asked: tuple[int, ...]) -> int:
            found = self._cache._find_longest_prefix_key(asked) or ()
            return next((i for i, (a, b) in enumerate(zip(asked, found, strict=False)) if a != b), len(found))

        return max(((_FILLED, *key), tuple(key)), key=lambda asked: matching(asked) - (asked[0] == _FILLED))

    def __getitem__(self, key: Sequence[int]) -> Any:
        return self._cache[self._longer(key)]

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._longer(key) in self._cache

    def __setitem__(self, key: Sequence[int], value: Any) -> None:
        self._cache[(_FILLED, *key) if self._is_filled() else tuple(key)] = value
