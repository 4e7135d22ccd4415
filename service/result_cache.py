"""Answers as they were written, under their content id: asked the same again, the model does not run again.

In this process only, and bounded in bytes. There is no expiry: the id holds all that determines an answer, so what is
kept never grows stale, only unwanted.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict

# One entry takes at most 1/8 of the room: a single large answer does not drive all others out
LARGEST_SHARE = 8
Answer = bytes  # as it was written, before any compression
SLOT_BYTES = 200  # what CPython's ordered dict takes an entry beside key and answer, rounded up


class ResultCache:
    """The answers asked for last, of at most `max_bytes` with their keys and the dictionary; 0 keeps none.

    Of answers that do not fit, those go first that nobody has asked for the longest. Safe to use from many threads.

    Two that ask the same at the same time both get it computed. To let the second wait for the first, it would have to
    hold a place in flight (else waiting requests would take the threads that answer /health), keep its own deadline,
    and compute after all where the first fails: all this to spare at most `max_in_flight` runs a key, once, of which
    the short ones share a pass in the engine as it is.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._answers: OrderedDict[str, Answer] = OrderedDict()  # the last one was asked for last
        self._lock = threading.Lock()
        self._bytes = 0
        self._hits = 0
        self._misses = 0

    @property
    def enabled(self) -> bool:
        """Whether anything is kept."""
        return self.max_bytes > 0

    @property
    def bytes(self) -> int:
        """What is kept now, keys and dictionary included; never more than `max_bytes`."""
        return self._bytes

    @property
    def hits(self) -> int:
        """Look-ups that found an answer."""
        return self._hits

    @property
    def misses(self) -> int:
        """Look-ups that found none, whatever came of the request."""
        return self._misses

    @property
    def entries(self) -> int:
        """How many answers are kept."""
        return len(self._answers)

    def get(self, key: str) -> Answer | None:
        """The answer under this id, None where it is not kept."""
        if not self.enabled:
            return None
        with self._lock:
            found = self._answers.get(key)
            if found is None:
                self._misses += 1
                return None
            self._hits += 1
            self._answers.move_to_end(key)
            return found

    def put(self, key: str, answer: Answer) -> None:
        """Keep an answer, unless it is too large; others make room for it."""
        size = cost(key, answer)
        if size * LARGEST_SHARE > self.max_bytes:
            return
        with self._lock:
            if (old := self._answers.pop(key, None)) is not None:
                self._bytes -= cost(key, old)
            while self._bytes + size > self.max_bytes:
                self._bytes -= cost(*self._answers.popitem(last=False))
            self._answers[key] = answer
            self._bytes += size


def cost(key: str, answer: Answer) -> int:
    """Bytes of memory that an entry takes. Its headers take none: they follow from the format that was asked for."""
    return sys.getsizeof(key) + sys.getsizeof(answer) + SLOT_BYTES
