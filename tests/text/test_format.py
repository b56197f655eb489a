"""`convgen fmt`: one layout, the same problem, every comment."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convgen import frontend
from convgen.cli import main
from convgen.diagnostics import SpecError
from convgen.frontend.format import formatted
from convgen.frontend.tokens import tokens

ROOT = Path(__file__).parents[2]
UNTIDY = """\


# head
let n=8 # batch
let   m = -n*(3+-2)+40 # more
conv a { input x:f16[n,h =8*2, w=8,c=16] filter w: f16[ k = 16,r=3,s=3,c=16 ]   # c1
output y: f16[n,p,q,k] pad h=( 1,-1+ 2 ) w = 1 groups 1
# before the epilogue


  epilogue {

   operand b:f32[ k ] # bias
result  u:f32[n,p,q,k]
  u=acc
  t=acc*-b+ - 1
     y = select(t>0 && !(b==1), -t, relu ( t ) )
   + 1

  } op fprop strategy direct{tile 2}
}
conv b
{ # c
input x: f16[n,h=m,w=8,c=16]
filter w: f16[k=16,c=16] output y:f16[n,p,q,k] epilogue{y=-acc}
strategy tma_im2col { tile m = 64*2  n=n  k=16 stages 2 -1
swap_ab 1 } }
# end
"""
TIDY = """\
# head
let n = 8                   # batch
let m = -n * (3 + -2) + 40  # more

conv a {
  input  x: f16[n, h=8*2, w=8, c=16]
  filter w: f16[k=16, r=3, s=3, c=16]  # c1
  output y: f16[n, p, q, k]
  pad h=(1, -1+2) w=1  groups 1
  # before the epilogue

  epilogue {
    operand b: f32[k]  # bias
    result u: f32[n, p, q, k]
    u = acc
    t = acc * -b + -1
    y = select(t > 0 && !(b == 1), -t, relu(t))
        + 1
  }
  op fprop  strategy direct { tile 2 }
}

conv b {  # c
  input  x: f16[n, h=m, w=8, c=16]
  filter w: f16[k=16, c=16]
  output y: f16[n, p, q, k]
  epilogue { y = -acc }
  strategy tma_im2col {
    tile m=64*2 n=n k=16  stages 2-1
    swap_ab 1
  }
}
# end
"""
SPECS = [UNTIDY, *(p.read_text(encoding="utf-8") for p in sorted(ROOT.glob("specs/**/*.conv")))]


def meaning(text: str) -> list:
    return [(r.conv, r.problem, r.strategy, r.options, r.target) for r in frontend.load(text)]


def comments(text: str) -> list[str]:
    return [c.rstrip() for c in re.findall(r"#.*", text)]


def test_the_layout():
    assert formatted(UNTIDY) == TIDY


@pytest.mark.costly
@pytest.mark.parametrize("text", SPECS)
def test_a_spec_keeps_its_meaning_and_its_comments(text):
    made = formatted(text)
    assert meaning(made) == meaning(text) and comments(made) == comments(text)
    assert formatted(made) == made
    assert not re.search(r"[ \t]+\n|\n\n\n|\{\n\n|\n\n *\}|\A\n|\n\n\Z", made)


def test_specs_that_ship_are_formatted():
    paths = [path for folder in ("specs", "docs", "examples") for path in ROOT.glob(f"{folder}/**/*.conv")]
    assert [str(p) for p in paths if (text := p.read_text(encoding="utf-8")) != formatted(text)] == []


@st.composite
def untidy(draw) -> str:
    """A spec with other white space and more comments between its words."""
    words = [str(word) for word in tokens(draw(st.sampled_from(SPECS[:14])))]
    gap = st.sampled_from([" ", " ", " ", "  ", "\n", "\n\n\n", "\t", " # why\n", "\n# alone\n\n"])
    return "".join(draw(gap) + word for word in words)


@settings(max_examples=60)
@given(untidy())
def test_any_white_space(text):
    made = formatted(text)
    assert list(map(str, tokens(made))) == list(map(str, tokens(text)))
    assert meaning(made) == meaning(text) and comments(made) == comments(text)
    assert formatted(made) == made


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_and_marks_of_other_systems_go(end):
    assert formatted("\ufeff" + TIDY.replace("\n", end)) == TIDY
    assert formatted("\ufeff" + UNTIDY.replace("\n", end)) == TIDY


def test_a_text_with_errors_is_refused():
    with pytest.raises(SpecError):
        formatted("conv a {")


# ---- the command -------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tidy.conv").write_text(TIDY)
    Path("untidy.conv").write_text(UNTIDY)
    Path("wrong.conv").write_text("conv a {")


def test_fmt_rewrites_what_is_not_formatted(files, capsys):
    assert main(["fmt", "tidy.conv", "untidy.conv"]) == 0
    assert capsys.readouterr().out == "untidy.conv: formatted\n"
    assert Path("untidy.conv").read_text() == Path("tidy.conv").read_text() == TIDY


def test_check_writes_nothing(files, capsys):
    assert main(["fmt", "--check", "tidy.conv", "untidy.conv"]) == 1
    assert capsys.readouterr().out == "untidy.conv: is not formatted\n" and Path("untidy.conv").read_text() == UNTIDY
    assert main(["fmt", "--check", "tidy.conv"]) == 0


@pytest.mark.parametrize(("wrong", "code", "said"), [("wrong.conv", 1, "E003"), ("none.conv", 2, "no such file")])
def test_an_error_leaves_every_file_and_that_is_said(wrong, code, said, files, capsys):
    assert main(["fmt", "untidy.conv", wrong]) == code
    err = capsys.readouterr().err
    assert said in err and err.endswith("convgen: warning: no file was changed: all are formatted, or none\n")
    assert Path("untidy.conv").read_text() == UNTIDY
    assert main(["fmt", wrong]) == code and "no file was changed" not in capsys.readouterr().err


def test_every_file_that_cannot_be_formatted_is_named(files, capsys):
    assert main(["fmt", "wrong.conv", "untidy.conv", "none.conv"]) == 2
    err = capsys.readouterr().err
    assert "wrong.conv:1:" in err and "none.conv: no such file" in err
    assert main(["fmt", "--check", "none.conv", "untidy.conv"]) == 2
    assert capsys.readouterr().out == "untidy.conv: is not formatted\n"


def test_a_file_that_is_read_only_stays(files, capsys):
    Path("untidy.conv").chmod(0o444)
    assert main(["fmt", "untidy.conv"]) == 2
    assert capsys.readouterr().err == "convgen: error: untidy.conv: cannot be written: it is read-only\n"
    assert Path("untidy.conv").read_text() == UNTIDY


def test_standard_input_goes_to_standard_output(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(UNTIDY.encode())))
    assert main(["fmt", "-"]) == 0
    assert capsys.readouterr().out == TIDY
