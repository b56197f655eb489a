"""`convgen reproduce`: what experiments find, and the files that the command writes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from convgen import driver
from convgen.cli import main
from convgen.reproduce import find
from convgen.reproduce.networks import NAMES, Layer, layers
from convgen.spec import Spec, UsageError, read


def test_memory_is_what_the_document_s_table_prints():
    outcome = find("memory").run()
    inputs, lowered = (next(s for s in outcome.series if s.name == name) for name in ("inputs", "lowered"))
    at = {label: i for i, label in enumerate(outcome.labels)}
    assert (inputs.shown(inputs.values[at["vgg16"]]), lowered.shown(lowered.values[at["vgg16"]])) == ("34.64", "311.80")
    assert (inputs.shown(inputs.values[at["resnet50"]]), lowered.shown(lowered.values[at["resnet50"]])) == (
        "34.55",
        "81.11",
    )


#: Convolutions, and multiply-adds of one image in units of 10^9, as published without the fully connected layers.
@pytest.mark.parametrize(
    "network, convolutions, gmacs",
    [("alexnet", 5, 0.656), ("vgg16", 13, 15.35), ("resnet50", 53, 4.087), ("densenet121", 120, 2.833),
     ("yolov2", 23, 14.73), ("googlenet", 57, 1.582), ("zfnet", 5, 1.109)],
)  # fmt: skip
def test_networks_are_whole(network, convolutions, gmacs):
    found = layers(network)
    assert sum(found.values()) == convolutions
    assert sum(count * layer.macs for layer, count in found.items()) / 1e9 == pytest.approx(gmacs, rel=1e-3)


def test_the_suites_are_parts_of_the_networks():
    root = Path(__file__).parents[2] / "specs"
    for network in NAMES:
        shapes = {(x.c, x.h, x.k, x.r, x.stride, x.pad) for x in layers(network)}
        for compilation in driver.load(Spec(*read(root / f"{network}.conv"))):
            p = compilation.request.problem
            assert (p.c, p.input[0], p.k, p.filter[0], p.stride[0], p.pad_lo[0]) in shapes, (network, p.name)


def test_a_layer_s_spec_is_the_layer():
    layer = Layer(64, 27, 192, 5, 2, 2)
    (compilation,) = driver.load(Spec(layer.spec("layer", 3)))
    problem = compilation.request.problem
    assert (problem.n, problem.macs) == (3, 3 * layer.macs)
    assert math.prod(problem.output) * problem.c * problem.taps == layer.lowered_elements


def test_files(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main(["reproduce", "memory", "--out", f"{tmp_path}/m.json", "--plot", f"{tmp_path}/m.svg"]) == 0
    assert "vgg16" in capsys.readouterr().out
    record = json.loads((tmp_path / "m.json").read_text())
    assert record["command"] == "convgen reproduce memory" and {"commit", "date", "convgen"} <= record.keys()
    assert [row["network"] for row in record["rows"]] == list(NAMES)
    assert "<svg" in (tmp_path / "m.svg").read_text()


def test_networks_are_weighed_by_their_layers(tmp_path, capsys):
    first, *others = layers("alexnet")
    rows = [
        {"spec": layer.spec("layer", 8), "n": 8, "us": us, "cudnn_us": 2 * us}
        for layer, us in ((first, 10.0), (others[0], 20.0), (Layer(7, 9, 5), 1000.0))
    ]
    rows.append(rows[0] | {"spec": others[1].spec("layer", 8), "us": None})  # no kernel
    record = {"gpu": "a GPU", "commit": "0123456789", "rows": rows}
    outcome = find("networks").run(record)
    assert outcome.labels == ["alexnet", "geometric mean"] and "a GPU, batch 8, commit 0123456" in outcome.title
    ours, cudnn, ratio, _, covered = (s.values[0] for s in outcome.series)
    assert [s.values[1] for s in outcome.series] == [None, None, ratio, 0.99, None]
    assert (ours, cudnn, ratio) == (pytest.approx(0.03), pytest.approx(0.06), 2)
    macs = {layer: layer.macs for layer in layers("alexnet")}
    assert covered == pytest.approx(100 * (macs[first] + macs[others[0]]) / sum(macs.values()))
    rows[0]["n"] = 64
    with pytest.raises(UsageError, match="not of one batch"):
        find("networks").run(record)
    with pytest.raises(UsageError, match="none of the results is of a layer of `alexnet`"):
        find("networks").run(record | {"rows": [rows[2]]})


def record(*rows: dict, **more: object) -> dict:
    return {"gpu": "a GPU", "commit": "0123456789", "rows": list(rows), **more}


def values(outcome) -> dict[str, list]:
    return {s.name: list(s.values) for s in outcome.series}


def test_strides_are_means_over_layers():
    columns = ("channel_first_us", "channel_last_us", "taps_inner_us", "explicit_us", "gemm_us")
    rows = [
        {"layer": layer, "n": 8, "stride": at, "outputs": outputs, "us": us, "cudnn_us": 3 * us}
        | dict.fromkeys(columns, 5.0)
        for layer, at, outputs, us in (
            ("a", 2, 100, 20.0),
            ("b", 2, 100, 80.0),
            ("a", 1, 400, 40.0),
            ("b", 1, 200, 20.0),
            ("3 channels, 7x7", 1, 1, 99.0),
        )
    ]
    outcome = find("stride").run(record(*rows))
    assert outcome.labels == ["8, 1", "8, 2"] and "means of 2 layers" in outcome.title
    found = values(outcome)
    assert found["convgen"] == [pytest.approx(1), pytest.approx(4)], "0.2 and 0.8 us an output for 0.1"
    assert found["cuDNN / convgen"] == [pytest.approx(3), pytest.approx(3)]
    assert found["GEMM alone"] == [pytest.approx(1), pytest.approx(8**0.5)]
    assert found["document (V100)"] == [1, 1.43] and [s.printed for s in outcome.series].count(True) == 1


def test_explicit_im2col_is_weighed_by_a_network_s_layers():
    us = {"us": 10.0, "explicit_us": 30.0, "lower_us": 18.0, "gemm_part_us": 12.0}
    rows = [us | {"spec": layer.spec("layer", 64), "n": 64} for layer in layers("alexnet")]
    outcome = find("explicit").run(record(*rows))
    assert outcome.labels == ["alexnet", "geometric mean"] and "batch 64" in outcome.title
    found = values(outcome)
    assert (found["lowering"], found["GEMM"]) == ([1.8, None], [1.2, None])
    assert found["explicit im2col"] == [3.0, pytest.approx(3.0)] and found["document (V100)"] == [None, 1.28]
    with pytest.raises(UsageError, match="no network whole"):
        find("explicit").run(record(*rows[:-1]))


def test_orders_are_compared_where_both_are():
    layer = {"n": 64, "us": 5.0, "cudnn_us": 9.0, "halo_us": 4.0}
    tma = {"tma_im2col_channels_inner_us": 6.0, "tma_im2col_taps_inner_us": 5.0}
    mma = {"implicit_gemm_channel_first_us": 9.0, "implicit_gemm_taps_inner_us": 10.0}
    rows = [
        layer | tma | mma | {"layer": "both", "spec": Layer(64, 9, 8, 3, 1, 1).spec("layer", 64)},
        layer | tma | {"layer": "one", "spec": Layer(128, 9, 8, 3, 1, 1).spec("layer", 64)},
        layer | tma | mma | {"layer": "odd", "spec": Layer(96, 9, 8, 3, 1, 1).spec("layer", 64)},
    ]
    outcome = find("reuse").run(record(*rows))
    assert outcome.labels == ["both", "one", "geometric mean"]
    assert values(outcome) == {
        "tma_im2col, taps inside": [1.2, 1.2, pytest.approx(1.2)],
        "mma_gemm, taps inside": [0.9, None, pytest.approx(0.9)],
        "tma_halo": [1.5, 1.5, pytest.approx(1.5)],
        "document (V100)": [None, None, 1.167],
    }


def test_taps_at_once():
    common = {"c": 8, "r": 3, "n": 8, "macs": 1_000_000}
    rows = [
        common | {"taps": 3, "part": "stage", "taps_us": 2.0, "shared_bytes": 2048},
        common | {"taps": 3, "part": "strategy", "us": 1.0, "one_us": 4.0},
    ]
    assert values(find("multi-tile").run(record(*rows))) == {"shared memory, KiB": [2.0], "TFLOPS": [1.0]}
    few = values(find("channels").run(record(*rows)))
    assert list(few.values()) == [[0.5], [None], [2.0]]


def test_forms_and_lenet_s_layers():
    forms = {"loop_free_us": 4.0, "taps_us": 2.0, "pixel_us": 8.0}
    rows = [{"layer": "a layer", "op": "im2col", "n": 8, "bytes": 8000} | forms]
    found = values(find("forms").run(record(*rows, copy_gb_per_s=4)))
    assert found["two loops (Caffe), GB/s"] == [4.0] and found["two loops (Caffe), percent of a copy"] == [100.0]
    for name, op in (("conv1", "fprop"), ("conv1", "wgrad"), ("conv2", "fprop"), ("conv2", "wgrad")):
        rows.append({"layer": name, "op": op, "n": 8, "us": 1.0, "cudnn_planes_us": 3.0} | forms)
    with pytest.raises(UsageError, match="lack layers"):
        find("lenet-layers").run(record(*rows))
    rows.append({"layer": "conv2", "op": "dgrad", "n": 8, "us": 1.5, "cudnn_planes_us": 2.0, "col2im_us": 7.0})
    found = values(find("lenet-layers").run(record(*rows)))
    assert found["loop-free (Zhang), us"] == [4.0, 4.0, 4.0, 11.0] and found["convgen, us"] == [1.0, 1.0, 1.0, 2.5]
    assert found["Zhang on a K80, us"] == [4630.0, 10260.0, 9540.0, 10940.0]
    with pytest.raises(UsageError, match="no im2col alone"):
        find("forms").run(record(*rows[1:], copy_gb_per_s=4))


def test_steps_of_lenet_and_strategies_beside_a_loop():
    rows = [{"batch": 32, "auto_per_s": 300.0, "im2col_per_s": 150.0, "torch_per_s": 600.0}]
    outcome = find("lenet").run(record(*rows))
    assert values(outcome)["Zhang on a K80"] == [100.1] and "2.00 times" in outcome.notes[0]
    us = {"direct_us": 100.0, "im2col_us": 20.0, "implicit_gemm_us": 10.0, "winograd_us": 5.0, "cudnn_planes_us": 4.0}
    found = values(find("naive").run(record({"layer": "a layer", "n": 32, "us": 5.0} | us)))
    assert [v[0] for v in found.values()] == [100.0, 5.0, 10.0, 20.0, 25.0, 5.0, 20.0]


def test_results_that_are_none(tmp_path, capsys):
    (tmp_path / "r.json").write_text('{"rows": [{"us": 3}], "gpu": "a GPU", "commit": "0"}')
    for arguments, message in (
        (["networks"], "--from names their file"),
        (["networks", "--from", f"{tmp_path}/r.json"], "is not a result file of `convgen bench --out`"),
        (["networks", "--from", __file__], "is not a result file of `convgen bench --out`"),
        (["stride", "--from", f"{tmp_path}/r.json"], "is not a result file of `benchmarks/documents.py stride --json`"),
        (["memory", "--from", f"{tmp_path}/r.json"], "--from does not go with memory"),
    ):
        assert main(["reproduce", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_mistakes(tmp_path, capsys):
    assert main(["reproduce"]) == 2
    assert "`convgen reproduce --list` lists them" in capsys.readouterr().err
    assert main(["reproduce", "memmory"]) == 2
    assert "did you mean `memory`?" in capsys.readouterr().err
    assert main(["reproduce", "memory", "--plot", f"{tmp_path}/m.gif"]) == 2
    assert not list(tmp_path.iterdir())
    assert main(["reproduce", "--list"]) == 0
    assert "memory" in capsys.readouterr().out
