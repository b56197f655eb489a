"""Run the language server for editors: diagnostics as you type, meanings on hover, completion, definitions, formatting.
It speaks the Language Server Protocol on standard input and output, and needs pip install 'convgen[lsp]'.
editors/ has an extension for VS Code, and says how to set up others.

examples:
  convgen lsp
"""

from __future__ import annotations

import argparse
import os

from convgen.diagnostics import ConvgenError
from convgen.spec import UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stdio", action="store_true", help="the default; some editors pass it")


def run(arguments: argparse.Namespace) -> int:
    try:
        from convgen.editor.server import server
    except ModuleNotFoundError as e:
        raise ConvgenError(f"the language server needs {e.name}\nhint: pip install 'convgen[lsp]'") from None
    try:
        reads, writes = os.dup(0), os.dup(1)
    except OSError as e:
        raise UsageError(f"standard input or output cannot be used: {e.strerror}") from None
    with os.fdopen(reads, "rb") as read, os.fdopen(writes, "wb") as write:
        server().start_io(read, write)
    return 0
