"""README, CONTRIBUTING and docs/: examples work, tables say what the code says, links lead somewhere.

Tables that the code knows are rewritten by --update-goldens.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import fields as fields_of
from importlib import import_module
from pathlib import Path

import error_examples
import pytest

from convgen import driver
from convgen.cli import COMMANDS
from convgen.cli.arguments import Parser
from convgen.diagnostics import CODES, SpecError, listing
from convgen.ir.dtypes import TENSOR_DTYPES
from convgen.ir.epilogue import FUNCTIONS
from convgen.ir.plan import Launch, Param, TensorMap, Workspace
from convgen.ir.tensor import Tensor
from convgen.kernels import renamed, strategies
from convgen.kernels.config import Option, option_rows
from convgen.kernels.registry import KERNELS, kernels_of
from convgen.planner.database import read_all
from convgen.runtime.manifest import Manifest
from convgen.spec import read
from convgen.targets import TARGETS, target_for

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
FROM_PYTHON = ROOT / "docs" / "from_python.md"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*.md")),
    *sorted((ROOT / "editors").glob("*.md")),
]
DECISIONS = sorted(page for page in (ROOT / "docs" / "decisions").glob("*.md") if page.name != "README.md")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def every(language: str) -> list:
    found = [(page, i, text) for page in PAGES for i, text in enumerate(blocks(page, language))]
    assert found
    return [pytest.param(text, id=f"{page.relative_to(ROOT)}-{i}") for page, i, text in found]


# ---- examples ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", every("conv"))
def test_a_spec_in_the_text_has_no_errors(text):
    assert driver.choose_all(driver.Spec(text))


def test_the_error_that_the_language_shows_is_what_its_example_gives():
    (spec,) = blocks(README, "conv")
    with pytest.raises(SpecError) as error:
        driver.load(driver.Spec(spec.replace("s=3, c=256]", "s=3, c=128]"), "layer.conv"))
    assert f"{error.value}\n" in blocks(ROOT / "docs" / "errors.md", "text")


@pytest.mark.parametrize("text", every("python"))
def test_python_in_the_text_is_python(text):
    ast.parse(text)


def test_names_of_the_python_api_exist():
    from convgen.runtime.kernel import Kernel

    for name in re.findall(r"kernel\.(\w+)", "".join(blocks(README, "python") + blocks(FROM_PYTHON, "python"))):
        assert hasattr(Kernel, name) or name in Kernel.__init__.__code__.co_names, name


def test_the_page_of_manifests_has_every_field():
    page = (ROOT / "docs" / "manifest.md").read_text(encoding="utf-8")
    told = set(re.findall(r"`(\w+)`", page))
    fields = [f.name for record in (Manifest, Tensor, Launch, Param, TensorMap, Workspace) for f in fields_of(record)]
    assert set(fields) - told <= {"axes"}  # which `shape` says
    rows = re.findall(r"^\| (`.*?`) \|", page, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) <= set(fields)


def commands() -> list[str]:
    """Those of the walk-throughs run in a test of their own."""
    pages = [page for page in PAGES if page.parent.name != "walkthroughs"]
    lines = [line for page in pages for text in blocks(page, "console") for line in text.splitlines()]
    parts = [part.strip() for line in lines for part in line.split("&&")]
    return [part for part in parts if part.startswith("convgen ")]


@pytest.mark.parametrize("command", commands())
def test_a_command_in_the_text_parses_and_its_specs_exist(command):
    _, name, *rest = shlex.split(command)
    parser = Parser()
    import_module(f"convgen.cli.{name}").configure(parser)
    for spec in getattr(parser.parse_args(rest), "specs", ()):
        assert (ROOT / spec).is_file()


@pytest.mark.costly
@pytest.mark.parametrize("path", sorted((ROOT / "specs").rglob("*.conv")), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_a_spec_that_ships_has_no_errors_and_is_served(path):
    layers = driver.load(driver.Spec(*read(path), target="sm_90a" if "golden" not in path.parts else None))
    for layer in layers:
        layer.check_served()
    assert layers


# ---- what must agree ---------------------------------------------------------------------------


@pytest.mark.parametrize("page", [CONTRIBUTING], ids=lambda page: page.name)
def test_ci_runs_the_test_command_of_the_page(page):
    (command,) = [line for text in blocks(page, "console") for line in text.splitlines() if "ruff" in line]
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    for part in command.split(" && "):
        assert any(re.match(rf"{re.escape(part)}( [>|]|$)", line) for line in lines), part


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "results").glob("*.json")), ids=lambda path: path.stem)
def test_results_name_no_folder_of_a_machine(path):
    assert not re.findall(r"""[\s="']/\w+/[\w./]*""", path.read_text(encoding="utf-8"))


