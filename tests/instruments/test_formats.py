"""Number formats against lists of every number that they have."""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch

from depthgauge.errors import SpecificationError
from depthgauge.instruments.formats import (
    FORMATS,
    cast,
    format_named,
    headroom_bits,
    lost_updates,
    relative_distance,
    scaling_room,
    shares,
    ulp,
    underflow_bits,
)

#: Formats of at most 16 bits, whose numbers can all be written down: (exponent bits, bias, last
#: exponent is a number's).
SMALL = {
    "float8_e4m3": (4, 7, True),
    "float8_e5m2": (5, 15, False),
    "float16": (5, 15, False),
    "bfloat16": (8, 127, False),
}


def every(name: str) -> list[float]:
    """All numbers of the format from 0 up, from the definition: (1 + m/2^p) 2^(e - bias)."""
    bits, bias, full = SMALL[name]
    p = FORMATS[name].mantissa
    found = [m / 2**p * 2.0 ** (1 - bias) for m in range(2**p)]
    for e in range(1, 2**bits - (not full)):
        found += [(1 + m / 2**p) * 2.0 ** (e - bias) for m in range(2**p)]
    return found[:-1] if full else found  # the last code of e4m3 is NaN


def nearest(x: Fraction, numbers: list[float], saturates: bool) -> float:
    """The number nearest to ``x >= 0``, of two the even one: those at even places are."""
    step = Fraction(numbers[-1]) - Fraction(numbers[-2])
    if x >= Fraction(numbers[-1]) + step / 2:
        return numbers[-1] if saturates else math.inf
    above = bisect_left(numbers, x)
    if above in (0, len(numbers)) or numbers[above] == x:
        return numbers[min(above, len(numbers) - 1)]
    low, high = x - Fraction(numbers[above - 1]), Fraction(numbers[above]) - x
    if low == high:
        return numbers[above] if above % 2 == 0 else numbers[above - 1]
    return numbers[above - 1] if low < high else numbers[above]


@pytest.mark.parametrize("name", FORMATS)
def test_the_table_is_that_of_the_types(name: str) -> None:
    made = FORMATS[name]
    if made.dtype is None:  # tf32: the exponents of float32, the mantissa of float16
        assert made.mantissa == FORMATS["float16"].mantissa
        assert made.lowest == FORMATS["float32"].lowest
        return
    info = torch.finfo(made.dtype)
    assert (made.largest, made.smallest_normal) == (info.max, info.tiny)
    assert made.smallest_subnormal == info.tiny * info.eps
    assert made.highest == math.frexp(made.largest)[1] - 1


@pytest.mark.parametrize("name", SMALL)
def test_every_code_of_a_small_type_is_a_number_of_the_list(name: str) -> None:
    dtype = FORMATS[name].dtype
    assert dtype is not None
    byte = "float8" in name
    codes = torch.arange(2**8).to(torch.uint8) if byte else torch.arange(-(2**15), 2**15).short()
    values = codes.view(dtype).double()
    finite = values[values.isfinite()].abs().unique()
    assert finite.tolist() == every(name)
    assert torch.equal(cast(values, name).nan_to_num(-7), values.nan_to_num(-7))


