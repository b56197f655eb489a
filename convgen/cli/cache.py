"""Show where compiled kernels are kept and how much space they take, or remove all of them.
CONVGEN_CACHE_DIR names another folder; CONVGEN_CACHE=0 turns the cache off.

examples:
  convgen cache
  convgen cache clear
"""

from __future__ import annotations

import argparse
import os

from convgen import plurals
from convgen.cache import LIMIT_BYTES, Cache
from convgen.cli import console
from convgen.spec import UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("show", "clear"), default="show", help="default: show")


def run(arguments: argparse.Namespace) -> int:
    cache = Cache()
    if not cache.enabled:
        console.write(f"the cache is off: CONVGEN_CACHE is {os.environ['CONVGEN_CACHE']}")
        return 0
    try:
        os.listdir(cache.root)
    except FileNotFoundError:
        pass  # nothing was compiled yet
    except NotADirectoryError:
        raise UsageError(f"{cache.root}: is not a folder\nhint: set CONVGEN_CACHE_DIR to a folder") from None
    except OSError as e:
        reason = e.strerror or e
        raise UsageError(
            f"{cache.root}: cannot be read: {reason}\nhint: set CONVGEN_CACHE_DIR to a folder of yours"
        ) from None
    entries, size = cache.extent()
    if arguments.action == "show":
        limit = f"of at most {LIMIT_BYTES >> 20} MiB"
        console.write(f"{cache.root}: {plurals.counted(entries, 'entry')}, {size / (1 << 20):.1f} MiB {limit}")
        if reason := cache.distrust:
            remedy = "set CONVGEN_CACHE_DIR to a folder that only you can write to"
            console.warn(f"{cache.root} {reason}, so it is not used\nhint: {remedy}")
        elif not cache.can_be_written:
            remedy = "set CONVGEN_CACHE_DIR to a folder that you can write to"
            console.warn(f"{cache.root} cannot be written, so it is not used\nhint: {remedy}")
        return 0
    left = cache.clear()
    if left:
        stays = f"{plurals.counted(left, 'entry')} could not be removed"
        raise UsageError(f"{cache.root}: {stays}\nhint: see who owns that folder")
    console.write(f"{cache.root}: {plurals.counted(entries, 'entry')} removed, {size / (1 << 20):.1f} MiB")
    return 0
