"""Admin (Liu et al., "Understanding the Difficulty of Training Transformers", arXiv 2004.08249).

    x <- N(omega x + F(x))      omega: one learned number a channel, on the skip

The closed forms of the authors' admin-torch, with n residual branches in the stack:

    admin             omega = sqrt((n + 1) / ln(n + 1) - 1)    the output changes by O(log n)
    admin-constant    omega = sqrt(n)                          by O(1)

``admin_profile.py`` has the paper's own rule, a profile of the branches' variances on data.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from depthgauge.recipes.branches import refuse_plain
from depthgauge.recipes.rules import Form, Plan, Recipe, Rule, Target, scope_of
from depthgauge.trace.counted import Layout, Weight

__all__ = ["ADMIN", "ADMIN_CONSTANT", "OMEGA"]

#: By recipe, in branches n of the stack.
OMEGA: Final = {
    "admin": "sqrt(({n}+1)/log({n}+1)-1)",
    "admin-constant": "sqrt({n})",
}


def _admin(name: str, grows: str, law: str) -> Recipe:
    def plan(layout: Layout) -> Plan:
        refuse_plain(layout, "Admin")
        numbers = Counter(branch.stream for branch in layout.branches)
        forms, targets = [], []
        for branch in layout.branches:
            n = "L" if len(numbers) == 1 else str(numbers[branch.stream])
            text = OMEGA[name].format(n=n)
            others = [OMEGA[other].format(n=n) for other in OMEGA if other != name]
            mistakes = (
                ("constant(1)", "omega was never set"),
                *((f"constant({other})", "the other of the two closed forms") for other in others),
                (f"constant({OMEGA[name].format(n=f'({n}/2)')})", "n counts layers, not branches"),
            )
            forms.append(
                Form(
                    skip="1",
                    factor="1",
                    learned="",
                    carried=f"gain({text})",
                    norms={"stream": ""},
                    misplaced=((("in",), "the norm stands in front of the branch"),),
                )
            )
            for path in branch.carriers:
                weight = Weight(path, (1,), 0, 0, False, False)
                scope = scope_of(layout, branch)
                targets.append(Target(weight, f"constant({text})", scope, mistakes))
        return Plan(
            (Rule("omegas", law, tuple(targets), vectors=True),), tuple(forms), final="none"
        )

    return Recipe(
        name,
        f"Admin, output change {grows}",
        "residual branches; in a module a learned number on each skip",
        (
            "x <- N(omega x + F(x)), omega one learned number a channel",
            f"{law} at the start, n residual branches of the stack",
            "weights as they are",
        ),
        (
            "n counts branches: 2N of an encoder, 3M of its decoder, each stack by itself",
            "omega stands on the skip, not on the branch",
            "omegas of a profile hold for the architecture that was profiled",
        ),
        "Liu et al., arXiv 2004.08249; microsoft/admin-torch",
        plan,
        tier=2,
        judgement="the closed form in the place of the paper's profile on data",
    )


ADMIN = _admin("admin", "O(log n)", "sqrt((n + 1) / ln(n + 1) - 1)")
ADMIN_CONSTANT = _admin("admin-constant", "O(1)", "sqrt(n)")
