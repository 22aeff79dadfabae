"""Every model of the zoo: the streams of its definition, or an answer that admits why not."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest
import torch

from benchmarks.zoo import Model
from benchmarks.zoo.compare import ALWAYS, differences
from depthgauge import Profile, measure

FILES = (
    "plain",
    "oddities",
    "hub",
    "x_transformers_models",
    "further",
    "further_hub",
    "blind",
    "blind_hub",
)

#: Where the tool's answer is not the expectation: what differs, word for word, and why.
DIFFERENT: dict[str, tuple[list[str], str]] = {
    "oddities-running_sum": (
        ["branches 0, expected 4"],
        "the last of a running sum is no sum to the local test; path counting sees a join",
    ),
    "oddities-cat_and_sum": (
        ["branches 0, expected 4"],
        "a concatenation that is folded and summed is no sum to the local test",
    ),
    "hub-vit-mae": (
        [
            "1 stream of 10 branches, expected 2 streams of 6, 4 branches",
            "stream 1: branches 10, expected 6",
        ],
        "a linear layer joins encoder and decoder: one stream in two segments",
    ),
    "further-bottom_to_top": (
        ["norm_at inner out stream, expected inner stream"],
        "the second branch begins at an older state and ends in the first one's norm",
    ),
    "further_hub-granite-moe-shared": (
        ["branches 9, expected 6"],
        "the block itself adds the shared expert: two branches of one merge",
    ),
    "further_hub-granite-moe-hybrid": (
        ["branches 9, expected 6"],
        "the block itself adds the shared expert: two branches of one merge",
    ),
    "further_hub-hiera": (
        ["branches 5, expected 6"],
        "a maximum over windows on the skip is no projection",
    ),
    "blind-resnet_in_resnet": (
        ["norm_at inner out, expected out"],
        "the transient branch begins one unit back, so the norm of that unit lies inside it",
    ),
    "blind-controlnet": (
        [
            "4 streams of 3, 3, 1, 1 branches, expected 2 streams of 3, 5 branches",
            "stream 2: branches 3, expected 5",
        ],
        "the concatenations carry both streams: each projected skip begins a stream of its own",
    ),
    "blind-hifigan": (
        ["branches 6, expected 8"],
        "of two blocks side by side the second, added to the first, is one branch of two merges",
    ),
    "blind-denseformer": (
        ["branches 6, expected 1", "norm_at in, expected in inner"],
        "the sums that add the first tensor again are left out: every block is outer",
    ),
    "blind-ladder_side_tuning": (
        [
            "1 stream of 13 branches, expected 2 streams of 6, 6 branches",
            "stream 1: branches 13, expected 6",
        ],
        "linear layers join both networks: one stream; the first mixture of two is a projection",
    ),
    "blind-momentum_net": (
        [
            "1 stream of 6 branches, expected 2 streams of 4, 3 branches",
            "stream 1: branches 6, expected 4",
        ],
        "the velocity, made of the state alone, is no second stream, and one of its sums is left "
        "out",
    ),
    "blind_hub-reformer": (
        [
            "1 stream of 6 branches, expected 2 streams of 3, 3 branches",
            "stream 1: branches 6, expected 3",
        ],
        "both halves begin as one tensor, concatenated with itself: one stream",
    ),
    "blind_hub-sam": (
        ["stream 2: norm_at out stream, expected stream"],
        "the first layer's attention, whose prompts are added once more behind its norm, is taken "
        "for a branch in place of the one that asks the image",
    ),
    "blind_hub-bridgetower": (
        [
            "2 streams of 12, 12 branches, expected 4 streams of 6, 6, 6, 6 branches",
            "stream 1: branches 12, expected 6",
            "stream 2: branches 12, expected 6",
            "stream 2: norm_at in stream, expected in",
        ],
        "a linear layer leads from each tower to its cross layers: one stream in segments",
    ),
}


def models() -> Iterator[tuple[str, Model]]:
    for file in FILES:
        for model in import_module(f"benchmarks.zoo.{file}").MODELS:
            yield f"{file}-{model.name}", model


ALL = dict(models())


def profile_of(model: Model) -> Profile:
    torch.manual_seed(0)
    module, batch = model.build()
    module.train(model.training)
    return measure(module, batch, instruments="rivers,branches")


def admits(profile: Profile) -> bool:
    """Whether the answer itself says that something was not seen, or seen twice."""
    return bool(profile.disagreements) or any(profile.coverage.values())


@pytest.mark.parametrize("name", ALL)
def test_streams_are_those_of_the_definition(name: str) -> None:
    """Exact, or different in the way that is listed; and where it is different, the answer says
    itself that something was not seen, or seen otherwise."""
    model = ALL[name]
    profile = profile_of(model)
    differs = differences(model, profile, ("branches", "norm_at"))
    if differs:
        assert admits(profile)
    if not model.limits:
        assert differs == DIFFERENT.get(name, ([], ""))[0]
    assert all(len(stream["m"]) == stream["branches"] for stream in profile.streams)


def test_at_least_nine_in_ten_are_exact_in_every_word() -> None:
    """Branches, norms, skip, inner merges, projections and parallel branches alike."""
    sample = list(ALL.values())[::7]
    exact = [not differences(model, profile_of(model), ALWAYS) for model in sample]
    assert sum(exact) >= 0.9 * len(sample)


def test_an_expectation_can_fail() -> None:
    """The comparison sees a wrong count, a wrong norm, a missing stream."""
    gpt, bert = ALL["hub-gpt2"], ALL["hub-bert"]
    assert differences(gpt, profile_of(bert)) != []
    t5 = ALL["hub-t5"]
    assert differences(t5, profile_of(gpt))[0].startswith("1 stream of 6 branches, expected 2")
