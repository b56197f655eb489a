"""Text of epilogues and stores: which operands wait in registers, and that every offset is the definition's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import make, operands
from strategy_problems import epilogues
from tma_specs import compilation, im2col_problems, laid_out, spec, typed

from convgen.ir import epilogue as ep
from convgen.ir.problem import ConvProblem
from convgen.ir.tensor import Tensor
from convgen.kernels.parts import fragments

LAYER = make("fprop", 2, 64, 64, (14, 14), (3, 3), pad=1)
ODD = make("fprop", 2, 64, 63, (14, 14), (3, 3), pad=1)


def with_epilogue(problem: ConvProblem, text: str) -> ConvProblem:
    return compilation(spec(problem, "direct", {}, text)).plan.problem


def evaluated(offset: str, names: Mapping[str, int]) -> int:
    """The value of an offset's C text: integers that are not negative, so `/` and `%` round as Python's do."""
    assert re.fullmatch(r"[\w\s+*/%()]+", offset), offset
    return eval(offset.replace("(long long)", "").replace("/", "//"), {}, dict(names))


def place(tensor: Tensor, at: Mapping[str, int]) -> int:
    return sum(at[d] * s for d, s in zip(tensor.dims, tensor.strides, strict=True))


def output_point(problem: ConvProblem, gemm_m: int, gemm_n: int) -> dict[str, int]:
    n, *at = (int(i) for i in np.unravel_index(gemm_m, (problem.n, *problem.output)))
    return {"n": n, "k": gemm_n, **dict(zip(problem.spatial.output, at, strict=True))}


def loaded(text: str, name: str) -> list[str]:
    """Offsets at which C text reads an operand: by index, or by a load of a pair."""
    return re.findall(rf"operand_{name}\[([^\]]+)\]", text) + re.findall(rf"\(operand_{name} \+ \((.+)\), value_", text)


# ---- stores ------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(problem=im2col_problems(), data=st.data())
def test_a_store_goes_to_the_element_s_place_in_any_layout(problem: ConvProblem, data: st.DataObject) -> None:
    m, n = data.draw(st.integers(0, problem.output_pixels - 1)), data.draw(st.integers(0, problem.k - 1))
    offset = evaluated(fragments.store(problem).offset, {"gemm_m": m, "gemm_n": n, "GEMM_N": problem.k})
    assert offset == place(problem.y, output_point(problem, m, n))


def test_a_store_beyond_2_to_the_31_elements_counts_in_64_bits() -> None:
    for layout in ("npqk", "nkpq", "kqpn"):
        small = laid_out(make("fprop", 1023, 8, 2048, (32, 32), (1, 1)), y=layout)
        large = laid_out(make("fprop", 1025, 8, 2048, (32, 32), (1, 1)), y=layout)
        assert "long long" not in fragments.store(small).offset
        wide = fragments.store(large).offset
        assert "(long long)" in wide.partition("*")[0]  # of the product that leaves 32 bits
        last = {"gemm_m": large.output_pixels - 1, "gemm_n": 2047}
        assert evaluated(wide, last | {"GEMM_N": 2048}) == place(large.y, output_point(large, *last.values()))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_a_store_rounds_to_the_type_of_y(dtype: str) -> None:
    convert = fragments.store(typed(LAYER, y=dtype)).convert.format("v")
    assert convert == ("v" if dtype == "f32" else f"cvt_{dtype}_f32(v)")


# ---- operands ----------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(problem=im2col_problems(), data=st.data())
def test_operands_are_read_where_their_dims_say(problem: ConvProblem, data: st.DataObject) -> None:
    """By the pair and by the element, whatever their dims and their order."""
    operand = data.draw(operands(problem.y, "e", ("f32", "f16", "bf16", "s8")))
    body = (ep.Assignment("y", ep.Binary("+", ep.Acc(), ep.OperandRef("e"))),)
    problem = replace(problem, epilogue=ep.Epilogue((operand,), body))
    m, n = data.draw(st.integers(0, problem.output_pixels - 1)), data.draw(st.integers(0, problem.k - 1))
    at = output_point(problem, m, n)
    pairs, elements = fragments.of_pairs(problem), fragments.of_elements(problem)
    assert pairs and elements
    if operand.dims == ("k",):
        assert [c.name for c in pairs.channels] == [c.name for c in elements.channels] == ["e"]
        assert not pairs.loads and not pairs.pointers and not elements.loads and not elements.pointers
        return
    assert not pairs.channels and not elements.channels
    (element,) = loaded("\n".join(elements.loads), "e")
    names = {"gemm_m": m, "gemm_n": n, "GEMM_N": problem.k}
    assert evaluated(element, at | names) == place(operand, at)
    first, *second = loaded("\n".join(pairs.loads), "e")
    assert evaluated(first, names) == place(operand, at)
    for neighbor in second:
        assert evaluated(neighbor, names) == place(operand, {**at, "k": n + 1})
    assert len(second) == 1 or "load_pair" in pairs.loads[-1] or "k" not in operand.dims


def test_neighbors_are_one_load_where_it_is_aligned() -> None:
    for dtype, element in (("f32", "float"), ("f16", "f16"), ("bf16", "bf16")):
        problem = with_epilogue(LAYER, f"operand b: {dtype}[k]  operand e: {dtype}[n, k]  y = acc * b + e")
        found = fragments.of_pairs(problem)
        assert found
        assert found.channels[0].load.startswith(f"load_pair_{dtype}(operand_b")
        assert found.loads[-1].startswith(f"load_pair_{dtype}(operand_e")
        assert found.pointers == ((f"const {element}*", "operand_e"),)


def test_the_last_channel_of_an_odd_number_has_no_neighbor() -> None:
    found = fragments.of_pairs(with_epilogue(ODD, "operand b: f32[k]  operand e: f32[n, k]  y = acc * b + e"))
    assert found
    assert "load_pair" not in "\n".join((*found.loads, found.channels[0].load))
    assert "gemm_n + 1 < GEMM_N ?" in "\n".join(found.loads)
    assert "min({n} + 1, {last})" in found.channels[0].load
    assert [fragments.last_pair(problem, "K") for problem in (LAYER, ODD)] == ["K - 2", "K - 1"]


# ---- epilogues ---------------------------------------------------------------------------------------


def test_no_epilogue_is_no_text() -> None:
    for problem in (LAYER, with_epilogue(LAYER, "y = acc")):
        assert fragments.of_pairs(problem) is None and fragments.of_elements(problem) is None


def test_locals_are_computed_once_and_in_order() -> None:
    problem = with_epilogue(LAYER, "operand b: f32[k]  t = acc + b  u = t * t  y = u - t")
    found = fragments.of_elements(problem)
    assert found
    assert found.body == (
        "const float local_t = v + value_b;",
        "const float local_u = local_t * local_t;",
    )
    assert found.value == "local_u - local_t"
    assert found.formula == ("t = acc + b", "u = t * t", "y = u - t")


@settings(max_examples=100, deadline=None)
@given(problem=im2col_problems(), data=st.data())
def test_what_the_result_does_not_use_is_neither_loaded_nor_computed(problem: ConvProblem, data: st.DataObject) -> None:
    """Also of an epilogue that no spec can say, since the language refuses what is not used."""
    problem = replace(problem, epilogue=data.draw(epilogues(problem.y)))
    assert problem.epilogue
    used = {e.name for e in problem.epilogue.body[-1].value.walk() if isinstance(e, ep.OperandRef | ep.LocalRef)}
    if "t" in used:
        used |= {e.name for e in problem.epilogue.body[0].value.walk() if isinstance(e, ep.OperandRef)}
    for found in (fragments.of_pairs(problem), fragments.of_elements(problem)):
        assert found
        pointers = {name for _, name in found.pointers}
        read = {c.name for c in found.channels} | {n.removeprefix("operand_") for n in pointers if "operand_" in n}
        assert read == used & {t.name for t in problem.operands}
        assert {n for n in pointers if "result_" in n} == {f"result_{t.name}" for t in problem.elementwise}
        assert bool(found.body) == ("t" in used)
