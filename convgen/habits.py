"""Names and habits from other projects, and what they are called here: facts for hints, and nothing else.

Words are looked up by `plain`, which ignores case and everything but letters and digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from convgen.diagnostics import closest


def plain(word: str) -> str:
    """`in_channels`, `InChannels` and `in-channels` are one word."""
    return re.sub(r"[^a-z0-9]", "", word.lower())


def meant(word: str, known: Collection[str], others: Mapping[str, str]) -> str | None:
    """The known name that a word is another name or a misspelling of."""
    other = others.get(plain(word))
    return other if other in known else closest(word, known)


def did_you_mean(word: str, known: Collection[str], others: Mapping[str, str]) -> str | None:
    """A hint where there is such a name."""
    found = meant(word, known, others)
    return f"did you mean `{found}`?" if found else None


def _table(text: str) -> dict[str, str]:
    """Lines of `meant: word word ...`."""
    rows = (line.partition(":") for line in text.strip().splitlines())
    return {word: meant.strip() for meant, _, words in rows for word in words.split()}


# --- words of the language ---

#: What begins a statement of a file.
STATEMENTS = _table("""
    conv: conv1d conv2d conv3d convolution layer kernel conv2 depthwise
    let: const var int size param parameter define set val auto constexpr
""")

#: Settings of a conv block.
SETTINGS = _table("""
    input: in inp inputs src source data activations image features
    filter: filters weight weights kernel kernels wei
    output: out outputs dst dest destination
    lowered: matrix columns unfolded
    stride: strides step steps stridehw
    pad: pads padding paddings padded autopad
    dilation: dilations dilate dilated rate
    groups: group groupcount ngroups featuregroupcount
    accumulate: acc accum accumulator accumulation accumulators acctype computetype accdtype
    epilogue: epilog fuse fused fusion post postop postops
    op: operator ops operation operators mode direction
    strategy: algo algorithm method impl implementation backend
    target: arch architecture gpu device sm compute computecapability targets
""")

_IN_THE_EPILOGUE = "apply it in the epilogue, as in `epilogue { y = relu(acc) }`"
_LAYOUT = "the order of a tensor's dims is its layout: `x: f16[n, h, w, c]` is NHWC"
_TYPE = "state the element type of each tensor: `input x: f16[...]`"
_ADDED = "add it in the epilogue: `epilogue { operand z: f16[n, p, q, k]  y = acc + z }`"
_CHANNELS = "channels are dims: `c` of the input and the filter, `k` of the filter and the output"
_EXTENTS = "state extents with the dims of the tensors: `filter w: f16[k=64, r=3, s=3, c=64]`"
_PADDING = "name the padding mode after the amounts: `pad 1 reflect`"
OPTION = "put options in the strategy's block: `strategy tma_im2col { stages 4 }`"
#: Options' names, and other names for them, but those that may mean something else.
_OPTIONS = (
    "tile", "stages", "consumers", "warps", "cluster", "split", "math", "blocks", "threads", "schedule", "multicast",
    "raster", "span", "slice", "slices", "strip", "band", "vector", "fold", "form", "order", "product", "splitk",
    "streamk", "swapab", "kblocks", "grouppack", "rowtaps", "lowerrows", "relayout", "resident", "weightstages",
    "workspacemb", "loads", "sums", "halo",
)  # fmt: skip
#: What follows a word that is otherwise another name of a setting, where it is an option.
METHODS = ("gather", "scatter")
#: Settings of other languages without a counterpart here, and what takes their place.
NO_SETTINGS: dict[str, str] = {
    "depthwise": "write `groups` for as many groups as channels, and one channel in the filter: `w: f16[k, r, s, c=1]`",
    "bias": "make the bias an operand of the epilogue: `epilogue { operand b: f32[k]  y = acc + b }`",
    **dict.fromkeys(("activation", "act", "nonlinearity"), _IN_THE_EPILOGUE),
    **{name: f"apply it in the epilogue: `epilogue {{ y = {name}(acc) }}`" for name in ("relu", "gelu", "silu")},
    "y": _IN_THE_EPILOGUE,
    "scale": "scale in the epilogue: `epilogue { operand s: f32[k]  y = acc * s }`",
    **dict.fromkeys(("alpha", "beta"), "write it in the epilogue: `y = 0.5 * acc + 2.0 * z`, with an `operand z`"),
    **dict.fromkeys(("residual", "add"), _ADDED),
    **dict.fromkeys(("layout", "format", "dataformat", "memoryformat", "inputlayout", "filterlayout"), _LAYOUT),
    **dict.fromkeys(("nhwc", "nchw", "channelslast", "tensorformat"), _LAYOUT),
    **dict.fromkeys(("dtype", "type", "datatype", "precision", "elementtype"), _TYPE),
    **dict.fromkeys(("inchannels", "outchannels", "channels", "cin", "cout", "c", "k", "numfilters"), _CHANNELS),
    **dict.fromkeys(("kernelsize", "ksize", "kernelshape", "shape", "size", "height", "width", "h", "w"), _EXTENTS),
    **dict.fromkeys(("kh", "kw", "r", "s"), _EXTENTS),
    **dict.fromkeys(("batch", "batchsize", "n"), "the batch is the dim `n` of the input and the output"),
    **dict.fromkeys(("padmode", "paddingmode", "padtype", "reflect", "replicate", "circular"), _PADDING),
    "padvalue": "padding is made of zeros, or of what `pad 1 reflect`, `replicate`, `circular` or `nan` says",
    **dict.fromkeys(("transposed", "transpose", "deconv"), "a transposed convolution is `op transposed`"),
    "result": "the result is the `output`; others belong in the epilogue: `epilogue { result t: f32[...]  t = acc }`",
    "outputpadding": "state the extents of the `output`: `op transposed` takes further pixels from there",
    "causal": "causal padding is (taps - 1) * dilation pixels before, and none after: `pad w=(2, 0)` for 3 taps",
    "name": "the name follows `conv`: `conv NAME { ... }`",
    **dict.fromkeys(_OPTIONS, OPTION),
    "let": "put a `let` outside the conv blocks",
}

#: Dims of a role's tensor.
DIMS: dict[str, dict[str, str]] = {
    "x": _table("""
        n: b batch batchsize nb images
        c: ic ci cin channels channel inchannels k i
        d: id depth t
        h: ih hi height p y r
        w: iw wi width q x s l length time
    """),
    "w": _table("""
        k: oc co cout o outchannels filters numfilters channelsout m f n
        c: ic ci cin i inchannels channels cpergroup
        t: kd d depth kt
        r: kh h fh height kernelheight y
        s: kw w fw width kernelwidth x l length
    """),
    "y": _table("""
        n: b batch batchsize nb images
        k: oc co cout c channels channel outchannels m
        o: od do depth d t
        p: oh ho h height y r
        q: ow wo w width x s l length time
    """),
}

#: Axes of a lowered matrix.
LOWERED = _table("""
    rows: m row pixels npq gemmm
    cols: k col columns crs krs gemmk ckk
    p: oh ho
    q: ow wo
    r: kh
    s: kw
