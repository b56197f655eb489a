"""What editors ask about a spec: diagnostics, meanings, completions, definitions; and a language server."""
