"""Records what a GPU makes of random TMA boxes and wgmma tiles, for the emulator to agree with.

    python benchmarks/record_fidelity.py                      writes tests/emulated/fidelity.json
    python benchmarks/record_fidelity.py --seed 7 --tma 2000 --wgmma 500 --out /tmp/more.json

Needs a GPU of compute capability 9.0.  Maps that the driver refuses are listed and left out.  Where there is
a C++ compiler, every answer is compared with the emulator's on the spot, and differences are shown.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "emulated"))

import fidelity  # noqa: E402
from fidelity import TmaCase, WgmmaCase, digest  # noqa: E402

from convgen.emulator import EmulationError, NoHostCompiler  # noqa: E402
from convgen.runtime import cuda, nvrtc, tensor_map  # noqa: E402
from convgen.runtime.errors import DriverError  # noqa: E402
from convgen.targets import TARGETS  # noqa: E402

TARGET = TARGETS["sm_90a"]


class Gpu:
    """A compiled source on device 0."""

    def __init__(self, source: str) -> None:
        self._driver = cuda.driver()
        self._driver.enter(0)
        self._module = self._driver.load(nvrtc.compile_source(source, TARGET).cubin)

    def run(self, entry: str, shared_bytes: int, values: Sequence[Any]) -> None:
        """One block of 128 threads; values are ctypes objects, in the order of the kernel's parameters."""
        function = self._driver.function(self._module, entry, shared_bytes)
        block = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        config = cuda.LaunchConfig(grid=(1, 1, 1), block=(128, 1, 1), shared_bytes=shared_bytes, attribute_count=0)
        self._driver.check(self._driver.launch(ctypes.byref(config), function, block, None), f"launching {entry}")


def on_gpu(array: np.ndarray) -> Any:
    import cupy

    return cupy.asarray(array)


def pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.data.ptr)


def run_tma(gpu: Gpu, case: TmaCase) -> np.ndarray:
    """As fidelity.emulate_tma.  Raises DriverError where the driver refuses the map."""
    tensor = on_gpu(case.tensor())
    out = on_gpu(np.zeros(fidelity.WINDOW // 4 + 1, np.uint32))
    encoded = ctypes.create_string_buffer(tensor_map.encode(case.map, tensor.data.ptr), tensor_map.BYTES)
    numbers = [ctypes.c_int(v) for v in case.parameters]
    gpu.run(case.entry, fidelity.TMA_SHARED, [encoded, pointer(out), *numbers])
    return out.get()


def run_wgmma(gpu: Gpu, case: WgmmaCase) -> np.ndarray:
    """As fidelity.emulate_wgmma."""
    arrays = {name: on_gpu(a) for name, a in case.inputs().items()}
    gpu.run(case.entry, fidelity.WGMMA_SHARED, [pointer(arrays[name]) for name in fidelity.WGMMA_PARAMETERS])
    return arrays["out"].get()


def provenance(arguments: argparse.Namespace) -> dict[str, Any]:
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "gpu": properties["name"].decode(),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "nvrtc": nvrtc.nvrtc_version(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip() or "unknown",
        "seed": arguments.seed,
    }


def compare(kind: str, cases: Sequence[Any], answers: Sequence[np.ndarray], emulate: Any, source: str) -> int:
    """Shows where the emulator differs; how many do."""
    different = 0
    emulated = emulate(cases, source)
    for case, theirs, ours in zip(cases, answers, emulated, strict=True):
        if (theirs == ours).all():
            continue
        different += 1
        a, b = theirs.view(np.uint8), ours.view(np.uint8)
        at = np.flatnonzero(a != b)
        first = int(at[0])
        shown = f"GPU {a[first : first + 16].tobytes().hex()}, emulator {b[first : first + 16].tobytes().hex()}"
        print(f"{kind}: {case}\n  {len(at)} of {len(a)} bytes differ, the first at {first}: {shown}")
    print(f"{kind}: the emulator agrees in {len(cases) - different} of {len(cases)}")
    return different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "emulated" / "fidelity.json")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--tma", type=int, default=640, help="how many boxes")
    parser.add_argument("--wgmma", type=int, default=240, help="how many tiles")
    arguments = parser.parse_args()

    source = fidelity.tma_source()
    gpu = Gpu(source)
    boxes: list[tuple[TmaCase, np.ndarray]] = []
    for case in fidelity.random_tma(arguments.seed, arguments.tma):
        try:
            boxes.append((case, run_tma(gpu, case)))
        except DriverError as e:
            print(f"left out: {e}")
    tiles = fidelity.random_wgmma(arguments.seed, arguments.wgmma)
    tile_source = fidelity.wgmma_source(tiles)
    gpu = Gpu(tile_source)
    tile_answers = [run_wgmma(gpu, case) for case in tiles]

    record = {
        "provenance": provenance(arguments),
        "tma": [{**case.as_dict(), "digest": digest(answer)} for case, answer in boxes],
        "wgmma": [{**c.as_dict(), "digest": digest(answer)} for c, answer in zip(tiles, tile_answers, strict=True)],
    }
    lines = [f'"provenance": {json.dumps(record["provenance"])}']
    for kind in ("tma", "wgmma"):
        rows = ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in record[kind])
        lines.append(f'"{kind}": [\n  {rows}\n]')
    arguments.out.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(boxes)} boxes and {len(tiles)} tiles in {arguments.out}")

    try:
        different = compare("tma", *zip(*boxes, strict=True), fidelity.emulate_tma, source)
        different += compare("wgmma", tiles, tile_answers, fidelity.emulate_wgmma, tile_source)
    except NoHostCompiler as e:
        print(f"not compared with the emulator: {e}")
        return 0
    except EmulationError as e:
        print(e)
        return 1
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
