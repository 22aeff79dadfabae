"""The fixup-goldilocks suite: Fixup's scale is right where ten times more or less is not.

``h = h + s W2(relu(W1(h + b1) + b2) + b3) + b4`` with learned numbers s (at 1) and b1 ... b4 (at
0), He's standard deviation for W1 times ``c L^(-1/(2m - 2))``, ``W2 = 0`` and a linear classifier
at zero (Zhang, Dauphin and Ma, arXiv 1901.09321; c = 1 is Fixup). What follows before any run:

- Step 1 moves the classifier alone, in which no c is left: the branches add nothing yet. At step 2
  the last weights, the stem and the b4 move, at step 3 everything.
- What one step of the branches' weights changes in the logits has the product of the m - 1 inner
  scales in it twice, once forward and once in the gradient: it goes as ``c^(2m - 2)``. Ten times
  too large is a hundred times the step; and a hundred times the curvature, against momentum's
  limit ``rate * curvature < 2 (1 + momentum)``: it has to diverge, or the rate has to fall.
- Where W1 is zero too, every gradient inside a branch has a zero in it: relu(0), W1 or W2. The
  weights stay zero for ever, and a linear classifier is what learns.
- He's weights at full scale triple the mean square of the state at every branch (the last layer
  gives out twice what it gets, no relu follows): the first step of the classifier is 3^L times
  Fixup's, that of the branches ``2 L 3^(L - 1)`` times, in the mean over infinite width.

What scalar biases and multipliers are worth at this size does not follow; it is measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from depthgauge.measurement import Progress
from depthgauge.network.spec import Network
from depthgauge.sites import FloatArray
from depthgauge.study.claims import Claim, SuiteResult, by_name
from depthgauge.study.scaling import t_quantile
from depthgauge.study.short_runs import Learner, Task, Trained, train

__all__ = ["run"]

DEPTH, WIDTH, LAYERS = 32, 32, 2
RATE, MOMENTUM, SCALARS = 0.1, 0.9, 0.1
SEEDS: Final = tuple(range(8))
TASK: Final = Task()
WATCHED = 3

COLUMNS: Final = {
    "branch_update": "RMS over examples and logits of what one gradient step of the branches' "
    "weights alone changes, per unit of rate and to first order, with a classifier N(0, 1/n); "
    "geometric mean over seeds, as are the next two",
    "branch_update_1": "the same in the run itself, before step 1; _2, _3 before the next ones",
    "change_1": "RMS of the change of the logits by all of step 1, over the rate; _2, _3",
    "moving": "how many tensors have a gradient that is not zero at steps 1, 2, 3; mean over seeds",
    "tensors": "how many there are",
    "largest_weight": "magnitude among the branches' weights after the run, over seeds",
    "loss": "of held-out examples after the run: mean over the seeds that are finite, two at least",
    "loss_sd": "its standard deviation over them; run_loss_sd",
    "losses": "of each seed",
    "run_loss": "loss of the batches, mean over all steps and over the seeds that are finite",
    "run_losses": "mean over all steps, of each seed",
    "diverged": "seeds with a loss that is not finite",
    "failed": "these, and those that end above chance, log(classes)",
    "above_fixup": "loss less Fixup's of the same seed, mean over seeds; where all are finite",
    "above_fixup_interval": "half of its 95 per cent interval, Student's t over seeds",
    "run_above_fixup": "the same of the mean loss of all batches; run_above_fixup_interval",
}


LEGEND: Final = {
    "": f"A row is a configuration, n = {len(SEEDS)} seeds; task, batches and weights of a seed "
    f"are the same in every row. A loss is a mean over the seeds that stay finite, with "
    f"the standard deviation over them behind +- (none, where fewer than two do); chance is "
    f"log({TASK.classes}) = {TASK.chance:.3f}.",
    "branch_update": "RMS change of the logits by one gradient step of the branches' weights "
    "alone, per unit of rate, with a classifier that is not zero; geometric mean",
    "change_1": "RMS change of the logits by the whole first step of the run, over its rate; "
    "geometric mean",
    "moving": "tensors with a gradient that is not zero at steps 1, 2 and 3; mean",
    "run_loss": "of the batches, mean of all steps of the run",
    "loss": "of held-out examples after the run",
    "failed": f"seeds of {len(SEEDS)} whose loss is not finite, or above chance at the end",
}


@dataclass(frozen=True)
class Configuration:
    """``c``: what the inner weights have beside Fixup's scale; None: He's, all of them."""

    name: str
    c: float | None = 1.0
    biases: bool = True
    multiplier: bool = True
    rate: float = RATE

    def network(self) -> Network:
        if self.c is None:
            inner = last = "he"
        else:
            power = f"L**(-1/(2*{LAYERS} - 2))"
            inner = f"he(gain=sqrt(2)*{self.c!r}*{power})" if self.c else "zeros"
            last = "zeros"
        words = {f"W{j}": inner for j in range(1, LAYERS)} | {f"W{LAYERS}": last}
        return Network(equation(LAYERS, self.biases, self.multiplier), DEPTH, WIDTH, init=words)


def equation(layers: int, biases: bool, multiplier: bool) -> str:
    """A branch of that many layers with Fixup's scalars, or without."""
    bias = " + scalar(0)" if biases else ""
    text = f"W1(h{bias})"
    for j in range(2, layers + 1):
        text = f"W{j}(relu({text}{bias}){bias})"
    return f"h + {'scalar(1)*' if multiplier else ''}{text}{bias}"


