"""Unit scaling (Blake, Orr and Luschi, arXiv 2303.11257): numbers of size 1 at the start, in the
state, in the weights and, but for what is said below, in their gradients.

    weights                  N(0, 1)
    a weight layer           y = W x / sqrt(fan in)
    in front of it           phi(x) / std of phi(z), z ~ N(0, 1), behind an activation
    h = h + F(h)             h = (h + tau F(h)) / sqrt(1 + tau^2)
    the head                 y = W x / fan in

What goes back through a layer is the gradient of what went forward: the constraint to the output's
scale, which the authors' library has in every layer but the head. A backward factor of its own
changes the size of a weight's gradient alone, which Adam does not see; none is put in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from depthgauge.errors import NetworkError
from depthgauge.recipes.branches import refuse_plain
from depthgauge.recipes.given import number
from depthgauge.recipes.layers import TORCH
from depthgauge.recipes.nfnet import gains
from depthgauge.recipes.rules import Around, Form, Plan, Recipe, Rule, Target, scope_of
from depthgauge.trace.counted import Layout, Residual, Weight

__all__ = ["UNIT_SCALING", "unit_plan", "unit_scaling"]

#: Of a branch by its place from 0: the skip's number and the branch's, and then what is met in
#: place of them, each (skip, branch, words).
Weighed = Callable[[int], Sequence[tuple[str, str, str]]]


def _refuse(layout: Layout, title: str) -> None:
    """Raises NetworkError for what the rule has no number for."""
    refuse_plain(layout, title)
    for branch in layout.branches:
        if branch.attends:
            raise NetworkError(
                f"the branch '{branch.path}' has attention, and no fixed number keeps the size of "
                f"what {title} makes of it: one for T independent tokens, sqrt(T), is right in the "
                f"first attention alone, which leaves the tokens a part that they share; give "
                f"linear layers and convolutions"
            )
        if len(branch.weights) != branch.m or not branch.weights:
            raise NetworkError(
                f"the branch '{branch.path}' has layers beside each other, a gate, and {title} "
                f"here has numbers for layers in a row; give one without a gate"
            )
        if uncounted := [w.path for w in branch.weights if not w.fan_in]:
            raise NetworkError(
                f"the inputs of the layer of '{uncounted[0]}' could not be counted, and {title} "
                f"divides what it makes by their root; give each layer a weight of its own"
            )
        if branch.projected:
            raise NetworkError(
                f"the skip beside '{branch.path}' has weights of its own, and {title} here weighs "
                f"a skip as it is; give a network of one width"
            )


def _fan(weight: Weight, width: float) -> str:
    """The fan in, as a multiple of the width where it is one."""
    times = weight.fan_in / width
    if times == 1:
        return "n"
    return f"({times:g}*n)" if times == int(times) else str(weight.fan_in)


def _front(weight: Weight) -> str:
    """One over the standard deviation of the activation in front."""
    if not weight.follows:
        return "1"
    if weight.follows == "relu":
        return "sqrt(2/(1-1/pi))"
    return f"{gains(weight.follows, weight.bend)[0]:.12g}"


def _around(weight: Weight, last: bool, scope: Mapping[str, float]) -> Around:
    front, fan = _front(weight), _fan(weight, scope["n"])
    if last:
        mistakes = (("1", "the activation's number is missing"),) if weight.follows else ()
        return Around(weight, front, None, scope, mistakes)
    met = [("1", "the layer's number is missing"), (f"1/{fan}", "fan in, where its root is asked")]
    if weight.fan_out != weight.fan_in:
        met.append((f"({front})/sqrt({weight.fan_out})", "of the fan out"))
    if weight.follows:
        met.insert(0, (f"1/sqrt({fan})", "the activation's number is missing"))
        other = f"{gains(weight.follows, weight.bend)[1]:.12g}"
        words = "the activation's root mean square, where its standard deviation is asked"
        met.append((f"{other}/sqrt({fan})", words))
    return Around(weight, front, f"1/sqrt({fan})", scope, tuple(met))


def unit_plan(layout: Layout, title: str, weighed: Weighed) -> Plan:
    """The plan with these numbers for skips and branches. Raises NetworkError."""
    _refuse(layout, title)
    rows = list(_rows(layout))
    targets = [_target(row.weight, row.scope) for row in rows]
    scope = scope_of(layout, layout.branches[-1])
    heads = [w for w in layout.heads if w.fan_in]
    looked = [w for w in layout.outside if w.looked_up or w.path in layout.tables]
    own = [w for w in heads if w.path not in {x.path for x in looked}]
    targets += [_target(w, scope) for w in (*own, *looked)]
    fans = {w.fan_in for w in heads}
    if len(fans) > 1:
        raise NetworkError(
            f"heads take {', '.join(map(str, sorted(fans)))} numbers, and {title} here has one "
            f"number for all of them; give a network with one head"
        )
    outlet = f"1/{_fan(heads[0], scope['n'])}" if heads else None
    forms = tuple(
        _form(branch, weighed(k), scope_of(layout, branch))
        for k, branch in enumerate(layout.branches)
    )
    biases = tuple(Target(b, "zeros", scope) for b in layout.biases)
    rules = (
        Rule("weights", "normal of standard deviation 1", tuple(targets)),
        Rule("biases", "zero", biases),
    )
    return Plan(rules, forms, outlet=outlet, around=tuple(rows))


def _rows(layout: Layout) -> Iterator[Around]:
    for branch in layout.branches:
        scope = scope_of(layout, branch)
        for weight in branch.weights:
            yield _around(weight, weight.last, scope)
    apart = {w.path for w in layout.heads} | set(layout.tables)
    scope = scope_of(layout, layout.branches[-1])
    for weight in layout.outside:
        if weight.fan_in and weight.path not in apart and not weight.looked_up:
            yield _around(weight, False, scope)


def _target(weight: Weight, scope: Mapping[str, float]) -> Target:
    words = "the layer's number is in its weight, where it is to stand behind the layer"
    mistakes = (
        TORCH,
        ("lecun", words),
        ("he", "He's initialisation"),
        ("normal(std=0.02)", "0.02 at every width"),
    )
    return Target(weight, "normal(std=1)", scope, mistakes)


def _form(
    branch: Residual, weighed: Sequence[tuple[str, str, str]], scope: Mapping[str, float]
) -> Form:
    fan = _fan(branch.weights[-1], scope["n"])
    (skip, factor, _), *others = weighed
    return Form(
        skip=skip,
        factor=f"{factor}/sqrt({fan})",
        learned="",
        mistakes=(
            *((a, f"{b}/sqrt({fan})", words) for a, b, words in others),
            ("1", f"1/sqrt({fan})", "the sum is not weighed"),
            (skip, factor, "the last layer's number is missing"),
            ("1", "1", "neither the sum is weighed, nor has the last layer its number"),
        ),
    )


def unit_scaling(tau: float = 1.0) -> Recipe:
    """Unit scaling whose branches weigh ``tau`` times their skips."""
    tau = number("tau", tau)
    skip = f"1/sqrt(1+{tau:g}**2)" if tau != 1 else "1/sqrt(2)"
    factor = f"{tau:g}/sqrt(1+{tau:g}**2)" if tau != 1 else "1/sqrt(2)"

    def plan(layout: Layout) -> Plan:
        return unit_plan(layout, "unit scaling", lambda _: ((skip, factor, ""),))

    return Recipe(
        "unit-scaling",
        "unit scaling",
        "residual branches of one width, of linear layers or convolutions in a row",
        (
            "every weight, and every embedding: normal of standard deviation 1; biases zero",
            "what a layer makes is multiplied by 1/sqrt(fan in), of the head by 1/fan in",
            "what an activation gives is divided by its standard deviation on normal numbers",
            f"h = (h + tau F(h)) / sqrt(1 + tau^2), tau = {tau:g}",
        ),
        (
            "the numbers stand in the forward pass: a checkpoint of weights alone lacks them",
            "the rate is that of weights of size 1; one that fits 1/sqrt(fan in) is too small",
            "the standard deviation leaves an activation's mean in: behind ReLU the next layer's "
            "output is 1.21 times as large, and a state without a norm grows by 11 per cent a "
            "branch of equal weight; odd activations have no mean",
            f"the state that entered counts for {(1 + tau * tau) ** -0.5:.3g} to the power of the "
            f"number of branches: 'u-mup' gives each branch its share",
            "plain gradient descent sees the size of gradients: backward factors of their own "
            "would make it another training, Adam not",
        ),
        "Blake, Orr and Luschi, arXiv 2303.11257; graphcore-research/unit-scaling",
        plan,
        tier=3,
        judgement="the constraint to the output's scale everywhere, so that no backward pass has "
        "factors of its own: not 1/sqrt(fan out) for what enters a layer, not 1/sqrt(batch) for "
        "its weight, nor a tau that waits until the branch's input; activations by quadrature, "
        "where the library has a fit; attention, for which no fixed number is right in every "
        "layer, gates and projected skips are refused",
    )


UNIT_SCALING = unit_scaling()