""")

#: Element types.  `tf32` is a way to multiply f32, `fp8` stands for two types.
TYPES = _table("""
    f16: fp16 float16 half floating16
    bf16: bfloat16 bfloat bfp16 brainfloat16 nvbfloat16
    f32: fp32 float32 float single tf32
    f64: fp64 float64 double
    e4m3: fp8e4m3 float8e4m3 float8e4m3fn e4m3fn f8e4m3 f8e4m3fn
    e5m2: fp8e5m2 float8e5m2 f8e5m2 bf8
    s8: int8 i8 int8t char
    s32: int32 i32 int32t int long
""")
#: Types that are not served, and what comes nearest.
NO_TYPES: dict[str, str] = {
    **dict.fromkeys(("f8", "fp8", "float8"), "8-bit floats are `e4m3` and `e5m2`"),
    **dict.fromkeys(("u8", "uint8", "uchar", "byte"), "8-bit integers have a sign: `s8`"),
    **dict.fromkeys(("int4", "s4", "i4", "u4", "fp4", "f4", "e2m1", "nvfp4"), "the narrowest types have 8 bits"),
    **dict.fromkeys(("int16", "s16", "i16", "int64", "s64", "i64", "u32", "uint32"), "integers are `s8` and `s32`"),
    **dict.fromkeys(("bool", "complex64", "cf32"), "elements are real numbers"),
}  # fmt: skip

#: Operators.
OPS = _table("""
    fprop: forward fwd conv conv1d conv2d conv3d convolution convfwd convolve crosscorrelation
    dgrad: backwarddata bwddata dx datagrad inputgrad backwardinput
    wgrad: backwardfilter backwardweight backwardweights bwdfilter bwdweights dw weightgrad weightsgrad filtergrad
    im2col: unfold im2row lower
    col2im: fold row2im
    transposed: transpose convtranspose convtranspose1d convtranspose2d convtranspose3d deconv deconvolution upconv
