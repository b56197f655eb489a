"""The meanings of the language's words, one line each."""

from __future__ import annotations

#: Keywords.
KEYWORDS: dict[str, str] = {
    "let": "names a size: `let n = 8`; `-D n=64` overrides it",
    "conv": "a convolution: `conv NAME { ... }`, with settings in any order",
    "input": "the input tensor: `input x: f16[n, h=56, w=56, c=64]`; the order of the dims is the memory layout",
    "filter": "the filter tensor: `filter w: f16[k=64, r=3, s=3, c=64]`; its c is the input's divided by `groups`",
    "output": "the output tensor: `output y: f16[n, p, q, k]`; extents that are not stated are inferred",
    "lowered": "the matrix of im2col: `lowered m: f16[n*p*q, c*r*s]`",
    "stride": "steps of the window: `stride 2`, or by axis `stride h=2 w=1`",
    "pad": "zeros around the input: `pad 1`, or by axis and side `pad h=1 w=(0, 2)`",
    "dilation": "distance between taps of the filter: `dilation 2`, or by axis",
    "groups": "groups of channels: output channels read only the input channels of their group",
    "accumulate": "the type of sums: f32, s32 for integers, f64 for f64",
    "epilogue": "computed from each sum `acc` before it is stored: `epilogue { y = relu(acc) }`",
    "operand": "a tensor that an epilogue or a prologue reads: `operand b: f32[k]`; it broadcasts over dims it lacks",
    "op": "the operator: `fprop` (y), `dgrad` (x), `wgrad` (w), `transposed`, `im2col`, `col2im`; one kernel each",
    "strategy": "how to compute: `strategy auto`, or a strategy and its options: `strategy tma_im2col { stages 4 }`",
    "target": "the GPU architecture, such as sm_90a; without it, the GPU of this machine",
}

#: Dims.
DIMS: dict[str, str] = {
    "n": "images of the batch",
    "c": "input channels",
    "k": "output channels",
    "d": "depth of the input",
    "h": "height of the input",
    "w": "width of the input",
    "t": "depth of the filter",
    "r": "height of the filter",
    "s": "width of the filter",
    "o": "depth of the output",
    "p": "height of the output",
    "q": "width of the output",
}

DYNAMIC = "dims whose sizes a call decides: `dynamic n h w`; the plan is made for the sizes of the spec"
OF = "these channels are a slice of a packed tensor with the number of channels that follows: `c=64 of 256`"
PROLOGUE = "computed from each element of the input before it is multiplied: `prologue { x = relu(x) }`"
RESULT = "a further result that the epilogue assigns: `result t: f16[n, p, q, k]`"
#: Keywords that are names elsewhere.
SOFT_KEYWORDS = {"dynamic": DYNAMIC, "of": OF, "prologue": PROLOGUE, "result": RESULT}
ACC = "the sum of products, before the epilogue, as a 32-bit value"
