"""What editors get: answers about places in a spec, the language server's protocol, the extension's files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import needs
import pytest

import convgen
from convgen.editor import facts
from convgen.editor.document import Document
from convgen.frontend.operators import OPERATORS
from convgen.frontend.tokens import grammar
from convgen.ir.dtypes import TENSOR_DTYPES
from convgen.ir.epilogue import FUNCTIONS
from convgen.ir.problem import SPATIAL
from convgen.kernels import strategies
from convgen.targets import TARGETS

VSCODE = Path(__file__).parents[2] / "editors" / "vscode"
SPEC = """\
let batch = 4 * 2
conv layer {
  input  x: f16[n=batch, h=14, w=14, c=64]
  filter w: f16[k=128, r=3, s=3, c=64]
  output y: f16[n, p, q, k]
  pad 1
  epilogue {
    operand b: f32[k]
    t = acc + b
    y = relu(t)
  }
  strategy tma_im2col { tile m=128 n=128 k=64  stages 4 }
  target sm_90a
}
"""
KEYWORDS = {t.pattern.value for t in grammar().terminals if t.pattern.value == t.name.lower()}


def place(text: str, what: str, nth: int = 0) -> tuple[int, int]:
    """Line and column of an occurrence of a text."""
    at = [m.start() for m in re.finditer(re.escape(what), text)][nth]
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


# ---- a document --------------------------------------------------------------------------------


def test_diagnostics_are_those_of_check_and_warnings():
    assert Document(SPEC).diagnostics == ()
    codes = [d.code for d in Document(SPEC.replace("r=3", "r=3.5").replace("sm_90a", "sm_80")).diagnostics]
    assert codes == ["E105"]
    assert {d.code for d in Document(SPEC.replace("sm_90a", "sm_80")).diagnostics} == {"E401"}
    (old,) = Document(SPEC.replace("tma_im2col", "tma_patch").split("{ tile")[0] + "\n}").diagnostics
    assert old.severity == "warning" and "tma_halo" in old.message and old.span.line == 12


@pytest.mark.parametrize(
    ("what", "nth", "said"),
    [
        ("batch", 0, "`batch = 8`"),
        ("batch", 1, "`batch = 8`"),
        ("n=batch", 0, "`n`: images of the batch, 8"),
        ("p, q", 0, "`p`: height of the output, 14"),
        ("x:", 0, "`x: f16[n=8, h=14, w=14, c=64]`, 201 kB"),
        ("b: f32", 0, "`b: f32[k=128]`, 512 B"),
        ("b\n", 0, "`b: f32[k=128]`, 512 B"),
        ("f16", 0, "float16, 2 bytes an element"),
        ("relu", 0, "`relu(x)`: max(x, 0)"),
        ("acc", 0, facts.ACC),
        ("tma_im2col", 0, strategies.STRATEGIES["tma_im2col"].summary),
        ("n=128 k", 0, "`tile.n`: output channels per tile"),
        ("stages", 0, "`stages`: "),
        ("sm_90a", 0, "compute capability 9.0, such as NVIDIA H200"),
        ("pad", 0, facts.KEYWORDS["pad"]),
        ("layer", 0, "fprop, 231 MFLOP"),
    ],
)
def test_hover_says_what_a_word_means(what, nth, said):
    text, span = Document(SPEC).hover(*place(SPEC, what, nth))
    assert said in text
    assert (span.line, span.column) == place(SPEC, what, nth)


def test_of_is_a_word_of_the_language_in_dims():
    text = SPEC.replace("q, k]", "q, k of 256]")
    assert Document(text).hover(*place(text, "of 256"))[0] == facts.OF
    assert ("of", "keyword.other") in scopes("c=64 of 256")
    assert ("of", "keyword.other") not in scopes("of = acc + 1")


def test_words_that_are_names_elsewhere_are_colored_and_explained_where_they_are_words():
    text = SPEC.replace("  pad 1", "  pad 1\n  dynamic n h w  # any").replace(
        "    t = acc", "    result e: f16[n, p, q, k]\n    t = acc"
    )
    assert Document(text).hover(*place(text, "result"))[0] == facts.RESULT
    assert Document(text).hover(*place(text, "dynamic"))[0] == facts.DYNAMIC
    assert ("dynamic", "keyword.other") in scopes("  dynamic n h w  # any")
    assert ("result", "storage.type") in scopes("    result e: f16[n, p, q, k]")
    assert not scopes("result")


def test_hover_shows_formulas():
    text, _ = Document(SPEC).hover(*place(SPEC, "layer"))
    assert "offset of y = 128*gemm_m + gemm_n" in text
    assert Document(SPEC).hover(*place(SPEC, "=")) is None


@pytest.mark.parametrize(
    ("use", "nth", "declared", "nth_declared"),
    [("batch", 1, "batch", 0), ("b\n", 0, "b: f32", 0), ("t)", 0, "t = acc", 0), ("k]", 0, "k=128", 0)],
)
def test_a_name_s_definition(use, nth, declared, nth_declared):
    span = Document(SPEC).definition(*place(SPEC, use, nth))
    assert (span.line, span.column) == place(SPEC, declared, nth_declared)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {"let", "conv"}),
        ("conv a {\n  pad 1\n  st", KEYWORDS - {"let", "conv", "operand"} | {"prologue", "dynamic"}),
        ("conv a {\n  input x: ", set(TENSOR_DTYPES)),
        ("conv a {\n  filter w: f16[k=3, ", {"k", "c", *SPATIAL[3].filter}),
        ("conv a {\n  strategy ", {"auto", *strategies.NAMES}),
        ("conv a {\n  target sm", set(TARGETS)),
        ("conv a {\n  op ", set(OPERATORS)),
        ("conv a {\n  strategy depthwise { kernel ", {"depthwise_stream", "depthwise_direct", "depthwise_wgrad"}),
        ("conv a {\n  strategy direct { ", {"tile"}),
        ("conv a {\n  epilogue {\n    operand b: f32[k]\n    y = re", {"acc", "operand", "result", "b", *FUNCTIONS}),
        ("let ", set()),
        ("let m = 8\nlet n = ", {"m"}),
        ("let m = 8\nconv a {\n  input x: f16[n=", {"m"}),
        ("let m = 8\nconv a {\n  stride ", {"m"}),
        ("# a conv", set()),
        ("conv a {\n  pad 1  # of the filter", set()),
        ("conv a {\n  strategy # ", set()),
    ],
)
def test_completions_are_what_may_stand_there(text, expected):
    lines = text.split("\n")
    found = Document(text).completions(len(lines), len(lines[-1]) + 1)
    assert {c.word for c in found} == expected


def test_every_keyword_and_dim_has_a_meaning():
    assert facts.KEYWORDS.keys() == KEYWORDS
    assert set(facts.DIMS) == {"n", "c", "k"} | {d for dims in vars(SPATIAL[3]).values() for d in dims}


@pytest.mark.parametrize("cut", range(0, len(SPEC), 23))
def test_a_half_written_spec_is_answered_everywhere(cut):
    text = SPEC[:cut]
    document = Document(text)
    for line, content in enumerate(text.split("\n"), 1):
        for column in range(1, len(content) + 2, 5):
            document.hover(line, column)
            document.definition(line, column)
            assert document.completions(line, column) is not None


SHARED = """let n = 2
let x = 3
let w = 4
conv a {
  input x: f16[n, h=14, w=x*5, c=16]  filter w: f16[k=16, r=3, s=3, c=16]  output y: f16[n, p, q, k]
  stride n  pad h=1 w=1
  epilogue { result n: f16[n, p, q, k]  n = acc  y = acc }
}
"""


@pytest.mark.parametrize(
    ("what", "nth", "said", "declared"),
    [
        ("w=1", 0, "`w`: ", "w=x*5"),  # an axis, not the filter
        ("h=1", 1, "`h`: ", "h=14"),
        ("n  pad", 0, "`n = 2`", "n = 2"),  # a size, not the result
        ("x*5", 0, "`x = 3`", "x = 3"),
        ("w=x", 0, "`w`: ", "w=x*5"),  # a dim with an extent, not the let
        ("n, h", 0, "`n`: ", "n = 2"),  # a dim whose extent the let is
        ("n = acc", 0, "`n: f16[n=2,", "n: f16"),
    ],
)
def test_dims_lets_and_tensors_of_one_name_are_told_apart(what, nth, said, declared):
    document, at = Document(SHARED), place(SHARED, what, nth)
    assert not document.diagnostics
    hover = document.hover(*at)
    assert hover and hover[0].startswith(said)
    found = document.definition(*at)
    assert found and (found.line, found.column) == place(SHARED, declared)


def test_every_word_of_the_specs_that_ship_is_answered():
    for path in sorted((Path(convgen.__file__).parents[1] / "specs" / "examples").glob("*.conv")):
        document = Document(path.read_text())
        for word in document._words:
            if word.line and word.column and word[:1].isidentifier():
                document.hover(word.line, word.column)
                document.definition(word.line, word.column)
    text = (Path(convgen.__file__).parents[1] / "specs" / "examples" / "dgrad_wgrad.conv").read_text()
    assert Document(text).hover(*place(text, "operand other"[8:]))


# ---- the protocol ------------------------------------------------------------------------------


class Client:
    """Speaks JSON-RPC with the server."""

    def __init__(self, process: subprocess.Popen) -> None:
        self._process, self._number = process, 0

    def notify(self, method: str, params: object) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, params: object) -> object:
        self._number += 1
        self._send({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        answer = self.hear(lambda message: message.get("id") == self._number)
        assert "error" not in answer, answer
        return answer["result"]

    def hear(self, wanted) -> dict:
        while not wanted(message := self._read()):
            pass
        return message

    def _send(self, message: dict) -> None:
        data = json.dumps(message).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
        self._process.stdin.flush()

    def _read(self) -> dict:
        length = 0
        while line := self._process.stdout.readline().strip():
            length = int(line.partition(b":")[2]) if line.lower().startswith(b"content-length") else length
        assert length, "the server is gone"
        return json.loads(self._process.stdout.read(length))


def test_the_server_speaks_the_protocol():
    needs.module("pygls")
    environment = os.environ | {"PYTHONPATH": str(Path(convgen.__file__).parents[1])}
    command = [sys.executable, "-m", "convgen", "lsp"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        client = Client(process)
        able = client.ask("initialize", {"processId": None, "rootUri": None, "capabilities": {}})["capabilities"]
        assert able["hoverProvider"] and able["definitionProvider"] and able["documentFormattingProvider"]
        client.notify("initialized", {})

        # the comment's sign takes two of UTF-16's units
        text = SPEC.replace("let batch", "let  batch").replace("pad 1", "pad 1 pad 2 # \N{PILE OF POO}")
        uri = "file:///layer.conv"
        client.notify(
            "textDocument/didOpen",
            {"textDocument": {"uri": uri, "languageId": "conv", "version": 1, "text": text}},
        )
        (found,) = client.hear(lambda m: m.get("method") == "textDocument/publishDiagnostics")["params"]["diagnostics"]
        assert (found["code"], found["severity"], found["source"]) == ("E202", 1, "convgen")
        assert found["range"]["start"] == {"line": 5, "character": 8} and "hint" in found["message"]

        right = text.replace(" pad 2", "")
        client.notify(
            "textDocument/didChange",
            {"textDocument": {"uri": uri, "version": 2}, "contentChanges": [{"text": right}]},
        )
        published = client.hear(lambda m: m.get("method") == "textDocument/publishDiagnostics")["params"]
        assert published["diagnostics"] == []

        document = {"uri": uri}
        line, column = place(right, "n=batch")
        at = {"textDocument": document, "position": {"line": line - 1, "character": column + 2}}
        assert client.ask("textDocument/hover", at)["contents"]["value"] == "`batch = 8`"
        assert client.ask("textDocument/definition", at)["range"]["start"] == {"line": 0, "character": 5}
        line, column = place(right, "sm_90a")
        at = {"textDocument": document, "position": {"line": line - 1, "character": column - 1}}
        assert "sm_80" in [item["label"] for item in client.ask("textDocument/completion", at)["items"]]
        options = {"textDocument": document, "options": {"tabSize": 2, "insertSpaces": True}}
        (edit,) = client.ask("textDocument/formatting", options)
        assert edit["newText"].startswith("let batch = 4 * 2\n\nconv layer {")

        marked = "\ufeff# a\u2028b\x0cc\x85d\nconv a { inptu }\n"
        opened = {"uri": "file:///b.conv", "languageId": "conv", "version": 1, "text": marked}
        client.notify("textDocument/didOpen", {"textDocument": opened})
        heard = client.hear(lambda m: m.get("method") == "textDocument/publishDiagnostics")["params"]["diagnostics"]
        assert heard and {d["range"]["start"]["line"] for d in heard} == {1}
        change = {"textDocument": {"uri": opened["uri"], "version": 2}, "contentChanges": [{"text": "\ufeffconvv a"}]}
        client.notify("textDocument/didChange", change)
        (heard,) = client.hear(lambda m: m.get("method") == "textDocument/publishDiagnostics")["params"]["diagnostics"]
        assert heard["range"]["start"] == {"line": 0, "character": 1}  # behind the byte order mark
        client.notify("textDocument/didClose", {"textDocument": {"uri": opened["uri"]}})
        closed = client.hear(lambda m: m.get("method") == "textDocument/publishDiagnostics")["params"]
        assert (closed["uri"], closed["diagnostics"]) == (opened["uri"], [])

        nowhere = at | {"textDocument": {"uri": "file:///no/such/file.conv"}}
        assert client.ask("textDocument/hover", nowhere) is None

        client.ask("shutdown", None)
        client.notify("exit", None)
        assert process.wait(600) == 0


# ---- the extension -----------------------------------------------------------------------------


def test_the_extension_s_files_exist_and_its_version_is_convgen_s():
    package = json.loads((VSCODE / "package.json").read_text())
    assert package["version"] == convgen.__version__
    named = [package["main"], package["contributes"]["languages"][0]["configuration"]]
    named += [g["path"] for g in package["contributes"]["grammars"]]
    assert all((VSCODE / name).is_file() for name in named)
    command = package["contributes"]["configuration"]["properties"]["convgen.command"]["default"]
    assert command == ["convgen", "lsp"]


def scopes(line: str) -> list[tuple[str, str]]:
    """Words of a line and the scopes that the TextMate grammar gives them, as an editor does: the first that matches
    at the leftmost place."""
    patterns = json.loads((VSCODE / "syntaxes" / "conv.tmLanguage.json").read_text())["patterns"]
    found, at = [], 0
    while at < len(line):
        matches = [
            (m.start(), i, m, p) for i, p in enumerate(patterns) if (m := re.compile(p["match"]).search(line, at))
        ]
        if not matches:
            break
        _, _, match, pattern = min(matches, key=lambda row: row[:2])
        names = (
            {0: pattern["name"]} if "name" in pattern else {int(k): v["name"] for k, v in pattern["captures"].items()}
        )
        found += [(match[group], name.removesuffix(".conv")) for group, name in names.items()]
        at = match.end()
    return found


def test_the_grammar_colors_every_word_of_the_language():
    for word in KEYWORDS:
        ((shown, scope), *_) = scopes(f"{word} x")
        assert shown == word and scope.startswith(("keyword", "storage"))
    for dtype in TENSOR_DTYPES:
        assert ("support.type" in scopes(f"input x: {dtype}[n]")[-1][1]) and scopes(f"x: {dtype}[")[0][0] == dtype
    for function in FUNCTIONS:
        assert (function, "support.function") in scopes(f"y = {function}(acc)")


def test_the_grammar_colors_a_line():
    assert scopes("  y = max(acc, 0.5)  # pad 1") == [
        ("=", "keyword.operator"),
        ("max", "support.function"),
        ("acc", "variable.language"),
        ("0.5", "constant.numeric"),
        ("# pad 1", "comment.line.number-sign"),
    ]
