"""The callbacks on tiny models: what they log, when, and that the training is the same."""

from __future__ import annotations

import warnings

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


def fitted(tmp_path, callbacks, loggers):
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

    torch.manual_seed(1)
    data = DataLoader(TensorDataset(torch.randn(40, 6)), batch_size=4, shuffle=True)
    model = Tiny()
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=loggers, callbacks=callbacks,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(model, data)
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


def test_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from depthgauge.integrations.transformers import DepthgaugeCallback

    config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=32, n_positions=8)

    def trained(callbacks):
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config)
        rows = [{"input_ids": (ids := torch.randint(32, (8,))), "labels": ids} for _ in range(24)]
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=6, per_device_train_batch_size=4, report_to=[],
            save_strategy="no", use_cpu=True, disable_tqdm=True,
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
