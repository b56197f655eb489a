"""Answers to editors about a spec: diagnostics, hovers, completions, definitions; and a language server."""
