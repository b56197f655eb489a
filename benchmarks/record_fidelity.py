"""Records what a GPU makes of random TMA loads, TMA stores and wgmma tiles, for the emulator to agree with.

    python benchmarks/record_fidelity.py                      writes tests/emulated/fidelity.json
    python benchmarks/record_fidelity.py --seed 7 --tma 2000 --wgmma 500 --out /tmp/more.json

Needs a GPU of compute capability 9.0.  The cases run in a process of their own, which is started again after
a case on which the GPU faults; such cases, and maps that the driver refuses, are listed and left out.  Where
there is a C++ compiler, every answer is compared with the emulator's on the spot, and differences are shown.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "emulated"))

import fidelity  # noqa: E402
from fidelity import TmaCase, WgmmaCase, digest  # noqa: E402

from convgen.bench.results import commit  # noqa: E402
from convgen.emulator import EmulationError, NoHostCompiler  # noqa: E402
from convgen.runtime import cuda, nvrtc, tensor_map  # noqa: E402
from convgen.runtime.errors import DriverError, NoGpu  # noqa: E402
from convgen.targets import TARGETS  # noqa: E402

TARGET = TARGETS["sm_90a"]


class Gpu:
    """Compiled code on device 0."""

    def __init__(self, cubin: bytes) -> None:
        self._driver = cuda.driver()
        self._driver.enter(0)
        self._module = self._driver.load(cubin)

    def run(self, entry: str, shared_bytes: int, values: Sequence[Any]) -> None:
        """One block of 128 threads; values are ctypes objects, in the order of the kernel's parameters."""
        function = self._driver.function(self._module, entry, shared_bytes)
        block = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        config = cuda.LaunchConfig(grid=(1, 1, 1), block=(128, 1, 1), shared_bytes=shared_bytes, attribute_count=0)
        self._driver.check(self._driver.launch(ctypes.byref(config), function, block, None), f"launching {entry}")


class Refused(Exception):
    """The driver refuses the case's tensor map."""


def on_gpu(array: np.ndarray) -> Any:
    import cupy

    return cupy.asarray(array)


def pointer(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.data.ptr)


def encoded(case: TmaCase, tensor: Any) -> Any:
    """The case's map over a tensor on the GPU, as a kernel's parameter.  Raises Refused."""
    try:
        return ctypes.create_string_buffer(tensor_map.encode(case.map, tensor.data.ptr), tensor_map.BYTES)
    except DriverError as e:
        raise Refused(str(e)) from None