FIXUP, SMALL, LARGE = "fixup", "inner x 0.1", "inner x 10"
SLOWED, ZERO, HE = "inner x 10, rate / 100", "all branch weights zero", "he, no scaling"
NO_BIASES, NO_MULTIPLIERS = "no scalar biases", "no multipliers"

CONFIGURATIONS: tuple[Configuration, ...] = (
    Configuration(FIXUP),
    Configuration(SMALL, c=0.1),
    Configuration(LARGE, c=10.0),
    Configuration(SLOWED, c=10.0, rate=RATE / 100),
    Configuration(ZERO, c=0.0),
    Configuration(NO_BIASES, biases=False),
    Configuration(NO_MULTIPLIERS, multiplier=False),
    Configuration(HE, c=None),
)


def run(progress: Progress | None = None) -> SuiteResult:
    """Look at the first steps of every configuration, and train it for a short while."""
    found: list[dict[str, Any]] = []
    for done, configuration in enumerate(CONFIGURATIONS, 1):
        with np.errstate(all="ignore"):  # losses may be as large as floats are, and larger
            found.append(_row(configuration, found))
        if progress is not None:
            progress(done, len(CONFIGURATIONS))
    rows = by_name(found)
    return SuiteResult(
        suite="fixup-goldilocks",
        about=(
            f"Fixup on {DEPTH} residual branches against scales ten times too small and too "
            f"large, no scale, zeros, and without its scalars: the first steps and a short run."
        ),
        configurations=tuple(found),
        claims=(*_scale_claims(rows), *_gradient_claims(rows), *_run_claims(rows)),
        lessons=(_window(rows), _slower(rows), _rate(rows), _scalars(rows)),
        settings={
            "branches": DEPTH,
            "width": WIDTH,
            "layers": LAYERS,
            "seeds": len(SEEDS),
            "rate": RATE,
            "momentum": MOMENTUM,
            "rate_of_scalars": SCALARS * RATE,
            **vars(TASK),
            "columns": dict(COLUMNS),
        },
        legend=LEGEND,
    )


# ------------------------------------------------------------------------------ what is measured


