"""Mutants that need not be noticed, since the kernel is still right, and those that cannot be."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mutate import Mutant


@dataclass(frozen=True)
class Excuse:
    """Patterns: of the class and the change, of the line before and after the change, of the two lines above it, of
    anything in the source."""

    change: str
    reason: str
    was: str = ""
    now: str = ""
    above: str = ""
    source: str = ""

    def covers(self, mutant: Mutant) -> bool:
        return (
            re.fullmatch(self.change, f"{mutant.kind}: {mutant.what}") is not None
            and re.search(self.was, mutant.was) is not None
            and re.search(self.now, mutant.now) is not None
            and re.search(self.above, mutant.above) is not None
            and re.search(self.source, mutant.text) is not None
        )


#: The kernel is still right.
HARMLESS = (
    Excuse("moved: bar_sync moved behind bar_sync", "a thread executes one of the two"),
    Excuse(
        "moved: (__syncthreads|cluster_wait) moved behind griddepcontrol_wait",
        "two waits change places, and nothing is read or written between them",
    ),
    Excuse(
        "moved: mbarrier_arrive_expect_tx moved behind tma_load_.*",
        "a load may complete before its bytes are expected: the phase waits for the arrival",
    ),
    Excuse(
        r"moved: (mbarrier_arrive(_cluster)?|cluster_arrive) moved behind "
        r"(for|block|const|wgmma_wait_group|bulk_wait_group_read|tma_store_.*|mbarrier_arrive|partials)",
        "an arrival that comes later orders more, not less",
    ),
    Excuse(
        "moved: mbarrier_arrive_expect_tx moved behind for",
        "loads may complete before their bytes are expected: the phase waits for the arrival",
    ),
    Excuse(
        "moved: (mbarrier_wait_parity|griddepcontrol_wait|bulk_wait_group_read) moved before .*",
        "a wait that comes earlier orders more, not less",
    ),
    Excuse(
        "moved: sync_consumer moved before (block|for)",
        "products and arithmetic, which do not touch the epilogue tile",
        was="the epilogue tile's previous pixels have been stored",
    ),
    Excuse(
        "moved: (mbarrier_wait_parity moved behind wgmma_fence|wgmma_fence moved before mbarrier_wait_parity)",
        "the fence orders registers, the wait shared memory",
    ),
    Excuse(
        "(removed|moved): fence_mbarrier_init .*",
        "a proxy fence and a barrier of the block follow, before any load",
        source=r"(?s)fence_mbarrier_init.*fence_proxy_async_shared\(\);\n  (__syncthreads|cluster_arrive)\(\);",
    ),
    Excuse(
        "moved: fence_mbarrier_init moved (before for|behind mbarrier_arrive)",
        "the barriers of turns, which no load signals, and an arrival on one of them",
        source="turn_barriers",
    ),
    Excuse(
        "removed: fence_proxy_async_shared removed|moved: fence_proxy_async_shared moved before zero_shared",
        "each thread has another one behind its filters, before anything asynchronous reads",
        above=r"zero_shared\(base \+ filter_boxes",
    ),
    Excuse(
        "moved: fence_proxy_async_shared moved before for",
        "the loop only gives back slabs",
        above="this one can be stored once all threads have written it",
    ),
    Excuse("moved: bar_sync moved behind Vec4", "behind a declaration"),
    Excuse(
        "moved: sync_consumer moved behind mbarrier_wait_parity",
        "two waits change places, and nothing is read or written between them",
    ),
    Excuse(
        "moved: sync_consumer moved behind request",
        "a tile has as many epilogue tiles as there are slots: no more are requested",
        source=r"(?s)constexpr int pixels = (96;.*int epi_tile_pixels = 48|128;.*int epi_tile_pixels = 64);",
    ),
    Excuse(
        r"barrier: barrier 1 for \d",
        "all consumers meet there before any meets at its own",
        was=r"consumers \* warpgroup_threads",
    ),
    Excuse(
        "barrier: barrier 3 for 2",
        "all consumers meet there before any meets at its own",
        was="bar_sync<2, warpgroup_threads>",
        source=r"bar_sync<3, consumers \* warpgroup_threads>",
    ),
    Excuse(
        "barrier: barrier 4 for 3",
        "all consumers meet there before any meets at its own",
        was="bar_sync<3, warpgroup_threads>",
        source=r"bar_sync<4, consumers \* warpgroup_threads>",
    ),
    Excuse("stage: next stage", "there is one stage", now=r"\+ 1\) % stages", source=r"constexpr int stages = 1;"),
    Excuse("stage: next stage", "there is one ring", now=r"\+ 1\) % rings", source=r"constexpr int rings = 1;"),
    Excuse("moved: cp_async_commit_group moved before w_reader", "the reader only goes on to its next tile"),
    Excuse(
        "moved: __syncthreads moved before if",
        "a tile is stored stages before it is read, and there is a barrier every step",
        above=r"store\(free_tile",
    ),
    Excuse("guard: .*", "such a sum is made, and not stored", was=r"value = window_sum"),
    Excuse(
        "guard: (<= for <|>= for >)",
        "what is left of A or B ends inside a tile, so it is neither as much as one nor 0",
        was=r"[ab]_left (< (tile_[mn]|[ab]_slice)|> 0)",
    ),
    Excuse("guard: <= for <", "an operand's pixel is loaded, whose result is not stored", was=r"bool kept = .*line <"),
    Excuse(
        "stage: not carried on",
        "each phase has one tap",
        was=r"^\s+[cs] = 0;",
        source=r"(?s)filter w: f16\[k=392, r=2, s=2,.*constexpr int phase_count = 4;",
    ),
    Excuse("guard: >= for >", "both give zero", was=r"leaky_relu|return x \* \(x > 0\.0f"),
    Excuse(
        "guard: (>= for >|<= for <)",
        "no tile that begins where a block does, nor the last one, is in parts",
        was=r"first_of\(block - 1\) > tile|gemm_m < GEMM_M && gemm_n < GEMM_N",
        source=r"(?s)constexpr int GEMM_M = 9450;.*convgen_stream_k_finish",
    ),
    Excuse("guard: <= for <", "no step is as late", was=r"if \(step < k_steps\)"),
    Excuse("guard: >= for >", "a block has no sums of its own to skip", was=r"rank > peer|peer > rank"),
    Excuse(
        "guard: >= for >",
        "the last of several blocks of channels, which never begins the sums",
        was=r"step != \w+ \|\| product > 0",
        above=r"b_tile|a_tile",
    ),
    Excuse(
        "guard: <= for <",
        "the element beyond meets a zero of the table, or a gap between rows",
        was=r"u32\(at\) < run_elements|st_shared_u32\(base \+ filters_at|at < loads",
        source=r"(?s)\A(?!.*GEMM_N = 696;)",  # whose last filter ends with w
    ),
    Excuse(
        "cluster: another block",
        "two threads arrive at two blocks, whichever of them at which",
        was="thread < cluster",
    ),
    Excuse(
        "moved: fence_proxy_async_shared moved behind (sync_consumer|bar_sync|__syncthreads|bulk_wait_group_read)",
        "a proxy fence counts anywhere on the path from the write to the asynchronous read",
    ),
    Excuse(
        r"(removed: wgmma_fence removed|moved: wgmma_fence moved behind (for|wgmma_m64\w+))",
        "the accumulators are in use by the MMAs of the step before, and need no fence",
        above=r"else \{|tap_filters = ",
    ),
    Excuse(
        "stage: (first|next) place",
        "the two epilogue tiles of a consumer, or two bands' results, change names",
        was=r"int epi_tile = 0;|epi_tile_base =|int results = 0;",
    ),
    Excuse(
        "moved: cp_async_commit_group moved behind (for|constexpr)",
        "what follows copies nothing",
        above="load_halo_tile",
    ),
    Excuse("guard: > for >=", "a row is loaded twice", was=r"set \+ 1 < sets && line >= 4"),
    Excuse("moved: cp_async_commit_group moved behind fill", "fill only says which stage comes next"),
    Excuse(
        "moved: cp_async_wait_group moved (behind load|before if)",
        "a thread that only waits for its own copies may ask for others before",
        source="own_x",
    ),
    Excuse("guard: <= for <", "a place behind the last strip, which is not loaded", was=r"place\(ahead\)"),
    Excuse(
        "moved: cluster_arrive_relaxed moved before (extern|partials|if|for)",
        "an arrival that publishes nothing may come earlier",
    ),
    Excuse(
        "moved: mbarrier_arrive(_cluster)? moved behind cluster_wait",
        "a stage that is given back later is given back all the same",
    ),
    Excuse(
        "moved: cluster_wait moved behind mbarrier_arrive_expect_tx",
        "the bytes of others' sums may be expected before there is room for them: they are sent behind the wait",
    ),
    Excuse("moved: cluster_wait moved before for", "a producer that waits earlier loads later", source="st_async"),
    Excuse("guard: >= for >", "not where peer is k_rank: its sums are at hand", was=r"peer > k_rank"),
    Excuse(
        "moved: cluster_arrive moved (behind for|before sums_parity)",
        "others may write sums where these have been read, not before the arrival",
    ),
    Excuse(
        "guard: <= for <",
        "a block that arrives once more behind its last tile leaves: nobody waits for it",
        was=r"cluster_arrive\(\);",
    ),
    Excuse(
        "removed: cluster_wait removed",
        "the producer arrives, and leaves without waiting",
        above="waits? for every thread that has not exited",
        source="st_async",
    ),
    Excuse(
        "moved: fence_mbarrier_init moved behind mbarrier_arrive_expect_tx",
        "the thread's own arrival needs no fence; others count on the barrier behind the cluster's",
    ),
    Excuse(
        "moved: griddepcontrol_wait moved behind const",
        "nothing that another kernel writes is read between the two places",
        source=r"const int first_strip",
    ),
    Excuse(
        "guard: <= for <",
        "channels beyond the last are multiplied, too: TMA fills them with zeros",
        was=r"(channel_blocks - 1|halos - T)\) \{",
    ),
    # mma_wgrad
    Excuse(
        "moved: cp_async_commit_group moved behind for",
        "empty groups follow, so the wait leaves fewer copies under way",
        above=r"stages - 1 < end_step\) load",
    ),
    Excuse("guard: <= for <", "8 are as many either way", was=r"channels / 8 < 8 \? channels"),
    Excuse("guard: <= for <", "columns behind the last are not stored", was=r"first_chunk \+ x_chunk < chunks"),
    Excuse("guard: <= for <", "a stage more is loaded, and not read", was=r"first_step \+ i < end_step\) load"),
    Excuse(
        "guard: <= for <",
        "the channels are whole chunks",
        source=r"(?s)tap_chunks = .*k < GEMM_M && c <= x_channels\) \{",
    ),
    Excuse("guard: >= for >", "nobody reads what the first sharer hands over", was=r"if \(sharer > 0\) \{"),
    Excuse("guard: <= for <", "the last slice's step more has no pixels", now=r"slice <= steps", source="slices = 2;"),
    Excuse("guard: <= for <", "each channel of the 8 is asked for, too", now=r"has_k = load_k <= |k \+ e <= 24"),
    Excuse(
        "guard: <= for <",
        "no group has such a row or channel",
        now=r"\(k( - pack \* GEMM_M)? <= GEMM_M|(e|channel) <= x_channels",
        source="/ group_m ==",
    ),
    # first layers
    Excuse(
        "(removed: __syncthreads removed|moved: __syncthreads moved (behind load_halo_tile|before for))",
        "each thread copies over zeros that it stored itself",
        source=r"(?s)halo_rows = 1;.*clear what no copy will write",
    ),
    Excuse(
        "guard: (<= for <|> for >=)",
        "nothing is as late",
        now=r"thread <= tile_n \* (8|16)|place <= k_steps \* 8|line > lines\) return 0",
    ),
    Excuse("guard: <= for <", "nothing is as late", now=r"u32\(h\) <= 1;", source="halo_rows = 1;"),
    Excuse(
        "guard: > for >=",
        "there is one row: a thread that comes to its end is done either way",
        now="vector > line_copies",
        source="halo_rows = 1;",
    ),
    Excuse(
        "guard: <= for <",
        "a word ends with the window's last element",
        now=r"word \* 2 - shift_of\(phase\) \+ e\) <= run_elements",
        source=r"shift_of\(int phase\) \{ return 1;",
    ),
    # stem_wgrad
    Excuse(
        "moved: mbarrier_arrive moved behind previous",
        "an arrival that comes later orders more, not less",
        was=r"chunk == 0 && previous_b_stage",
    ),
    Excuse("guard: <= for <", "a vector behind the last is loaded, and not stored", now=r"place <= round_rows"),
    Excuse("guard: > for >=", "the end of the ring of rows stands for its beginning", was=r"(next|top) >= slots"),
    Excuse(
        "guard: <= for <",
        "the rows so far are a multiple of a round's, which R is not",
        was=r"top < R \? top - R \+ slots",
        source=r"constexpr int round_rows = 2;",
    ),
    # winograd_fused
    Excuse(
        "moved: mbarrier_arrive(_cluster)? moved behind __syncwarp", "an arrival that comes later orders more, not less"
    ),
    Excuse(
        "moved: wgmma_wait_group moved behind __syncwarp",
        "the lane that arrives waits for the MMAs itself, and the others have read what they multiply",
        source=r"(?s)wgmma_wait_group<0>\(\);\s+if \(lane == 0\) mbarrier_arrive",
    ),
    # winograd, whose product is mma_gemm's
    Excuse(
        "(stage: one stage fewer|guard: <= for <)",
        "a stage more is loaded, of zeros behind the channels, and not read",
        was=r"const bool more = step \+ stages - 1 < k_steps",
    ),
    Excuse(
        "moved: cp_async_wait_group moved behind for",
        "the zeros for steps beyond the last are waited for later",
        was=r"cp_async_wait_group<0>",
        source=r"_filter\(",
    ),
    Excuse(
        "guard: > for >=",
        "channels are filled up to whole blocks of threads",
        source=r"_filter\([^)]*\) \{\n(  constexpr [^\n]*\n|\n|  const int index[^\n]*\n)*  if \(index > ",
    ),
    # tma_wgrad, which sums y in the second of three loops over its steps
    Excuse(
        r"(removed: wgmma_fence removed|moved: wgmma_fence moved behind (for|wgmma_m64\w+)|guard: >= for >)",
        "the third loop goes on with accumulators that the MMAs of another have begun",
        source=r"(?s)step = own_end;((?!wgmma_fence).)*wgmma_m64|step = own_end;.*product >= 0\)",
    ),
    Excuse("moved: wgmma_wait_group moved behind partials", "an address is made between the two places"),
    Excuse(
        "moved: wgmma_wait_group moved behind mbarrier_arrive_cluster",
        "the last stages are not filled again: the arrival only lets a block end",
        was=r"wgmma_wait_group<0>",
        source="convgen_tma_wgrad",
    ),
    Excuse("guard: <= for <", "a word more of ones, behind which nothing lies", was=r"base \+ ones"),
    Excuse(
        "cluster: the cluster's barrier is the block's",
        "the blocks meet once more before they write to one another",
        was="cluster_arrive",
        above="fence_proxy_async_shared",
    ),
    Excuse(
        "cluster: no barrier of the cluster",
        "a thread that has left is not waited for",
        above="waits? for every thread that has not exited",
    ),
    # tma_im2col, stream-K: of more tiles than blocks, and of fewer
    Excuse(
        "guard: <= for <",
        "no tile whose sums two blocks share is the last one",
        now=r"if \(gemm_m <= GEMM_M && gemm_n < GEMM_N\) \{",
        source="= 8631;",
    ),
    Excuse("guard: >= for >", "each block has a whole tile", now=r"first_of\(block - 1\) >= tile", source="= 8631;"),
    # sums of channels
    Excuse(
        "guard: <= for <",
        "a sum in the thread's own place, which nobody asks for: two share it",
        now=r"sharer <= 2 \* half",
        above="half = sharers / 2;",
        source="sharers = 2;  // threads that share an element\n",
    ),
    Excuse(
        "moved: wgmma_wait_group moved behind mbarrier_arrive",
        "the producer meets the consumers at the cluster's barrier before its next tile",
        was=r"wgmma_wait_group<0>",
        source="arrive at the cluster's barrier, which waits for every thread",
    ),
    Excuse(
        "moved: bar_sync moved behind for",
        "the loop computes in registers",
        source=r"(?s)\A(?!.*constexpr u32 sum_bytes).*loaded_block",
    ),
    Excuse("moved: bulk_wait_group_read moved behind for", "the loop computes in registers", above=r"results \^= 1;"),
    Excuse(
        "moved: fence_proxy_async_shared moved before if",
        "a proxy fence counts anywhere on the path from the write to the asynchronous read",
        above="the previous band has been read from shared memory",
    ),
    Excuse("moved: sync_consumer moved behind for", "the loop computes in registers", above=r"bulk_wait_group_read<1>"),
    Excuse(
        "guard: <= for <",
        "the sum behind the last pixel is zero",
        now=r"if \(gemm_m <= GEMM_M\) \{",
        source="convgen_tma_im2col_statistics",
    ),
    # strided dgrad
    Excuse("guard: <= for <", "the row behind a phase's last is past the last image", now=r"return m <= phase_m"),
    Excuse(
        "moved: sync_consumer moved before for",
        "all have waited for their turn by then",
        above="keeps a slow warp",
    ),
    Excuse(
        "stage: buffer not changed",
        "there is a barrier before each part's operands are read, too",
        was=r"epi_tile \^= 1",
        source=r"cp_async_wait_group<slots - 1>\(\);\n *sync_consumer",
    ),
    Excuse("guard: <= for <", "an operand is loaded that nobody uses", now=r"kept = line % width <= strip"),
    Excuse(
        "guard: (<= for <|> for >=)",
        "an operand is loaded that nobody uses",
        source=r"(from_strip <=|at_q \+ b >) strip_columns[^\n]*\n( *if \(q >= Q\) break;\n)? *early_raw",
    ),
    Excuse(
        "guard: <= for <",
        "an operand that is not loaded early is zero, and relu's gradient, too",
        now="(p <= P|q <= Q)",
        above=r"const int pixel = ",
        source="early_raw_saved",
    ),
    Excuse(
        "stage: not carried on",
        "a reader that is made of its phase has zeros else",
        was=r"^ *[rs] = 0;",
        source=r"XReader x_reader\{phase\};",
    ),
    # depthwise_wgrad
    Excuse(
        "guard: (<= for <|> for >=)",
        "what is loaded behind a thread's last strip nobody uses",
        now=r"ahead (<=|>) strips\) (load_|next|return)",
    ),
    Excuse(
        "guard: <= for <",
        "a row behind those of the strip is read where another lay, and left out as it is multiplied",
        now=r"if \(j <= outputs\) \{",
        source=r"fma_if_f32",
    ),
    Excuse(
        "guard: > for >=",
        "rows are taken one by one, so none is as late",
        now=r"if \(r > tile_r",
        source=r"(?s)held_rows = \d+;(?!.*constexpr int added_rows = (?!1;))",
    ),
    # tma_plain
    Excuse(
        "(removed: __syncthreads removed|moved: wgmma_wait_group moved behind __syncthreads)",
        "an MMA is the whole warpgroup's: when one thread has waited for it, all warps have multiplied",
        was=r"before the next load|wgmma_wait_group",
        source=r"tma_plain",
    ),
    Excuse("moved: wgmma_fence moved before parity", "no MMA uses the parity"),
)
#: The kernel is wrong, and the emulator can't see it.
UNSEEN = (
    Excuse(
        "moved: sync_consumer moved behind mbarrier_arrive|removed: sync_consumer removed",
        "a warp would have to sleep through two turns, with one step each",
        above="keeps a slow warp",
    ),
    Excuse(
        "removed: __syncwarp removed",
        "the warp may be divided when it comes to an aligned instruction; lanes are emulated one by one and always "
        "meet there",
        above=r"^ +\}\n +\}$",
    ),
    Excuse(
        "guard: <= for <",
        "what a prologue makes of channels beyond x's meets weights of 0, and no random shift is the infinity that "
        "tells (test_prologue tries one)",
        was=r"if \(c < \d+\) \{",
        source=r"float prologue\(",
    ),
)


def excuse(mutant: Mutant) -> Excuse | None:
    return next((e for e in (*HARMLESS, *UNSEEN) if e.covers(mutant)), None)
