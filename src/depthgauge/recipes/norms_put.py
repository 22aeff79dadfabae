"""Norms put where a form has them, taken out, exchanged for another kind."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from depthgauge.recipes.rules import Form, number_of, scope_of
from depthgauge.recipes.work import Work
from depthgauge.recipes.wrappers import Entered, Left, norm_of
from depthgauge.trace.counted import End, Normed, Residual

__all__ = ["exchange", "put_final", "put_norms", "shared_form"]


def shared_form(work: Work, branch: Residual, form: Form) -> Form:
    """The form with the norms of the first branch that runs through the same layers: a module
    that runs several times has one form."""
    first = [work.normed_by.setdefault(w.called, (branch.path, form)) for w in branch.weights]
    others = [(path, one) for path, one in first if one.norms != form.norms]
    if not others:
        return form
    path, one = others[0]
    work.left.append(
        f"'{path}' runs in several branches, to which the recipe gives norms at different "
        f"places: it has those of the first"
    )
    return replace(form, norms=one.norms)


def put_final(work: Work) -> set[str]:
    """The norm between a stream's last sum and its readers put in, or taken out. One that stood
    behind the last sum of a post-norm stack is the final norm of a pre-norm one: the paths of
    those."""
    kept: set[str] = set()
    kind = work.plan.final or _usual(work)
    for end in work.found.ends:
        if kind == "none":
            for norm in end.norms:
                work.replace(norm.path, nn.Identity, "norms out")
            continue
        for norm in end.norms[:1]:
            if work.plan.final and norm.kind != kind:
                exchange(work, norm, kind)
        if end.norms or not end.readers:
            continue
        branches = [b for b in work.found.branches if b.stream == end.stream]
        own = [norm for norm in branches[-1].norms if norm.at == "stream"]
        width = branches[-1].width
        axis, path = work.axis(branches[-1]), branches[-1].sum
        what = f"final {kind} put in"
        if own and work.leaf(own[-1].path) and work.found.runs[own[-1].path] == 1:
            kept.add(own[-1].path)
            if work.plan.final and own[-1].kind != kind:
                exchange(work, own[-1], kind)
        elif path and work.found.runs[path] == 1:
            norm_after = partial(_followed, kind=kind, width=width, axis=axis)
            work.later.append(partial(work.wrap, path, norm_after, what))
        elif _read_by_layers(work, end, width):
            put = partial(Entered, before=norm_of(kind, width))
            for reader in end.readers:
                work.later.append(partial(work.wrap, reader, put, what))
        else:
            which = f"'{path}' returns other sums than" if path else "no module returns"
            work.left.append(
                f"{which} the end of '{end.stream}', and what reads it is no linear layer of "
                f"its width: no final norm there"
            )
    return kept


def _read_by_layers(work: Work, end: End, width: int) -> bool:
    """Whether each layer that reads the stream's end is a linear one of its width, which a norm
    can stand in front of."""
    modules = [work.modules.get(path) for path in end.readers if work.found.runs[path] == 1]
    linear = [m for m in modules if isinstance(m, nn.Linear) and m.in_features == width]
    return len(linear) == len(end.readers)


def put_norms(work: Work, branch: Residual, form: Form, kept: Collection[str] = ()) -> None:
    """The branch's norms as its form has them, one at each place; ``kept``: modules that stay."""
    for norm in branch.norms:
        if norm.at in form.gains and form.norms is None:
            _gain(work, branch, norm, form.gains[norm.at])
    if form.norms is None:
        missing = set(form.gains) - {norm.at for norm in branch.placed}
        for at in sorted(missing):
            work.left.append(f"'{branch.path}' has no norm at its '{at}' whose gain could be set")
        return
    if not form.norms:  # of some branches alone; where it is of all, norms are out already
        for norm in branch.placed:
            work.replace(norm.path, nn.Identity, "norms out")
        return
    here: dict[str, list[Normed]] = {}
    for norm in branch.placed:
        here.setdefault(norm.at, []).append(norm)
    for at, found in here.items():
        if at in form.norms and len(found) > 1 and all(norm.beside for norm in found[1:]):
            continue  # one in front of each layer
        stays = _staying(found) if at in form.norms else None
        for norm in found:
            if stays is not None and norm is not stays and norm.path == stays.path:
                work.left.append(f"'{norm.path}' norms twice; take one out by hand")
            elif norm is not stays and norm.path not in kept:
                work.replace(norm.path, nn.Identity, "norms out")
        here[at] = [stays] if stays is not None else []
    for at, kind in form.norms.items():
        present = here.get(at)
        if not present:
            _insert(work, branch, at, kind or _usual(work))
        for norm in present or ():
            if kind and kind != norm.kind:
                exchange(work, norm, kind)


def exchange(work: Work, norm: Normed, kind: str) -> None:
    """A norm of another kind in its place."""
    make = partial(norm_of, kind, norm.width, norm.axis)
    work.replace(norm.path, make, f"norms replaced by {kind}")


def _usual(work: Work) -> str:
    kinds = [norm.kind for branch in work.found.branches for norm in branch.placed]
    return kinds[0] if kinds else "layernorm"


def _gain(work: Work, branch: Residual, norm: Normed, text: str) -> None:
    if not norm.gain:
        work.left.append(f"the norm in '{norm.path}' has no gain")
        return
    with torch.no_grad():
        owner, _, name = norm.gain.rpartition(".")
        gain = getattr(work.modules[owner], name)
        gain.fill_(number_of(text, scope_of(work.found, branch)))
    work.done[f"gains of norms begin at {text}"] += 1


def _insert(work: Work, branch: Residual, at: str, kind: str) -> None:
    first = [w for w in branch.weights if w.first]
    last = [w for w in branch.weights if w.last]
    axis, what = work.axis(branch), f"{kind} put in ({at})"
    if at == "stream":
        if not branch.sum or not last:
            work.left.append(f"no module returns the sum after '{branch.path}': no norm put there")
            return
        if branch.sum in work.normed:
            return  # of parallel branches, which share one sum
        work.normed.add(branch.sum)
        width = branch.width
        work.wrap(branch.sum, lambda m: Left(m, norm_of(kind, width, axis)), what)
    elif at == "in":
        known = [work.entering(w) for w in first if w.fan_in]
        norm = norm_of(kind, known[0] if known else branch.width, axis)
        for path in work.entrances(branch):
            work.wrap(path, lambda m: Entered(m, norm), what)
    elif last:
        path = last[-1].called
        inside = path and any(w.called == path and not w.last for w in branch.weights)
        if inside and at == "inner":
            attends = any(w.called == path and w.role for w in branch.weights)
            what = "attention in one function" if attends else "several layers in one module"
            work.left.append(f"'{path}' is {what}: no norm can be put inside it")
        elif at == "out":
            width = branch.width
            work.wrap(path, lambda m: Left(m, norm_of(kind, width, axis)), what)
        else:
            width = work.entering(last[-1])
            work.wrap(path, lambda m: Entered(m, norm_of(kind, width, axis)), what)


def _staying(norms: Sequence[Normed]) -> Normed | None:
    """The one of those at a place that a form wants there: the outermost, inside a branch one in
    front of its last layer, if there is any."""
    fitting = [norm for norm in norms if norm.at != "inner" or norm.last]
    return fitting[-1] if fitting else None


def _followed(module: nn.Module, kind: str, width: int, axis: int) -> Left:
    return Left(module, norm_of(kind, width, axis))
