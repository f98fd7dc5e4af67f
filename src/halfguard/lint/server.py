"""A language server: findings while you type, and fixes as code actions.

An editor starts ``halfguard lint --lsp`` and speaks the Language Server Protocol on stdin and stdout. pygls,
which only this file imports, does the protocol; each document is checked by the same engine as on the command
line. How the project trains is read once, when its first file is opened, and again when a file is saved.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from halfguard.lint.diagnostic import Diagnostic
from halfguard.lint.fixes import whole_edit
from halfguard.lint.match import Fix, Span
from halfguard.lint.project import find_root
from halfguard.lint.run import Linter
from halfguard.lint.settings import load_settings
from halfguard.lint.source import Source

_LEVELS = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "note": types.DiagnosticSeverity.Information,
}


class _Workspace:
    """The linter of every project that has an open file."""

    def __init__(self, *, preview: bool) -> None:
        self.preview = preview
        self._linters: dict[Path | None, Linter] = {}

    def check(self, path: Path, text: str) -> list[Diagnostic]:
        """Return the findings of a document as it is in the editor."""
        linter = self._linter(path)
        if linter.settings.excludes(path):
            return []
        return linter.check_bytes(text.encode("utf-8", "surrogatepass"), str(path)).diagnostics

    def _linter(self, path: Path) -> Linter:
        root = find_root(path)
        if root not in self._linters:
            settings = load_settings(path if path.exists() else Path())
            settings = dataclasses.replace(settings, preview=self.preview or settings.preview)
            self._linters[root] = Linter(settings).with_project_of(path)
        return self._linters[root]

    def forget(self, path: Path) -> None:
        """Read settings and project again at the next check: a saved file may have changed them."""
        self._linters.pop(find_root(path), None)


def serve(*, preview: bool) -> None:
    """Run the server until the editor closes the connection."""
    make_server(preview=preview).start_io()


def make_server(*, preview: bool) -> Any:
    """Return a server with its features."""
    server = LanguageServer("halfguard-lint", importlib.metadata.version("halfguard"))
    workspace = _Workspace(preview=preview)

    def publish(uri: str) -> None:
        document = server.workspace.get_text_document(uri)
        found = workspace.check(_path(uri), document.source)
        source = Source(document.source)
        params = types.PublishDiagnosticsParams(
            uri=uri, version=document.version, diagnostics=[_diagnostic(source, d) for d in found]
        )
        server.text_document_publish_diagnostics(params)

    def opened(params: Any) -> None:
        publish(params.text_document.uri)

    def saved(params: Any) -> None:
        workspace.forget(_path(params.text_document.uri))
        publish(params.text_document.uri)

    def closed(params: Any) -> None:
        nothing = types.PublishDiagnosticsParams(uri=params.text_document.uri, diagnostics=[])
        server.text_document_publish_diagnostics(nothing)

    def actions(params: Any) -> list[Any]:
        uri = params.text_document.uri
        document = server.workspace.get_text_document(uri)
        found = workspace.check(_path(uri), document.source)
        lines = range(params.range.start.line + 1, params.range.end.line + 2)
        return [
            _action(uri, document.source, d, d.fix) for d in found if d.fix and d.span.line in lines
        ]

    server.feature(types.TEXT_DOCUMENT_DID_OPEN)(opened)
    server.feature(types.TEXT_DOCUMENT_DID_CHANGE)(opened)
    server.feature(types.TEXT_DOCUMENT_DID_SAVE)(saved)
    server.feature(types.TEXT_DOCUMENT_DID_CLOSE)(closed)
    server.feature(types.TEXT_DOCUMENT_CODE_ACTION)(actions)
    return server


def _path(uri: str) -> Path:
    return Path(unquote(urlparse(uri).path) or "untitled.py")


def _diagnostic(source: Source, diagnostic: Diagnostic) -> Any:
    return types.Diagnostic(
        range=_range(source, diagnostic.span),
        message=f"{diagnostic.message} {diagnostic.cure}",
        severity=_LEVELS[diagnostic.severity],
        code=diagnostic.code,
        source="halfguard",
    )


def _range(source: Source, span: Span) -> Any:
    """Return a range of the protocol: lines from 0, columns in UTF-16 units."""

    def position(line: int, column: int) -> Any:
        before = source.lines[line - 1][:column] if line <= len(source.lines) else b""
        units = len(before.decode("utf-8", "replace").encode("utf-16-le")) // 2
        return types.Position(line=line - 1, character=units)

    return types.Range(
        start=position(span.line, span.column), end=position(span.end_line, span.end_column)
    )


def _action(uri: str, text: str, diagnostic: Diagnostic, fix: Fix) -> Any:
    """Return a quick fix; missing imports are added as on the command line."""
    source = Source(text)
    changed = whole_edit(text, fix)
    everything = Span(1, 0, len(source.lines) + 1, 0)
    new = text if changed is None else changed
    edit = types.TextEdit(range=_range(source, everything), new_text=new)
    note = "" if fix.kind == "safe" else " (changes behavior)"
    return types.CodeAction(
        title=f"{diagnostic.code}: {diagnostic.cure}{note}",
        kind=types.CodeActionKind.QuickFix,
        diagnostics=[_diagnostic(source, diagnostic)],
        edit=types.WorkspaceEdit(changes={uri: [edit]}),
        is_preferred=fix.kind == "safe",
    )
