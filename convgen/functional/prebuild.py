"""Many kernels at once: built by processes of their own, for this one to take from the cache on disk.

The processes run this module, not the caller's script: a script need not guard its top level.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from convgen.diagnostics import ConvgenError
from convgen.resources import cache_is_off

#: Fewer kernels than this are built sooner by the process at hand.
_WORTHWHILE = 4
_MOST_WORKERS = 32


@contextmanager
def prebuilding(texts: Sequence[str]) -> Iterator[None]:
    """Builds the kernels of specs of one convolution each, as many at a time as there are processors, while this
    process does what is within; at its end they are built.

    Says nothing of those that cannot be built: whoever asks for them is told.
    """
    texts = list(dict.fromkeys(texts))
    workers = min(_MOST_WORKERS, len(os.sched_getaffinity(0)), len(texts) // 2)
    if len(texts) < _WORTHWHILE or workers < 2 or cache_is_off():
        yield
        return
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", __name__]
    running = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
        )
        for _ in range(workers)
    ]
    try:
        for i, process in enumerate(running):
            assert process.stdin
            process.stdin.write(json.dumps(texts[i::workers]).encode())
            process.stdin.close()
        yield
        for process in running:
            process.wait()
    finally:
        for process in running:
            process.kill()
            process.wait()


def main() -> None:
    """Builds the kernels of the texts on standard input."""
    import convgen

    os.nice(10)  # the process that waits for the kernels may time others meanwhile
    for text in json.load(sys.stdin):
        try:
            convgen.compile(text)
        except ConvgenError:
            continue


if __name__ == "__main__":
    main()
