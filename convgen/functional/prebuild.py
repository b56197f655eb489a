"""Many kernels at once: built by processes of their own, for this one to take from the cache on disk.

The processes run this module, not the caller's script: a script need not guard its top level.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from convgen.diagnostics import ConvgenError
from convgen.resources import cache_is_off

#: Fewer kernels than this are built sooner by the process at hand.
_WORTHWHILE = 4
_MOST_WORKERS = 32
#: Bytes of a number in a pipe, and how many of them a pipe holds at once.
_NUMBER = 4
_MOST_NUMBERS = (1 << 16) // _NUMBER


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
    with _queue(len(texts)) as queue, tempfile.TemporaryFile() as file:
        file.write(json.dumps(texts).encode())
        file.flush()
        shared = queue, file.fileno()
        command = [sys.executable, "-m", __name__, *map(str, shared)]
        nothing = subprocess.DEVNULL
        running = [
            subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing, env=environment, pass_fds=shared)
            for _ in range(workers)
        ]
    try:
        yield
        for process in running:
            process.wait()
    finally:
        for process in running:
            process.kill()
            process.wait()


@contextmanager
def _queue(count: int) -> Iterator[int]:
    """The end of a pipe from which processes take the numbers below `count`, each of which goes to one of them: some
    kernels take five times as long as others."""
    queue, write = os.pipe()
    try:
        with os.fdopen(write, "wb") as pipe:
            pipe.write(b"".join(i.to_bytes(_NUMBER) for i in range(min(count, _MOST_NUMBERS))))
        yield queue
    finally:
        os.close(queue)


def main() -> None:
    """Builds the kernels of the texts in a file whose numbers it gets from a queue; both are open."""
    import convgen

    os.nice(10)  # the process that waits for the kernels may time others meanwhile
    queue, file = map(int, sys.argv[1:])
    texts = json.loads(os.pread(file, os.fstat(file).st_size, 0))
    while number := os.read(queue, _NUMBER):
        try:
            convgen.compile(texts[int.from_bytes(number)])
        except ConvgenError:
            continue


if __name__ == "__main__":
    main()
