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
    assert outcome.labels == ["alexnet"] and "a GPU, batch 8, commit 0123456" in outcome.title
    ours, cudnn, ratio, covered = (s.values[0] for s in outcome.series)
    assert (ours, cudnn, ratio) == (pytest.approx(0.03), pytest.approx(0.06), 2)
    macs = {layer: layer.macs for layer in layers("alexnet")}
    assert covered == pytest.approx(100 * (macs[first] + macs[others[0]]) / sum(macs.values()))
    rows[0]["n"] = 64
    with pytest.raises(UsageError, match="not of one batch"):
        find("networks").run(record)


def test_strides_are_means_over_layers():
    rows = [
        {"layer": layer, "n": 8, "stride": at, "us": 10.0, "cudnn_us": us, "per_output": per, "cudnn_per_output": 3.0}
        for layer, at, us, per in (
            ("a", 2, 20.0, 2.0),
            ("b", 2, 80.0, 8.0),
            ("a", 1, 10.0, 1.0),
            ("3_channels", 1, 99.0, 9.0),
        )
    ]
    outcome = find("stride").run({"gpu": "a GPU", "commit": "0123456789", "rows": rows})
    assert outcome.labels == ["8, 1", "8, 2"] and "means of 2 layers" in outcome.title
    ours, cudnn, ratio = (list(s.values) for s in outcome.series)
    assert (ours, cudnn, ratio) == (pytest.approx([1, 4]), pytest.approx([3, 3]), pytest.approx([1, 4]))


def test_results_that_are_none(tmp_path, capsys):
    (tmp_path / "r.json").write_text('{"rows": [{"us": 3}], "gpu": "a GPU", "commit": "0"}')
    for arguments, message in (
        (["networks"], "--from names their file"),
        (["networks", "--from", f"{tmp_path}/r.json"], "is no result file of `convgen bench --out`"),
        (["networks", "--from", __file__], "is no result file of `convgen bench --out`"),
        (["stride", "--from", f"{tmp_path}/r.json"], "is no result file of `benchmarks/strides.py --json`"),
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