@pytest.mark.parametrize("name", SMALL)
def test_ulp_is_the_gap_to_the_next_number(name: str) -> None:
    numbers = np.array(every(name))
    gaps = np.diff(numbers)
    found = ulp(torch.from_numpy(-numbers), name).numpy()
    assert found[:-1].tolist() == gaps.tolist()
    assert found[-1] == gaps[-1]
    assert ulp(torch.tensor([math.inf, math.nan]), name).isnan().all()
    assert not (found[1:] == gaps).all()  # at powers of two the gap towards 0 is another


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_cast_finds_the_nearest_number(name: str, sign: float) -> None:
    numbers = every(name)
    at = np.array(numbers if len(numbers) < 1000 else numbers[:: len(numbers) // 1500])
    where = np.searchsorted(numbers, at)
    where = where[where < len(numbers) - 1]
    middles = [(numbers[i] + numbers[i + 1]) / 2 for i in where]
    drawn = np.random.default_rng(0).uniform(0, 1, 200) ** 8 * numbers[-1]
    edge = numbers[-1] + (numbers[-1] - numbers[-2]) / 2
    given = [*at, *middles, *drawn, edge, numbers[-1] * 1.01, numbers[-1] * 3]
    given += [np.nextafter(x, 0) for x in [*middles, edge]]
    given += [np.nextafter(x, math.inf) for x in [*middles, edge]]
    wanted = [sign * nearest(Fraction(x), numbers, FORMATS[name].saturates) for x in given]
    x = sign * torch.tensor(given, dtype=torch.float64)
    assert cast(x, name).tolist() == wanted
    halves = x.float()  # every number of these formats and every middle is one of float32
    wanted = [sign * nearest(Fraction(abs(v)), numbers, FORMATS[name].saturates) for v in
              halves.tolist() if math.isfinite(v)]  # fmt: skip
    assert cast(halves[halves.isfinite()], name).tolist() == wanted


def test_the_two_float8_differ_beyond_their_ends() -> None:
    x = torch.tensor([500.0, 1e6, -1e6, math.inf, math.nan])
    assert cast(x, "float8_e4m3").tolist()[:4] == [448.0, 448.0, -448.0, 448.0]
    assert cast(x, "float8_e5m2").tolist()[1:4] == [math.inf, -math.inf, math.inf]
    assert cast(x, "float8_e4m3")[4].isnan()
    for dtype in (torch.float32, torch.float64):
        assert cast(x.to(dtype), "float8_e4m3")[3] == 448


def test_a_cast_is_in_float32_or_wider() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert cast(torch.ones(2, dtype=dtype), "float8_e5m2").dtype == torch.float32
    assert cast(torch.ones(2, dtype=torch.float64), "float16").dtype == torch.float64
    assert cast(torch.tensor([1 + 2.0**-11]), "tf32").item() == 1.0
    assert cast(torch.tensor([1 + 2.0**-10]), "tf32").item() == 1 + 2.0**-10


@pytest.mark.parametrize("name", FORMATS)
def test_headroom_is_a_logarithm(name: str) -> None:
    made = FORMATS[name]
    for top in (1e-300, 2.0**-30, 0.7, 65504.0, 65505.0, 1e5, 3e38, 1e300):
        with mpmath.workprec(300):
            over = float(mpmath.log(mpmath.mpf(made.largest) / mpmath.mpf(top), 2))
            under = float(mpmath.log(mpmath.mpf(top) / mpmath.mpf(made.smallest_normal), 2))
        assert headroom_bits(top, name) == pytest.approx(over, rel=1e-12, abs=1e-12)
        assert underflow_bits(top, made) == pytest.approx(under, rel=1e-12, abs=1e-12)
        below = underflow_bits(top, made, subnormal=True)
        assert below == pytest.approx(under + made.mantissa, rel=1e-12, abs=1e-12)
    assert headroom_bits(0, name) == math.inf
    assert headroom_bits(math.inf, name) == -math.inf
    assert math.isnan(headroom_bits(math.nan, name))
    assert math.isnan(underflow_bits(math.nan, name))


def test_headroom_changes_its_sign_at_the_largest_number() -> None:
    assert headroom_bits(65504, "float16") == 0
    assert headroom_bits(65505, "float16") < 0 < headroom_bits(65503, "float16")
    assert headroom_bits(131008, "float16") == -1
    assert headroom_bits(1e5, "bfloat16") > 100


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3", "float8_e5m2"])
def test_shares_are_counted(name: str) -> None:
    made = FORMATS[name]
    generator = np.random.default_rng(1)
    x = generator.standard_normal(4000) * 2.0 ** generator.uniform(-140, 130, 4000)
    x[::97], x[1::97], x[2::97] = 0.0, math.inf, math.nan
    found = shares(torch.from_numpy(x), name)
    magnitude = np.abs(x[np.isfinite(x) & (x != 0)])
    rounded = np.abs(cast(torch.from_numpy(magnitude), name).numpy())
    assert found.values == len(magnitude)
    assert found.flushed == np.mean(rounded == 0)
    assert found.over == np.mean(magnitude > made.largest)
    assert found.near == np.mean(
        (magnitude >= 2.0 ** (made.highest - 1)) & (magnitude <= made.largest)
    )
    assert found.subnormal == pytest.approx(
        np.mean((magnitude < made.smallest_normal) & (rounded > 0))
    )
    assert found.nonfinite == pytest.approx(np.mean(~np.isfinite(x)))
    assert 0 < found.flushed < 1
    assert 0 < found.over < 1


def test_shares_of_nothing() -> None:
    assert shares(torch.zeros(3), "float16") == (0, 0, 0, 0, 0, 0)
    lost = shares(torch.tensor([math.nan, 0]), "float16")
    assert math.isnan(lost.near)
    assert lost.nonfinite == 0.5
    assert shares(torch.zeros(0), "float16").values == 0


@pytest.mark.parametrize("name", ["float8_e4m3", "float8_e5m2", "bfloat16"])
def test_a_lost_update_leaves_its_weight(name: str) -> None:
    """Every pair of a weight and an update, added exactly and rounded by the list."""
    numbers = every(name)
    weights = [w for w in numbers if 2**-3 <= w <= 4]
    weights += [-w for w in weights]
    updates = [s * 2.0**-k * f for k in range(12) for s in (1, -1) for f in (1, 1.25, 1 + 2**-20)]
    for w in weights[:: max(1, len(weights) // 60)]:
        for u in updates:
            total = Fraction(w) + Fraction(u)
            near = nearest(abs(total), numbers, FORMATS[name].saturates)
            after = math.copysign(near, total) if total else 0.0
            found = lost_updates(torch.tensor([w]), torch.tensor([u], dtype=torch.float64), name)
            assert found == float(after == w), (w, u)


def test_the_gain_of_a_norm_in_bfloat16() -> None:
    one = torch.ones(1)

    def lost(u: float, name: str = "bfloat16") -> bool:
        return lost_updates(one, torch.tensor([u]), name) == 1

    assert lost(1e-3)
    assert lost(-1e-3)
    assert lost(2.0**-8)  # half of the gap of 2^-7: a tie, and 1 is even
    assert lost(-(2.0**-9))
    assert not lost(2.0**-8 * 1.01)
    assert not lost(-(2.0**-9) * 1.01)
    assert not lost(1e-3, "float32")


def test_lost_updates_of_nothing_and_of_nan() -> None:
    w = torch.ones(3)
    assert lost_updates(w, torch.zeros(3), "bfloat16") == 0
    assert lost_updates(w, torch.tensor([1e-4, 0, 1.0]), "bfloat16") == 0.5
    assert math.isnan(lost_updates(w, torch.full((3,), math.nan), "bfloat16"))


def test_relative_distance() -> None:
    generator = np.random.default_rng(2)
    a, b = generator.standard_normal((2, 5, 7))
    wanted = np.linalg.norm(a - b) / np.linalg.norm(b)
    for scale in (1.0, 1e300, 1e-300):
        found = relative_distance(torch.from_numpy(a * scale), torch.from_numpy(b * scale))
        assert found == pytest.approx(wanted, rel=1e-12)
    assert relative_distance(torch.zeros(2), torch.zeros(2)) == 0
    assert relative_distance(torch.ones(2), torch.zeros(2)) == math.inf
    assert relative_distance(torch.tensor([math.inf]), torch.ones(1)) == math.inf
    assert math.isnan(relative_distance(torch.tensor([math.nan]), torch.ones(1)))
    assert math.isnan(relative_distance(torch.ones(1), torch.tensor([math.inf])))


def test_a_cast_is_off_by_less_than_half_a_unit() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for name in ("float32", "bfloat16", "float16", "float8_e4m3", "float8_e5m2", "tf32"):
        unit = 2.0 ** -(FORMATS[name].mantissa + 1)
        assert unit / 8 < relative_distance(cast(x, name), x) < unit
    assert torch.equal(cast(x, "float64"), x)


@pytest.mark.parametrize("name", ["float16", "float8_e5m2", "bfloat16"])
@pytest.mark.parametrize("size", [1.0, 1e-9, 1e6])
def test_scaling_room_is_what_scaling_does(name: str, size: float) -> None:
    generator = torch.Generator().manual_seed(3)
    draws = [torch.randn(n, generator=generator) for n in ((50, 8), (200,))]
    gradients = [size * g * torch.exp(2 * torch.randn(g.shape, generator=generator)) for g in draws]
    flat = torch.cat([g.flatten() for g in gradients]).double()
    room = scaling_room(gradients, name)
    assert room.bits is not None
    assert cast(flat * 2.0**room.bits, name).isfinite().all()
    assert (flat * 2.0 ** (room.bits + 1)).abs().max() > FORMATS[name].largest
    assert room.before == (cast(flat, name) == 0).double().mean().item()
    scaled = cast(flat * 2.0**room.bits, name)
    assert room.flushed == (scaled == 0).double().mean().item()
    normal = FORMATS[name].smallest_normal
    assert room.under == ((flat * 2.0**room.bits).abs() < normal).double().mean().item()
    if size < 1 and name != "bfloat16":
        assert room.before > 0.5 > room.flushed


def test_scaling_of_what_has_no_scale() -> None:
    assert scaling_room([torch.zeros(3)], "float16") == (None, 0, 0, 0)
    assert scaling_room([], "float16") == (None, 0, 0, 0)
    lost = scaling_room([torch.tensor([math.inf, 1.0])], "float16")
    assert lost.bits is None
    assert math.isnan(lost.flushed)


def test_a_name_that_is_none() -> None:
    with pytest.raises(SpecificationError, match=r"expected one of float64.*'bfloat16'"):
        format_named("bfloat61")
