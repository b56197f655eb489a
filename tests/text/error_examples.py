"""For each error code a part of a right spec, and what is wrong in its place."""

from __future__ import annotations

RIGHT = """\
let n = 8
let width = 64

conv layer {
  input  x: f16[n, h=14, w=14, c=64]
  filter w: f16[k=width, r=3, s=3, c=64]
  output y: f16[n, p, q, k]
  stride 1
  pad 1
  groups 1
  accumulate f32
  epilogue {
    operand b: f32[k]
    t = acc + b
    y = relu(t)
  }
  op fprop
  strategy tma_im2col { tile m=128 n=64 k=64  stages 4 }
  target sm_90a
}
"""

#: Code -> part of the right spec, and what stands in its place in a wrong one.
EXAMPLES: dict[str, tuple[str, str]] = {
    "E001": ("pad 1", "pad 1$"),
    "E002": ("stride 1", "stride = 1"),
    "E003": ("y = relu(t)\n  }", "y = relu(t)"),
    "E004": ("width = 64", "width = " + "(" * 101 + "64" + ")" * 101),
    "E005": ("width = 64", "width = 99999999999999999999"),
    "E006": ("input  x", "input  stream"),
    "E007": (RIGHT[RIGHT.index("conv") :], ""),
    "E101": ("let width = 64", "let width = 64  let width = 32"),
    "E102": ("k=width", "k=widht"),
    "E104": ("width = 64", "width = 64 / 3"),
    "E105": ("width = 64", "width = 64.5"),
    "E201": ("[n, h=14, w=14, c=64]\n  filter w: f16[k=width, r=3, s=3, c=64]", "[n, h=14, w=14, c=64]"),
    "E202": ("pad 1", "pad 1  pad 2"),
    "E203": ("[n, p, q, k]", "[n, p, q, k, c]"),
    "E204": ("r=3, s=3", "r=3, r=3"),
    "E205": ("x: f16", "x: f17"),
    "E206": ("w: f16", "w: bf16"),
    "E207": ("n, h=14", "n, h"),
    "E208": ("s=3, c=64", "s=3, c=32"),
    "E209": ("stride 1", "stride 0"),
    "E210": ("groups 1", "groups 3"),  # neither c nor k
    "E211": ("pad 1", "pad 0  dilation 9"),
    "E212": ("h=14, w=14", "h=2000000000, w=2000000000"),
    "E213": ("op fprop", "op forwards"),
    "E214": ("op fprop", "op fprop  lowered m: f16[n*p*q, c*r*s]"),
    "E215": ("w=14, c=64", "w=14, c=64 of 32"),
    "E216": ("pad 1", "pad 1 mirror"),
    "E217": ("groups 1", "groups 1  dynamic c"),
    "E301": ("acc + b", "acc + b + bias"),
    "E302": ("relu(t)", "rleu(t)"),
    "E303": ("relu(t)", "relu(t, 0)"),
    "E304": ("t = acc + b\n    y = relu(t)", "t = acc + b"),
    "E305": ("op fprop", "op wgrad"),
    "E306": ("acc + b", "acc"),
    "E307": ("acc + b", "acc % b"),
    "E401": ("target sm_90a", "target sm_80"),
    "E402": ("strategy tma_im2col", "strategy tma_im3col"),
    "E403": ("stages 4", "stagse 4"),
    "E404": ("stages 4", "stages 400"),
    "E405": ("target sm_90a", "target sm_91"),
}  # fmt: skip
#: E103 is not in the text: a right and a wrong define.
DEFINES = {"E103": ("n", "m")}


def wrong(code: str) -> str:
    """A spec with the error."""
    right, instead = EXAMPLES[code]
    assert RIGHT.count(right) == 1, code
    return RIGHT.replace(right, instead)


def shown(text: str) -> str:
    """A part of a spec as a cell of a table."""
    words = " ".join(text.split())
    return f"`{words}`" if 0 < len(words) <= 90 else f"`{words[:40]} ... {words[-20:]}`" if words else "nothing"
