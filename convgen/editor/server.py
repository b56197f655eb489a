"""The language server: `convgen lsp` speaks the Language Server Protocol 3.17 on standard input and output."""

from __future__ import annotations

import re
from collections.abc import Callable

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from convgen import __version__
from convgen.diagnostics import Diagnostic, Span, SpecError
from convgen.editor.document import Document
from convgen.frontend.format import formatted

_SEVERITY = {"error": types.DiagnosticSeverity.Error, "warning": types.DiagnosticSeverity.Warning}


#: A document as the editor has it, and as a spec.
Look = Callable[[str], tuple[TextDocument, Document]]


def server() -> LanguageServer:
    """A server with every feature; `start_io()` runs it."""
    # whole texts: pygls would split lines where the protocol does not, as at U+2028
    made = LanguageServer("convgen", __version__, text_document_sync_kind=types.TextDocumentSyncKind.Full)
    kept: dict[str, tuple[int | None, Document]] = {}

    def document(uri: str) -> tuple[TextDocument, Document]:
        text = made.workspace.get_text_document(uri)
        try:
            _ = text.source
        except (OSError, ValueError):  # neither open, nor a file of text
            text = TextDocument(uri, "")
        if text.version is None or uri not in kept or kept[uri][0] != text.version:
            kept[uri] = text.version, Document(text.source, uri)
        return text, kept[uri][1]

    def publish(uri: str) -> None:
        text, spec = document(uri)
        found = [_diagnostic(text, d) for d in spec.diagnostics]
        made.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, found, text.version))

    @made.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        publish(params.text_document.uri)

    @made.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        publish(params.text_document.uri)

    @made.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        kept.pop(params.text_document.uri, None)
        made.text_document_publish_diagnostics(types.PublishDiagnosticsParams(params.text_document.uri, []))

    _answer(made, document)
    return made


def _answer(made: LanguageServer, document: Look) -> None:
    """Registers the handlers of editors' requests."""

    @made.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(params: types.HoverParams) -> types.Hover | None:
        text, spec = document(params.text_document.uri)
        if found := spec.hover(*_position(text, params.position)):
            return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, found[0]), _range(text, found[1]))
        return None

    @made.feature(types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=[" ", "[", ":"]))
    def complete(params: types.CompletionParams) -> types.CompletionList:
        text, spec = document(params.text_document.uri)
        found = spec.completions(*_position(text, params.position))
        return types.CompletionList(False, [types.CompletionItem(c.word, detail=c.meaning) for c in found])

    @made.feature(types.TEXT_DOCUMENT_DEFINITION)
    def define(params: types.DefinitionParams) -> types.Location | None:
        text, spec = document(params.text_document.uri)
        span = spec.definition(*_position(text, params.position))
        return types.Location(text.uri, _range(text, span)) if span else None

    @made.feature(types.TEXT_DOCUMENT_FORMATTING)
    def tidy(params: types.DocumentFormattingParams) -> list[types.TextEdit]:
        text, spec = document(params.text_document.uri)
        try:
            whole = types.Range(types.Position(0, 0), types.Position(len(_lines(text)) + 1, 0))
            return [types.TextEdit(whole, formatted(spec.text))]
        except SpecError:  # its diagnostics are there to see
            return []


def _diagnostic(text: TextDocument, d: Diagnostic) -> types.Diagnostic:
    message = f"{d.message}\nhint: {d.hint}" if d.hint else d.message
    where = _range(text, d.span or Span(1, 1, 1, 1))
    return types.Diagnostic(where, message, _SEVERITY[d.severity], d.code or None, source="convgen")


def _lines(text: TextDocument) -> list[str]:
    """The protocol's lines, which end in `\\n`, `\\r\\n` or `\\r` alone."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text.source)


def _mark(text: TextDocument, line: int) -> int:
    """Characters of a line, counted from 0, that are no part of a spec: a byte order mark."""
    return int(line == 0 and text.source.startswith("\ufeff"))


def _position(text: TextDocument, position: types.Position) -> tuple[int, int]:
    """A position as line and column of a span."""
    at = text.position_codec.position_from_client_units(_lines(text), position)
    return at.line + 1, at.character + 1 - _mark(text, at.line)


def _range(text: TextDocument, span: Span) -> types.Range:
    """A span as a range, in the client's units."""
    begin = types.Position(span.line - 1, span.column - 1 + _mark(text, span.line - 1))
    end = types.Position(span.end_line - 1, span.end_column - 1 + _mark(text, span.end_line - 1))
    return text.position_codec.range_to_client_units(_lines(text), types.Range(begin, end))