def _row(configuration: Configuration, before: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    network, rate = configuration.network(), configuration.rate
    probe = Learner(network, SEEDS, TASK, drawn_classifier=True)
    learner = Learner(network, SEEDS, TASK)
    examples = TASK.drawn(probe.sources)
    first_batch = [x[:, : TASK.batch] for x in examples]
    row: dict[str, Any] = {
        "name": configuration.name,
        "equation": str(network.equation),
        "c": configuration.c,
        "rate": rate,
        "branch_update": _mean(probe.branch_update(*first_batch)),
        "tensors": len(learner.tensors),
    }
    trained = train(
        learner,
        examples,
        TASK,
        rate=rate,
        momentum=MOMENTUM,
        scalars=SCALARS,
        watched=WATCHED,
    )
    row |= _first_steps(trained)
    row["largest_weight"] = max(float(w.detach().abs().max()) for w in learner.weights.values())
    return row | _losses(trained, next((r for r in before if r["name"] == FIXUP), None))


def _first_steps(trained: Trained) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for place, step in enumerate(trained.first, 1):
        found[f"branch_update_{place}"] = _mean(step.branch_update)
        found[f"change_{place}"] = _mean(step.change)
        found[f"moving_{place}"] = float(step.moving.mean())
    moving = [f"{step.moving.mean():g}" for step in trained.first]
    return found | {"moving": ", ".join(moving)}


def _losses(trained: Trained, fixup: Mapping[str, Any] | None) -> dict[str, Any]:
    end, run = trained.end, trained.run.mean(0)
    finite = np.isfinite(end) & np.isfinite(run)
    found: dict[str, Any] = {
        "loss": None,
        "loss_sd": None,
        "run_loss": None,
        "run_loss_sd": None,
        "diverged": int((~finite).sum()),
        "failed": int((~finite | (end > TASK.chance)).sum()),
        "losses": end.tolist(),
        "run_losses": run.tolist(),
    }
    if not finite.any():
        found["loss_reason"] = "not finite"
    for key, each in (("loss", end[finite]), ("run_loss", run[finite])):
        if len(each) > 1:
            found |= {key: float(each.mean()), f"{key}_sd": float(each.std(ddof=1))}
    if fixup is None:
        return found
    return found | _above("", end, fixup["losses"]) | _above("run_", run, fixup["run_losses"])


def _above(key: str, losses: FloatArray, fixup: Sequence[float]) -> dict[str, float]:
    """How much higher than Fixup the seeds are, each against itself."""
    apart = losses - np.array(fixup)
    if not np.isfinite(apart).all():
        return {}
    half = t_quantile(0.975, len(apart) - 1) * apart.std(ddof=1) / math.sqrt(len(apart))
    return {f"{key}above_fixup": float(apart.mean()), f"{key}above_fixup_interval": float(half)}


def _mean(values: FloatArray) -> float:
    """Geometric, over seeds."""
    return float(np.exp(np.log(values).mean()))


# -------------------------------------------------------------------------------------- claims

Rows = Mapping[str, Mapping[str, Any]]


def _scale_claims(rows: Rows) -> list[Claim]:
    """The size of a step against the closed form, exact but for rounding."""
    found = []
    for name in (SMALL, LARGE):
        law = rows[name]["c"] ** (2 * LAYERS - 2)
        for key, words in (
            ("branch_update", "branch step over fixup's"),
            ("branch_update_2", "the same at step 2 of the run"),
        ):
            ratio = rows[name][key] / rows[FIXUP][key]
            found.append(_near(f"{name}: {words}, by c^(2m - 2)", ratio, law))
        ratio = rows[name]["change_1"] / rows[FIXUP]["change_1"]
        found.append(_near(f"{name}: step 1 over fixup's", ratio, 1.0))
    # At finite width most networks lie far below a mean such as 3^L: half of its decades.
    for key, words, law in (
        ("change_1", "step 1 over fixup's", 3.0**DEPTH),
        ("branch_update", "branch step over fixup's", 2 * DEPTH * 3.0 ** (DEPTH - 1)),
    ):
        ratio = rows[HE][key] / rows[FIXUP][key]
        found.append(Claim(f"{HE}: {words}, {law:.0e} in the mean", ratio, min=law**0.5))
    return found


def _near(name: str, ratio: float, law: float) -> Claim:
    return Claim(name, ratio, law * (1 - 1e-4), law * (1 + 1e-4))


def _gradient_claims(rows: Rows) -> list[Claim]:
    """Which tensors have a gradient at steps 1, 2 and 3; zeros here are the design."""
    block = LAYERS + 2 * LAYERS + 1  # weights; a bias each, one in front of each relu; s and b4
    head, never = ("the classifier's", 2), ("the classifier's, stem, last biases", 3 + DEPTH)
    ends = ("the classifier's, stem, last weights and biases", 3 + 2 * DEPTH)
    wanted = {
        FIXUP: (head, ends, ("everything", 3 + block * DEPTH)),
        ZERO: (head, never, never),
    }
    found = [
        Claim(
            f"{name}: tensors with a gradient at step {place}, {words}",
            rows[name][f"moving_{place}"],
            count - 0.5,
            count + 0.5,
        )
        for name, steps in wanted.items()
        for place, (words, count) in enumerate(steps, 1)
    ]
    return [
        *found,
        Claim(f"{FIXUP}: branch step at step 1", rows[FIXUP]["branch_update_1"], max=1e-12),
        Claim(f"{ZERO}: branch step", rows[ZERO]["branch_update"], max=1e-12),
        Claim(f"{ZERO}: largest weight after the run", rows[ZERO]["largest_weight"], max=1e-12),
    ]


def _run_claims(rows: Rows) -> list[Claim]:
    """Of the runs, by counting seeds: a mean of losses that explode says nothing."""
    n, most = len(SEEDS), needed(len(SEEDS)) - 0.5
    ends = below(rows[FIXUP]["losses"], rows[ZERO]["losses"])
    along = below(rows[FIXUP]["run_losses"], rows[SMALL]["run_losses"])
    failed = f"seeds of {n} that diverge or end above chance"
    return [
        Claim(f"{FIXUP}: {failed}", rows[FIXUP]["failed"], max=0.5),
        Claim(f"{FIXUP}: seeds of {n} that end below {ZERO}", ends, min=most),
        Claim(f"{FIXUP}: seeds of {n} below {SMALL} along the run", along, min=most),
        Claim(f"{LARGE}: {failed}", rows[LARGE]["failed"], min=most),
        Claim(f"{SLOWED}: {failed}", rows[SLOWED]["failed"], max=0.5),
        Claim(f"{HE}: {failed}", rows[HE]["failed"], min=most),
    ]


def below(these: Iterable[float], those: Iterable[float]) -> int:
    """In how many seeds the first is lower; what is not finite is above everything, and no lower
    than itself."""
    pairs = zip(map(_or_inf, these), map(_or_inf, those), strict=True)
    return sum(a < b for a, b in pairs)


def _or_inf(x: float) -> float:
    return x if math.isfinite(x) else math.inf


def needed(seeds: int) -> int:
    """The sign test: the least k of which a fair coin's ``P(heads >= k)`` is below 5 per cent."""
    for k in range(seeds + 1):
        if sum(math.comb(seeds, j) for j in range(k, seeds + 1)) < 0.05 * 2**seeds:
            return k
    raise AssertionError(f"{seeds} seeds can show nothing; five can")


# ------------------------------------------------------------------------------------- lessons


def _told(row: Mapping[str, Any], key: str = "loss") -> str:
    """``0.03 (sd 0.02)``, or how many seeds were lost."""
    if row["diverged"]:
        return f"lost, {row['diverged']} of {len(SEEDS)} seeds not finite"
    return f"{row[key]:.3g} (sd {row[f'{key}_sd']:.2g})"


def _window(rows: Rows) -> str:
    said = "; ".join(f"{name}: {_told(rows[name])}" for name in (FIXUP, LARGE, HE, ZERO))
    return (
        f"Loss after {TASK.steps} steps at a rate of {RATE:g}, {len(SEEDS)} seeds, chance "
        f"{TASK.chance:.3g}: {said}."
    )


def _differences(row: Mapping[str, Any]) -> str:
    """Above Fixup along the run and at the end."""
    if "above_fixup" not in row:
        return f"{row['name']}: {_told(row)}"
    along, end = (
        f"{row[key]:+.3f} +- {row[f'{key}_interval']:.3f}"
        for key in ("run_above_fixup", "above_fixup")
    )
    return f"{row['name']}: {along} along the run, {end} at the end"


def _slower(rows: Rows) -> str:
    return (
        f"Ten times too small costs time: mean loss of all batches "
        f"{_told(rows[SMALL], 'run_loss')}, Fixup {_told(rows[FIXUP], 'run_loss')}. What it costs "
        f"in the end is another question; loss above Fixup's, {_differences(rows[SMALL])}."
    )


def _rate(rows: Rows) -> str:
    return (
        f"The window is one of rate times scale^(2m - 2): ten times too large at a hundredth of "
        f"the rate makes Fixup's branch step again, and {rows[SLOWED]['failed']} of {len(SEEDS)} "
        f"seeds fail, at a loss of {_told(rows[SLOWED])}."
    )


def _scalars(rows: Rows) -> str:
    return (
        f"The paper's networks are worse without the scalars; here that is measured, not claimed. "
        f"Loss above Fixup's of the same seed, n = {len(SEEDS)}: "
        f"{_differences(rows[NO_BIASES])}; {_differences(rows[NO_MULTIPLIERS])}. An interval that "
        f"holds zero tells no difference."
    )
