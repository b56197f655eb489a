"""Python's garbage collector, off while configurations are searched."""

from __future__ import annotations

import gc
import os

from convgen.turns import turn


class _NoCollections:
    """No garbage collector while any thread searches: the layouts of a search are gone at its end, and leave no
    garbage.  Looking for it meanwhile, in all that the process has, takes as long as the search."""

    def __init__(self) -> None:
        self._searches, self._were_on = 0, False
        os.register_at_fork(after_in_child=self._forget_searches)

    def __enter__(self) -> None:
        with turn(self):
            if not self._searches:
                self._were_on = gc.isenabled()
                gc.disable()
            self._searches += 1

    def __exit__(self, *_: object) -> None:
        with turn(self):
            self._searches -= 1
            if not self._searches and self._were_on:
                gc.enable()

    def _forget_searches(self) -> None:
        """Turns the collector on again in a forked process, where no thread is searching."""
        if self._searches and self._were_on:
            gc.enable()
        self._searches = 0


#: For `with`, around a search.
no_collections = _NoCollections()
