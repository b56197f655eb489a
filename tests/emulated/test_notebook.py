"""examples/tutorial.ipynb runs, and what a notebook shows of kernels, plans, reports and errors."""

from __future__ import annotations

import json
from pathlib import Path

import needs
import pytest
from test_trace import SPEC

import convgen
from convgen import driver
from convgen.diagnostics import SpecError
from convgen.ir.verify import Report

TUTORIAL = Path(__file__).parents[2] / "examples" / "tutorial.ipynb"


def test_the_tutorial_runs_from_top_to_bottom(tmp_path, monkeypatch):
    nbclient, nbformat = needs.module("nbclient"), needs.module("nbformat")
    needs.module("ipykernel")
    notebook = nbformat.read(TUTORIAL, as_version=4)
    nbformat.validate(notebook)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ())]
    html = "".join(data.get("text/html", "") for data in shown)
    assert "tma_im2col" in html and "E208" in html and "did you mean" in html
    assert any("<svg" in data.get("image/svg+xml", "") for data in shown)


def test_the_tutorial_is_kept_without_outputs():
    cells = json.loads(TUTORIAL.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


def test_what_a_notebook_shows():
    (compilation,) = driver.choose_all(driver.Spec(SPEC.replace("traced", "less_is_more")))
    plan = compilation.plan._repr_html_()
    assert "<table>" in plan and "less_is_more" in plan and "tile m=64" in plan
    explanation = compilation.explain()._repr_html_()
    assert explanation.count("<table>") == len(compilation.explain().tables) and "gemm_m &lt;" not in explanation
    assert "&lt;=" in explanation  # escaped
    assert "<table>" in compilation.uncompiled()._repr_html_()
    assert "right: " in Report(True, 0.0, 0.0, (), "y is right")._repr_html_()


def test_a_mistake_shows_no_traceback_in_a_notebook():
    with pytest.raises(SpecError) as error:
        convgen.compile(SPEC.replace("r=3", "r=3.5"))
    (first, *_) = error.value._render_traceback_()
    assert first.startswith("<text>:3:") and "E105" in error.value._repr_html_()