def test_ci_runs_the_first_command_of_the_readme():
    first = blocks(README, "console")[0].splitlines()[0]
    assert first.replace("-o out", '-o "$fresh/out"') in (ROOT / ".ci" / "run").read_text().splitlines()


def test_a_page_lists_every_command():
    rows = re.findall(r"^\| `convgen (\w+)` \| (.*) \|$", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE)
    assert dict(rows) == COMMANDS


def test_readme_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize(
    ("picture", "script"), [("speedup_h200", "speedup_picture"), ("epilogues_h200", "epilogue_picture")]
)
def test_a_picture_is_what_its_script_draws(picture, script, golden, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    golden.check(ROOT / "docs" / f"{picture}.svg", import_module(script).draw())


def test_readme_s_table_is_what_was_measured():
    record = json.loads((ROOT / "benchmarks" / "results" / "networks_h200.json").read_text())
    measured = {r["batch"]: r["ms"] for r in record["rows"] if r["network"] == "resnet50"}
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) ms \| ([\d.]+) ms \| ([\d.]+) \|$", README.read_text(), re.MULTILINE)
    assert {int(row[0]) for row in rows} == measured.keys()
    for batch, compiled, ours, times in rows:
        ms = measured[int(batch)]
        assert (compiled, ours) == (f"{ms['compile']:.3f}", f"{ms['convgen']:.3f}")
        assert times == f"{ms['compile'] / ms['convgen']:.2f}"


def test_a_page_lists_every_variable_of_the_environment():
    modules = (ROOT / "convgen").rglob("*.py")
    read = {name for m in modules for name in re.findall(r'"(CONVGEN_[A-Z_]+)"', m.read_text(encoding="utf-8"))}
    text = (ROOT / "docs" / "commands.md").read_text()
    assert set(re.findall(r"^\| `(CONVGEN_\w+)` \|", text, re.MULTILINE)) == read


def test_the_language_lists_every_element_type():
    text = (ROOT / "docs" / "language.md").read_text()
    assert (
        tuple(re.findall(r"^\| `(\w+)` \| [^|]* \|$", text.split("Element types:")[1].split("\n\n")[1], re.M))
        == TENSOR_DTYPES
    )


def with_table(page: Path, header: str, rows: Sequence[str]) -> str:
    """The page with other rows under the header of one of its tables."""
    text = page.read_text(encoding="utf-8")
    head = re.escape(header) + r"\n\|[-|]+\n"
    assert len(re.findall(head, text)) == 1
    return re.sub(rf"({head})(\|.*\n)*", lambda m: m[1] + "".join(f"{row}\n" for row in rows), text)


def test_tables_of_what_the_code_knows(golden):
    functions = [f"| `{f.name}({', '.join(f.parameters)})` | {f.doc} |" for f in FUNCTIONS.values()]
    language = ROOT / "docs" / "language.md"
    golden.check(language, with_table(language, "| function | value |", functions))
    errors = ROOT / "docs" / "errors.md"
    golden.check(errors, with_table(errors, "| code | meaning |", [f"| {c} | {text} |" for c, text in CODES.items()]))


def test_the_page_of_targets(golden):
    depthwise = "filter w: f16[k=64, r=3, s=3] output y: f16[n, p, q, k] groups 64 }"
    dense = "filter w: f16[k=64, r=3, s=3, c=64] output y: f16[n, p, q, k] }"
    text = "".join(f"conv {n} {{ input x: f16[n=8, h=14, w=14, c=64] {t} " for n, t in (("a", dense), ("b", depthwise)))
    problems = [c.request.problem for c in driver.load(driver.Spec(text))]
    tuned = {m.gpu for m in read_all(ROOT / "convgen" / "planner" / "tuning.sqlite")}
    rows = []
    for target in TARGETS.values():
        serve = [
            f"`{name}`" for name, s in strategies.STRATEGIES.items()
            if not all(s.obstacles(problem, target, {}) for problem in problems)
        ]  # fmt: skip
        rows.append(
            f"| `{target}` | {target.gpu} | {', '.join(serve)} "
            f"| {'yes' if target is target_for(target.capability) and target.gpu.name in tuned else 'no'} |"
        )
    page = ROOT / "docs" / "targets.md"
    golden.check(page, with_table(page, "| target | such as | strategies | measured and tuned |", rows))


@pytest.mark.parametrize("code", error_examples.EXAMPLES)
def test_a_wrong_spec_has_the_error_of_its_example(code):
    with pytest.raises(SpecError) as error:
        driver.check_served(driver.load(driver.Spec(error_examples.wrong(code))))
    assert code in {d.code for d in error.value.diagnostics}