""")

#: Operators whose roles need a word.
OP_NOTES: dict[str, str] = {"backward": "the gradients are `dgrad`, of the input, and `wgrad`, of the filter"}

#: Functions of epilogues under their other names.
FUNCTIONS = _table("""
    silu(x): swish swish1
    sigmoid(x): sigm logistic expit
    gelu_tanh(x): gelunew geluapprox gelutanh fastgelu
    leaky_relu(x, slope): leakyrelu lrelu prelu
    clamp(x, low, high): clip hardtanh minmax bound
    clamp(x, 0, 1): saturate sat clamp01
    clamp(x, 0, 6): relu6
    clamp(x + 3, 0, 6) / 6: hardsigmoid hsigmoid
    x * clamp(x + 3, 0, 6) / 6: hardswish hswish hardsilu
    x * sigmoid(1.702 * x): quickgelu
    select(x > 0, x, exp(x) - 1): elu
    x * tanh(log(1 + exp(x))): mish
    log(1 + exp(x)): softplus log1pexp
    x / (1 + abs(x)): softsign
    log(x): ln logf
    log(1 + x): log1p
    exp(x): expf
    exp(x) - 1: expm1
    sqrt(x): sqrtf
    1 / sqrt(x): rsqrt rsqrtf
    1 / x: rcp reciprocal
    x * x: square sqr
    abs(x): fabs fabsf absolute
    max(x, y): maximum fmax fmaxf
    min(x, y): minimum fmin fminf
    tanh(x): tanhf
    -x: neg negative
    x: identity linear none
    x + y: add
    x * y: mul multiply
    select(condition, x, y): where if cond ifelse iif
    round_f16(x): f16 half float16
    round_bf16(x): bf16 bfloat16
    x > 0: step heaviside
    x > y: greater gt
""")
#: Functions that have no counterpart.
NO_FUNCTIONS: dict[str, str] = {
    **dict.fromkeys(("conv", "conv2d", "convolution"), "the convolution's sum is `acc`"),
    **dict.fromkeys(("pow", "powf", "power"), "write a power as a product, `x * x * x`, and a root as `sqrt(x)`"),
    **dict.fromkeys(("fma", "fmaf", "mad"), "write the product and the sum"),
    **dict.fromkeys(("round", "rint", "floor", "ceil", "trunc"), "a result is rounded once, when it is stored"),
    **dict.fromkeys(
        ("float", "float32", "f32", "cast", "int8", "s8", "convert"),
        "values are 32-bit floats, and the result is converted when it is stored",
    ),
    **dict.fromkeys(
        ("batchnorm", "layernorm", "groupnorm", "norm"),
        "an epilogue computes each element by itself: fold scale and shift into operands, as in `acc * scale + shift`",
    ),
    **dict.fromkeys(
        ("softmax", "maxpool", "avgpool", "mean", "sum"),
        "an epilogue computes each element by itself; for sums, declare a `result` that leaves out the dims to add up",
    ),
    **dict.fromkeys(("dropout", "rand", "random"), "an epilogue has no random numbers: pass a mask as an operand"),
    "erf": "the exact gelu, which has it, is `gelu(x)`",
}
#: Values in an epilogue: all of them are the sum.
SUM = frozenset(("accum", "accumulator", "conv", "sum", "result", "out", "output", "dot", "psum", "z"))
#: Numbers that have names elsewhere.
CONSTANTS = _table("""
    1 / 0: inf infinity hugeval
    0 / 0: nan
    3.14159265: pi mpi
    1: true
    0: false
""")

#: Strategies under their other names.
STRATEGIES = _table("""
    auto: any best default automatic heuristic
    tma_im2col: tma wgmma hopper warpspecialized sm90
    tma_halo: patch halo
    depthwise: dw dwconv depthwiseconv
    implicit_gemm: gemm implicit implicitgemm igemm cutlass mma ampere
    im2col: explicit explicitgemm im2colgemm cublas unfold
    direct: naive simple reference
""")

#: GPUs and architectures under their other names.
TARGETS = _table("""
    sm_80: ampere a100 a30 ga100
    sm_86: a10 a40 a6000 a5000 a4000 a16 rtx3090 3090 rtx3080 3080 rtx3070 3070 ga102 orin
    sm_89: ada adalovelace lovelace l4 l40 l40s rtx4090 4090 rtx4080 4080 rtx4070 4070 rtx6000ada
    sm_90a: hopper h100 h200 h800 h20 gh200 gh100 h100sxm h100pcie
    sm_100a: blackwell b100 b200 gb200 datacenterblackwell
    sm_120: rtx5090 5090 rtx5080 5080 rtx5070 5070 rtxpro6000
