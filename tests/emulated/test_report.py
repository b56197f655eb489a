"""`convgen explain --html`: one page, whole, offline, readable on any screen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browser import browser
from test_trace import SPEC

from convgen import driver
from convgen.cli import main
from convgen.report import page as report
from convgen.report import pictures

GOLDENS = Path(__file__).parents[2] / "specs" / "golden"
#: Contrast of text that people can read (WCAG 2.2, success criterion 1.4.3).
_CONTRAST = 4.5
_MEASURE = """(() => {
  const luminance = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => v / 255).map(
    v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const paper = luminance(getComputedStyle(document.body).backgroundColor);
  const contrast = (e, property) => { const ink = luminance(getComputedStyle(e)[property]);
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05); };
  const all = selector => [...document.querySelectorAll(selector)];
  const least = (selector, property) => Math.min(...all(selector).map(e => contrast(e, property)));
  return {
    paper, overflow: document.documentElement.scrollWidth - innerWidth,
    text: least("p,td,th,a,h1,h2,code", "color"), drawn: least("svg text", "fill"),
    size: Math.min(...all("p,td,th,a,code,svg text").map(e => parseFloat(getComputedStyle(e).fontSize))),
    missing: all("a[href^='#']").filter(a => !document.getElementById(a.hash.slice(1))).length,
    headings: all("h2").map(e => e.textContent),
  };
})()"""


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    (folder / "layer.conv").write_text(SPEC)
    assert main(["explain", str(folder / "layer.conv"), "--html", str(folder / "layer.html")]) == 0
    return folder / "layer.html"


def test_the_page_needs_nothing_else(path):
    text = path.read_text()
    assert not re.findall(r"""(?:src|href)=["'](?!#|data:)""", text) and "@import" not in text and "url(" not in text
    assert set(re.findall(r"https?://[^\"'\s]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_a_browser_shows_it_on_a_phone_and_a_desktop_light_and_dark(path, tmp_path):
    with browser(tmp_path) as chromium:
        for width in (360, 1280):
            for scheme in ("light", "dark"):
                chromium.open(path, width, scheme)
                found = chromium.value(_MEASURE)
                assert found["paper"] > 0.9 if scheme == "light" else found["paper"] < 0.1
                assert found["overflow"] <= 0, width
                assert min(found["text"], found["drawn"]) >= _CONTRAST, (scheme, found)
                assert found["size"] >= 11 and found["missing"] == 0
                assert found["headings"] == [
                    "Geometry", "Index formulas", "Tiles", "Shared memory", "Timeline", "Time", "Strategies",
                    "Tensor maps", "Source",
                ]  # fmt: skip
        assert chromium.said == []


def test_the_page_has_the_source_and_its_sections(path):
    (compilation,) = driver.choose_all(driver.Spec(SPEC))
    text = path.read_text()
    assert text.count('id="traced-line-') == len(compilation.source.splitlines())
    assert re.search(r'href="#traced-line-\d+">kernel</a>', text)


def test_shared_memory_adds_up_to_what_the_launch_takes():
    (compilation,) = driver.choose_all(driver.Spec(SPEC))
    rows = pictures.shared_rows(compilation.plan)
    assert sum(size for name, size in rows.items() if name.startswith(("A", "B"))) == 3 * 2 * 64 * 64 * 2
    (launch,) = compilation.plan.launches
    assert launch.shared_bytes - sum(rows.values()) == 1024


def whole(svg: str) -> bool:
    """Whether a picture cuts off none of its rectangles."""
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
    areas = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', svg)
    return all(float(x) + float(w) <= width and float(y) + float(h) <= height for x, y, w, h in areas)


@pytest.mark.parametrize("suite", ["resnet50", "transposed", "strided", "depthwise"])
def test_a_convolution_s_geometry_is_whole(suite):
    for compilation in driver.load(driver.Spec((GOLDENS.parent / f"{suite}.conv").read_text(encoding="utf-8"))):
        assert whole(pictures.geometry(compilation.request.problem))


LARGE = """conv a {{
  input x: f16[n=64, h={0}, w={0}, c=64]  filter w: f16[k={1}, r={0}, s={0}, c=64]  output y: f16[n, p, q, k]
  strategy implicit_gemm {{ tile m=64 n=64 k=64 }}  target sm_90a
}}"""


@pytest.mark.parametrize(("taps", "channels"), [(1000, 64), (1, 2**20), (1, 2**20 - 8)])
def test_pictures_of_large_layers_are_small(taps, channels):
    """Many taps, or tiles, share a rectangle."""
    (compilation,) = driver.choose_all(driver.Spec(LARGE.format(taps, channels)))
    for picture in (pictures.geometry(compilation.request.problem), pictures.tiles(compilation.plan)):
        assert whole(picture) and len(picture) < 1_000_000


def test_long_times_are_milliseconds():
    shown = pictures.times({"direct": 2162.4, "im2col": 999.6}, 34.21)
    assert all(f">{time}<" in shown for time in ("2.16 ms", "1 ms", "roofline 34.2 us"))


@pytest.mark.parametrize(
    "golden",
    ["col2im_gather", "depthwise_bands", "direct_wgrad", "implicit_gemm_first_layer_wgmma", "implicit_gemm_grouped",
     "im2col_gemm", "tma_halo_fold", "tma_im2col_1d", "tma_im2col_3d_dilated"],
)  # fmt: skip
def test_every_kind_of_kernel_has_a_page(golden, monkeypatch):
    monkeypatch.setattr(report, "_MOST_MACS", -1)  # no timeline
    spec = driver.Spec((GOLDENS / f"{golden}.conv").read_text(encoding="utf-8"))
    (compilation,) = driver.choose_all(spec)
    text = report.page([compilation])
    assert all(whole(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert "Geometry of" in text and "too large to be emulated" in text
    assert ("Tiles of" in text) == ("tile.m" in compilation.plan.options)


def test_a_page_of_several_links_to_each():
    spec = SPEC.replace("pad 1", "pad 1  op fprop dgrad")
    text = report.page(driver.choose_all(driver.Spec(spec.split("strategy")[0] + "strategy direct target sm_80 }")))
    assert '<a href="#traced_fprop">' in text and 'id="traced_dgrad-line-1"' in text


def test_convolutions_of_one_name_have_anchors_of_their_own():
    """A page may be of several specs, each with its layer `traced`."""
    spec = driver.Spec(SPEC.split("strategy")[0] + "strategy direct target sm_80 }")
    text = report.page([*driver.choose_all(spec), *driver.choose_all(spec)])
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(ids) == len(set(ids)) and set(re.findall(r'href="#([^"]*)"', text)) <= set(ids)
