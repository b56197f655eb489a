"""Builds the site from the pages of the tree, by MkDocs: a warning is an error.

    python website/build.py --out DIR
    python website/build.py --serve      # builds, and shows it at http://localhost:8000

Pages keep their places and their relative links: README.md is the first page, and what pages link to that is no page
(specs, results, generated source) comes along.  A folder that is linked gets a page that lists its files.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "docs/**/*.md", "benchmarks/*.md", "editors/*.md")
_LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)]*)?\))")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def stage(folder: Path) -> None:
    """Puts every page, and what pages link to, into a folder."""
    from railroad_page import page

    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            _put(folder / path.relative_to(ROOT), _with_pages_of_folders(path, folder).encode())
    text, pictures = page((ROOT / "grammar" / "conv.lark").read_text(encoding="utf-8"))
    _put(folder / "docs" / "grammar" / "index.md", text.encode())
    for name, data in pictures.items():
        _put(folder / "docs" / "grammar" / name, data)


def _with_pages_of_folders(path: Path, folder: Path) -> str:
    """A page's text, whose links to folders lead to pages; what else it links to is staged."""

    def link(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        there = (path.parent / target).resolve()
        if target.startswith(("http:", "https:", "mailto:")) or not there.is_relative_to(ROOT):
            return found[0]
        if there.is_dir():
            names = [name for name in ("README.md", "index.md") if (there / name).exists()]
            return f"{before}{target.rstrip('/')}/{names[0] if names else _list(there, folder)}{after}"
        if there.suffix != ".md" and there.is_file():
            _put(folder / there.relative_to(ROOT), there.read_bytes())
        return found[0]

    text = path.read_text(encoding="utf-8")
    return "".join(part if is_code else _LINK.sub(link, part) for is_code, part in _parts(text))


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """Code, and what is between it."""
    at = 0
    for found in _CODE.finditer(text):
        if "](" not in text[found.end() : found.end() + 2]:  # a link's text may be code
            yield False, text[at : found.start()]
            yield True, found[0]
            at = found.end()
    yield False, text[at:]


def _list(there: Path, folder: Path) -> str:
    """Stages the files of a folder with a page that lists them; gives the page's name."""
    files = [p for p in sorted(there.iterdir()) if p.is_file() and not p.name.startswith(".")]
    where = there.relative_to(ROOT)
    for path in files:
        _put(folder / where / path.name, path.read_bytes())
    rows = "\n".join(f"- [{p.name}]({p.name})" for p in files)
    _put(folder / where / "index.md", f"# {where}\n\n{rows}\n".encode())
    return "index.md"


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _left_out(menu: list) -> list[str]:
    """Pages of docs/ that the menu does not name."""
    pages = (
        p.relative_to(ROOT).as_posix() for p in [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/README.md")]
    )
    return sorted(page for page in pages if f"'{page}'" not in str(menu))


def build(out: Path) -> None:
    """Writes the site.  Raises SystemExit where MkDocs warns of anything."""
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    with tempfile.TemporaryDirectory() as staged:
        stage(Path(staged))
        config = load_config(
            str(ROOT / "website" / "mkdocs.yml"), docs_dir=staged, site_dir=str(out.absolute()), strict=True
        )
        if config["nav"] and (more := _left_out(config["nav"])):
            config["nav"].append({"More": more})
        try:
            build_site(config)
        except Abort as e:
            raise SystemExit(f"the site is not built: {e}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / f"convgen-site-{os.getuid()}")
    parser.add_argument("--serve", action="store_true")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.out, ignore_errors=True) if (arguments.out / "sitemap.xml").exists() else None
    build(arguments.out)
    print(f"wrote {arguments.out}", file=sys.stderr)
    if arguments.serve:
        print("http://localhost:8000", file=sys.stderr)
        handler = partial(SimpleHTTPRequestHandler, directory=str(arguments.out))
        ThreadingHTTPServer(("localhost", 8000), handler).serve_forever()


if __name__ == "__main__":
    main()
