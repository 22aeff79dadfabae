"""The callbacks on tiny models: what they log, when, and that the training is the same."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@pytest.fixture(autouse=True)
def _others_warnings():
    """Frameworks warn of themselves: of few workers, of names that will change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def fitted(tmp_path, callbacks, loggers, **more):
    lightning = pytest.importorskip("lightning.pytorch")

    class Tiny(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, batch_idx):
            return (self(batch[0]) - batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=1e-2)

    checkpoint, kept = more.pop("checkpoint", None), more.pop("kept", None)
    torch.manual_seed(1)
    data = DataLoader(TensorDataset(torch.randn(40, 6)), batch_size=4, shuffle=True)
    model = Tiny()
    trainer = lightning.Trainer(
        accelerator="cpu", logger=loggers, callbacks=callbacks, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
        **{"max_epochs": 1, "enable_checkpointing": False, **more},
    )  # fmt: skip
    trainer.fit(model, data, ckpt_path=checkpoint)
    if kept:
        trainer.save_checkpoint(kept)
    return model


def test_lightning(tmp_path):
    pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.loggers import CSVLogger

    from depthgauge.integrations.lightning import DepthgaugeCallback

    seen = {}
    callback = DepthgaugeCallback(torch.randn(4, 6), every=4, log=lambda n, s: seen.update({s: n}))
    logger = CSVLogger(tmp_path)
    looked = fitted(tmp_path, [callback], logger)
    bare = fitted(tmp_path, [], False)
    assert all(map(torch.equal, looked.parameters(), bare.parameters()))
    assert list(seen) == [4, 8]  # ten steps of the optimiser
    logger.save()
    text = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text()
    assert "depthgauge/forward_drift" in text.splitlines()[0]


@pytest.mark.parametrize(("gathered", "steps"), [(1, [1, *range(2, 11)]), (4, [1, 2, 3])])
def test_lightning_looks_behind_a_step_whose_gradients_were_gathered(tmp_path, gathered, steps):
    """Ten batches, of which four give one step (the last one of two): no look before the first
    step, none between two, and each at the weights that the step left."""
    pytest.importorskip("lightning.pytorch")
    from lightning.pytorch import Callback

    from depthgauge.integrations.lightning import DepthgaugeCallback

    weights: dict[int, torch.Tensor] = {}
    gradients: list[list[torch.Tensor]] = []

    class After(Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            gradients.append([p.grad.clone() for p in pl_module.parameters()])

        def on_train_batch_end(self, trainer, pl_module, *_):
            weights.setdefault(trainer.global_step, pl_module.net[0].weight.detach().clone())

    seen: dict[int, torch.Tensor] = {}

    def log(numbers, step):
        seen[step] = callback.monitor.model.net[0].weight.detach().clone()

    callback: Any = DepthgaugeCallback(torch.randn(4, 6), every=1, log=log)
    given = {"accumulate_grad_batches": gathered}
    looked = fitted(tmp_path, [callback, After()], False, **given)
    assert list(seen) == steps
    assert all(torch.equal(seen[step], weights[step]) for step in steps)
    with_looks = list(gradients)
    gradients.clear()
    bare = fitted(tmp_path, [After()], False, **given)
    assert all(map(torch.equal, looked.parameters(), bare.parameters()))
    for a, b in zip(with_looks, gradients, strict=True):  # none of a look is gathered with them
        assert all(map(torch.equal, a, b))
    every: Any = DepthgaugeCallback(torch.randn(4, 6), every=2, log=lambda n, s: None)
    fitted(tmp_path, [every], False, **given)
    assert list(every.monitor.looks) == [step for step in steps if step % 2 == 0]


def test_lightning_goes_on_from_the_step_of_a_checkpoint(tmp_path):
    pytest.importorskip("lightning.pytorch")
    from depthgauge.integrations.lightning import DepthgaugeCallback

    def looks(**more):
        callback: Any = DepthgaugeCallback(torch.randn(4, 6), every=2)
        given = {"accumulate_grad_batches": 5, **more}  # two steps an epoch
        fitted(tmp_path, [callback], False, **given)
        return list(callback.monitor.looks)

    assert looks(kept=tmp_path / "kept.ckpt") == [2]
    assert looks(checkpoint=tmp_path / "kept.ckpt", max_epochs=2) == [4]


def test_lightning_of_several_optimisers(tmp_path):
    """Three steps a batch, so that 10 is passed and never met."""
    pytest.importorskip("lightning.pytorch")
    from types import SimpleNamespace

    from depthgauge.integrations.lightning import DepthgaugeCallback

    module: Any = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    module.device = torch.device("cpu")
    trainer = SimpleNamespace(global_step=0, loggers=[])
    callback: Any = DepthgaugeCallback(torch.randn(4, 6), every=10)
    callback.on_fit_start(trainer, module)
    callback.on_train_start(trainer, module)
    for batch in range(8):
        trainer.global_step += 3
        callback.on_train_batch_end(trainer, module, None, None, batch)
    assert list(callback.monitor.looks) == [12, 21]


def test_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from depthgauge.integrations.transformers import DepthgaugeCallback

    config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=32, n_positions=8)

    def trained(callbacks, gathered=1):
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config)
        rows = [{"input_ids": (ids := torch.randint(32, (8,))), "labels": ids} for _ in range(24)]
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=6, per_device_train_batch_size=4, report_to=[],
            save_strategy="no", use_cpu=True, disable_tqdm=True,
            gradient_accumulation_steps=gathered,
        )  # fmt: skip
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, callbacks=callbacks)
        trainer.train()
        return trainer

    ids = torch.randint(32, (2, 8), generator=torch.Generator().manual_seed(0))
    callback = DepthgaugeCallback({"input_ids": ids, "labels": ids}, every=3)
    looked, bare = trained([callback]), trained([])
    assert all(map(torch.equal, looked.model.parameters(), bare.model.parameters()))
    rows = [row for row in looked.state.log_history if "depthgauge/forward_drift" in row]
    assert [row["step"] for row in rows] == [3, 6]
    assert all(row["depthgauge/gradient_ratio"] > 0 for row in rows)
    seen = {}
    callback = DepthgaugeCallback(
        {"input_ids": ids, "labels": ids}, every=3, log=lambda n, s: seen.update({s: n})
    )
    looked, bare = trained([callback], 2), trained([], 2)
    assert list(seen) == [3, 6]  # steps of the optimiser, of two batches each
    assert all(map(torch.equal, looked.model.parameters(), bare.model.parameters()))