def run_tma(gpu: Gpu, case: TmaCase) -> np.ndarray:
    """As fidelity.emulate_tma.  Raises Refused."""
    tensor = on_gpu(case.tensor())
    out = on_gpu(np.zeros(fidelity.WINDOW // 4 + 1, np.uint32))
    numbers = [ctypes.c_int(v) for v in case.load_parameters]
    gpu.run(case.entry, fidelity.TMA_SHARED, [encoded(case, tensor), pointer(out), *numbers])
    return out.get()


def run_store(gpu: Gpu, case: TmaCase) -> np.ndarray:
    """As fidelity.emulate_stores.  Raises Refused."""
    tensor, window = on_gpu(case.tensor()), on_gpu(case.window())
    numbers = [ctypes.c_int(v) for v in case.store_parameters]
    gpu.run(case.entry, fidelity.TMA_SHARED, [encoded(case, tensor), pointer(window), *numbers])
    return tensor.get()


def run_wgmma(gpu: Gpu, case: WgmmaCase) -> np.ndarray:
    """As fidelity.emulate_wgmma."""
    arrays = {name: on_gpu(a) for name, a in case.inputs().items()}
    gpu.run(case.entry, fidelity.WGMMA_SHARED, [pointer(arrays[name]) for name in fidelity.WGMMA_PARAMETERS])
    return arrays["out"].get()


@dataclass(frozen=True)
class Kind:
    """One kind of case: how to make them, their source, how to run one and how to emulate all."""

    cases: Callable[[int, int], list[Any]]
    source: Callable[[Sequence[Any]], str]
    run: Callable[[Gpu, Any], np.ndarray]
    emulate: Callable[[Sequence[Any], str], list[np.ndarray]]


KINDS = {
    "tma": Kind(fidelity.random_tma, lambda cases: fidelity.tma_source(), run_tma, fidelity.emulate_tma),
    "store": Kind(fidelity.random_stores, lambda cases: fidelity.store_source(), run_store, fidelity.emulate_stores),
    "wgmma": Kind(fidelity.random_wgmma, fidelity.wgmma_source, run_wgmma, fidelity.emulate_wgmma),
}


def work(kind: str, seed: int, count: int, first: int, folder: Path) -> None:
    """Runs cases from `first` on, an answer a file; ends where the GPU faults."""
    gpu = Gpu((folder / f"{kind}.cubin").read_bytes())
    cases = KINDS[kind].cases(seed, count)
    for i, case in enumerate(cases[first:], first):
        try:
            np.save(folder / f"{kind}{i}.npy", KINDS[kind].run(gpu, case))
        except Refused as e:
            (folder / f"{kind}{i}.refused").write_text(str(e), encoding="utf-8")


def answers(kind: str, cases: Sequence[Any], seed: int, count: int, folder: Path) -> list[np.ndarray | None]:
    """The GPU's answer to each case; None where the driver refused it or the GPU faulted."""
    (folder / f"{kind}.cubin").write_bytes(nvrtc.compile_source(KINDS[kind].source(cases), TARGET).cubin)
    found: list[np.ndarray | None] = []
    while len(found) < len(cases):
        first = len(found)
        command = [sys.executable, __file__, "--work", kind, str(first), str(folder), "--seed", str(seed)]
        done = subprocess.run([*command, f"--{kind}", str(count)], capture_output=True, text=True, check=False)
        while len(found) < len(cases):
            refusal, answer = folder / f"{kind}{len(found)}.refused", folder / f"{kind}{len(found)}.npy"
            if answer.exists():
                found.append(np.load(answer))
            elif refusal.exists():
                print(f"refused: {refusal.read_text(encoding='utf-8')}")
                found.append(None)
            else:
                break
        if len(found) == len(cases):
            break
        if len(found) == first == 0:
            sys.exit(done.stderr)  # it is not the case's fault
        print(f"faults: {cases[len(found)]}\n  {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        found.append(None)
    return found


def provenance(arguments: argparse.Namespace) -> dict[str, Any]:
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    return {
        "gpu": properties["name"].decode(),
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "nvrtc": nvrtc.nvrtc_version(),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "seed": arguments.seed,
    }


def compare(kind: str, cases: Sequence[Any], answers: Sequence[np.ndarray], every: Sequence[Any]) -> int:
    """Shows where the emulator differs; how many do."""
    different = 0
    emulated = KINDS[kind].emulate(cases, KINDS[kind].source(every))
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
    parser.add_argument("--tma", type=int, default=640, help="how many loads")
    parser.add_argument("--store", type=int, default=160, help="how many stores")
    parser.add_argument("--wgmma", type=int, default=240, help="how many tiles")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)  # kind, first case, folder: the other process
    arguments = parser.parse_args()
    if arguments.work:
        kind, first, where = arguments.work
        work(kind, arguments.seed, getattr(arguments, kind), int(first), Path(where))
        return 0

    try:
        cuda.driver()
    except NoGpu as e:
        parser.exit(1, f"{e}\n")
    lines = [f'"provenance": {json.dumps(provenance(arguments))}']
    kept: dict[str, tuple[list[Any], list[np.ndarray], list[Any]]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for kind, row in KINDS.items():
            count = getattr(arguments, kind)
            every = row.cases(arguments.seed, count)
            pairs = zip(every, answers(kind, every, arguments.seed, count, Path(temporary)), strict=True)
            good = [(case, answer) for case, answer in pairs if answer is not None]
            kept[kind] = [case for case, _ in good], [answer for _, answer in good], every
            shown = [json.dumps({**c.as_dict(), "digest": digest(a)}, separators=(",", ":")) for c, a in good]
            lines.append(f'"{kind}": [\n  ' + ",\n  ".join(shown) + "\n]")
    arguments.out.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{' and '.join(f'{len(k[0])} {kind}' for kind, k in kept.items())} in {arguments.out}")
    try:
        return int(any([compare(kind, *k) for kind, k in kept.items()]))
    except NoHostCompiler as e:
        print(f"not compared with the emulator: {e}")
        return 0
    except EmulationError as e:
        print(e)
        return 1


if __name__ == "__main__":
    sys.exit(main())