def test_every_error_has_an_example_in_its_page(golden):
    driver.check_served(driver.load(driver.Spec(error_examples.RIGHT)))
    page = ROOT / "docs" / "errors.md"
    assert error_examples.RIGHT in blocks(page, "conv")
    examples = {code: tuple(map(error_examples.shown, e)) for code, e in error_examples.EXAMPLES.items()}
    for code, names in error_examples.DEFINES.items():
        examples[code] = tuple(f"`-D {name}=64`" for name in names)
        with pytest.raises(SpecError, match=code):
            driver.load(driver.Spec(error_examples.RIGHT, defines={names[1]: 64}))
    assert examples.keys() == CODES.keys(), "error_examples.py has no example"
    rows = [f"| {code} | {examples[code][1]} | {examples[code][0]} |" for code in CODES]
    golden.check(page, with_table(page, "| code | wrong | right |", rows))


def test_the_page_of_strategies(golden):
    parts = [
        "# Strategies and their options",
        "`auto` takes the fastest measured configuration ([tuning](tuning.md)), or else the one that the cost models, "
        "and\n[measurements of other layers](decisions/correction.md), expect to be fastest, of those that can serve "
        "the convolution;\n`convgen explain` says which can, and why the others cannot. It leaves out "
        f"{listing(strategies.BY_NAME, 'and')}, which has larger rounding errors:\na spec has to name it.",
        "No option is required: those that you leave out are chosen by the tuning database or cost models.\n"
        "`tile.m` is written `tile m=128`. Each kernel has [a page with a picture](kernels/README.md); terms are in\n"
        "[the glossary](glossary.md).",
    ]
    for name, strategy in strategies.STRATEGIES.items():
        parts += [f"## {name}", f"{_sentence(strategy.summary)}"]
        kernels = kernels_of(name)
        if len(kernels) > 1:
            names = ", ".join(f"`{row.name}`" for row in kernels)
            parts.append(f"`kernel` names one of its kernels: {names}.")
            for row in kernels:
                parts += [f"### {row.name}", _sentence(row.summary), options_table(option_rows(row.config))]
        else:
            parts.append(options_table(strategy.options))
    former = [f"| {row.strategy} | {_former(row)} | {_present(row)} |" for row in renamed.OPTIONS]
    former += [f"| | `{old}` | `{new}` |" for old, new in renamed.STRATEGIES.items()]
    parts += [
        "## Former names",
        "Specs may use a former name for one release, and get a warning that gives the new one.",
        "\n".join(["| strategy | formerly | now |", "|---|---|---|", *former]),
    ]
    golden.check(ROOT / "docs" / "strategies.md", "\n\n".join(parts) + "\n")


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def options_table(options: Sequence[Option]) -> str:
    rows = [f"| `{o.name}` | {o.doc} | {_values(o)} |" for o in options]
    return "\n".join(["| option | meaning | values |", "|---|---|---|", *rows])


def _former(row: renamed.Renamed) -> str:
    return ", ".join(f"`{row.old} {value}`" for value in row.values) or f"`{row.old}`"


def _present(row: renamed.Renamed) -> str:
    return ", ".join(f"`{row.new} {value}`" for value in row.values.values()) or f"`{row.new}`"


def _values(option: Option) -> str:
    match option.choices:
        case None:
            return f"{option.low} to {option.high}"
        case [int(a), int(b), *_, int(z)] as all_ if all_ == tuple(range(a, z + 1, b - a)) and len(all_) > 4:
            return f"{a} to {z} in steps of {b - a}"
    return ", ".join(f"`{c}`" for c in option.choices)


def test_benchmarks_describes_every_script():
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    scripts = [p.name for p in (ROOT / "benchmarks").glob("*.py") if '__name__ == "__main__"' in p.read_text("utf-8")]
    assert scripts and [name for name in scripts if f"`{name}`" not in text] == []


# ---- decisions, findings, walk-throughs ----------------------------------------------------------


@pytest.mark.parametrize("folder", ["decisions", "hardware"])
def test_an_index_lists_every_page_of_its_folder(folder):
    folder = ROOT / "docs" / folder
    listed = re.findall(r"\]\((\w+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(page.name for page in folder.glob("*.md") if page.name != "README.md")


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_has_its_parts_and_its_title_in_the_index(page):
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings[:3] == ["Context", "Decision", "Evidence"]
    title = re.match(r"# (.*)\n", text)[1]
    assert f"[{title}]({page.name})" in (page.parent / "README.md").read_text(encoding="utf-8")


def test_contributing_lists_every_walkthrough():
    listed = re.findall(r"\]\((docs/walkthroughs/\w+\.md)\)", CONTRIBUTING.read_text(encoding="utf-8"))
    assert listed == [page.relative_to(ROOT).as_posix() for page in sorted((ROOT / "docs/walkthroughs").glob("*.md"))]


# ---- links -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_every_option_of_a_kernel_is_in_the_glossary():
    rows = re.findall(r"^\|([^|]*)\|", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"), re.MULTILINE)
    defined = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    options = {option.name.partition(".")[0] for row in KERNELS for option in option_rows(row.config)}
    assert options <= defined