""")
#: GPUs that are too old.
OLD_TARGETS = frozenset(("volta", "v100", "titanv", "turing", "t4", "rtx2080", "pascal", "p100", "maxwell", "kepler"))

#: Lets that stand for a dim, under its other names.
LETS: dict[str, str] = {
    word: dim
    for role in "ywx"
    for word, dim in DIMS[role].items()
    if word not in ["n", "c", "k", "d", "h", "w", "t", "r", "s", "o", "p", "q"]
}

# --- words of the command line ---

#: Commands.
COMMANDS = _table("""
    compile: build make generate gen codegen emit
    check: lint validate
    run: verify test execute exec emulate
    bench: benchmark perf profile time measure
    explain: show describe plan inspect dump
    init: new create start
    list: ls targets strategies options suites
    fmt: format pretty tidy
    doctor: info diagnose env environment
    completion: completions autocomplete
    tune: autotune optimize search
    cache: clean clear
    --help: help
""")
#: Activations.
ACTIVATIONS = _table("""
    silu: swish
    hardswish: hswish
    hardsigmoid: hsigmoid
    leaky_relu: lrelu
    none: linear identity
""")
#: Memory layouts of `convgen init`.
LAYOUTS = _table("""
    channels_last: nhwc nwc ndhwc hwc krsc last
    channels_first: nchw ncw ncdhw chw kcrs first contiguous
""")
#: Options of commands, as `plain` has them.
ARGUMENTS = _table("""
    --target: arch gpu sm gpuarch architecture device computecapability
    --output: out outdir outputdir dest destination
    --strategy: algo algorithm method kernel
    --only: name conv layer convolution
    --define: var set param let
    --format: json
    --device: backend
    --budget: time timeout seconds limit duration
""")
#: Options of `convgen init`.
LAYER_ARGUMENTS = _table("""
    --size: input inputsize inputshape shape resolution
    --channels: inchannels cin in
    --filters: outchannels cout out
    --batch: batchsize images
    --window: kernel kernelsize kernelshape ksize filter filtersize
    --pad: padding
    --dtype: type elementtype
    --activation: act
""")
#: Unknown options, and what takes their place.
NO_ARGUMENTS: dict[str, str] = {
    **dict.fromkeys(("n", "batch", "batchsize"), "the batch is a `let` of the spec, which -D overrides: -D n=64"),
    **dict.fromkeys(("o", "out", "output"), "the result is printed: `> FILE` writes it to a file"),
}
#: Devices of `convgen run`.
DEVICES = _table("""
    emulate: cpu emulator emulated emulation host sim simulate simulator interpret
    gpu: cuda device nvidia cuda0 gpu0 h100 h200
""")


def device(word: str) -> str | None:
    """The device that a word names, by its name or another; plain."""
    return word if word in DEVICES.values() else DEVICES.get(word)


# --- padding by name ---


@dataclass(frozen=True)
class Padding:
    """A rule that other libraries have a word for: (extent, window, stride) to (low, high), and what it is for."""

    amounts: Callable[[int, int, int], tuple[int, int]]
    doc: str


def _same(extent: int, window: int, stride: int) -> tuple[int, int]:
    total = max((-(-extent // stride) - 1) * stride + window - extent, 0)
    return total // 2, total - total // 2


_SAME = Padding(_same, "an output of the input's size / stride")
_SAME_LOWER = Padding(lambda extent, window, stride: _same(extent, window, stride)[::-1], _SAME.doc)
_VALID = Padding(lambda extent, window, stride: (0, 0), "")
_CAUSAL = Padding(lambda extent, window, stride: (window - 1, 0), "an output that sees no pixel after it")
_FULL = Padding(lambda extent, window, stride: (window - 1, window - 1), "every place that a tap of the filter reaches")
_HALF = Padding(lambda extent, window, stride: (window // 2, window // 2), "half of the window on either side")
PADDINGS: Mapping[str, Padding] = {
    **dict.fromkeys(("same", "sameupper", "samepad", "auto"), _SAME),
    "samelower": _SAME_LOWER,
    **dict.fromkeys(("valid", "none", "no", "nopad", "notset"), _VALID),
    "causal": _CAUSAL,
    "full": _FULL,
    "half": _HALF,
}
#: What people write for a size that is not known before a call, and what takes its place.
ANY_SIZES = ("None", "none", "dynamic", "dyn", "any", "Any", "unknown")
ANY_SIZE = "for a size that calls decide, write one to plan for, and `dynamic {}` after the tensors"
#: What people call a group for each channel.
EACH_CHANNEL = ("depthwise", "dw", "channels", "in_channels", "all", "each")
#: What padding is made of.
FILLS = _table("""
    zero: zeros constant 0
    reflect: reflection mirror reflective reflect101
    replicate: edge border clamp nearest replication repeat
    circular: wrap periodic cyclic
    nan: nans
""")
