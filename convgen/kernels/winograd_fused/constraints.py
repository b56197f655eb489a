"""Why the hardware cannot run a configuration."""

from __future__ import annotations

from convgen.kernels.base import Obstacles
from convgen.kernels.parts.hopper import MAX_BOX
from convgen.kernels.winograd_fused.layout import Layout


def illegal(layout: Layout) -> Obstacles:
    """Why the hardware cannot run a configuration."""
    found = Obstacles()
    config, target = layout.config, layout.target
    if config.weight_stages == 1:
        found.no("a consumer holds two filter rows at once", "weight_stages 2 or more, or 0", "weight_stages")
    if config.cluster > 1 and not config.weight_stages:
        found.no("a cluster needs streamed filters", "weight_stages 2 or more, or cluster 1", "cluster")
    if layout.halo.tallest > MAX_BOX:
        rows = layout.halo.tallest
        found.no(f"a halo tile spans {rows} rows of x; a box has at most {MAX_BOX}", "a wider strip", "strip")
    if layout.shared_bytes > target.shared_bytes_per_block:
        found.no(
            f"halo tiles, filters and epilogue tiles take {layout.shared_bytes} bytes of shared memory; "
            f"{target} has {target.shared_bytes_per_block}",
            "fewer stages, streamed filters",
            "stages",
        )
    return found
