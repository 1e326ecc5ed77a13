"""Callbacks for people who have a training script, with the real trainers."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from overt.nn import audit, explicit_penalty, predictive_moments
from overt.nn.monitor import noise_metrics


def data(n=96):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 5, generator=generator)
    return x, (x[:, 0] > 0).long()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 2))


def test_metrics_are_those_of_the_functions():
    x, y = data()
    model = network()
    found = noise_metrics(model, (x, y), "cross_entropy")
    report = audit(model, (x, y), "cross_entropy")
    penalty = explicit_penalty(model, x[:64], y[:64], loss="cross_entropy")
    moments = predictive_moments(model, x[:64])
    assert found["penalty"] == pytest.approx(float(penalty.value.detach()), rel=1e-5)
    assert found["std"] == pytest.approx(
        float(moments.variance.mean().sqrt()), rel=1e-5
    )
    assert found["objective"] == report.objective
    assert found["accuracy"] == report.accuracy
    targets = torch.stack([x[:, 0], y.float()], 1)
    found = noise_metrics(model, (x, targets), "squared")
    head = audit(model, (x, targets), "squared").head
    assert (found["lower_bound"], found["gap"]) == (head.lower_bound, head.gap)


def test_metrics_leave_the_model_and_the_generator_as_they_were():
    model = network().train()
    model[3].weight.grad = torch.ones_like(model[3].weight)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    noise_metrics(model, data(), "cross_entropy")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(
        torch.equal(before[key], value) for key, value in model.state_dict().items()
    )
    assert torch.equal(model[3].weight.grad, torch.ones_like(model[3].weight))
    assert all(module.training for module in model.modules())


@pytest.mark.filterwarnings("ignore")  # of the trainer itself
def test_lightning_logs_the_numbers_of_every_second_epoch(tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")
    from overt.nn.lightning import NoiseMonitor

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def training_step(self, batch, index):
            x, y = batch
            return functional.cross_entropy(self.net(x), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    x, y = data()
    module = Module()
    monitor = NoiseMonitor((x, y), "cross_entropy", network=lambda m: m.net, every=2)
    trainer = lightning.Trainer(
        max_epochs=2,
        callbacks=[monitor],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        default_root_dir=tmp_path,
    )
    trainer.fit(module, DataLoader(TensorDataset(x, y), batch_size=32))
    expected = noise_metrics(module.net, (x, y), "cross_entropy")
    logged = {key: float(value) for key, value in trainer.callback_metrics.items()}
    assert {f"noise/{key}" for key in expected} <= logged.keys()
    for key, value in expected.items():
        assert logged[f"noise/{key}"] == pytest.approx(value, rel=1e-4)


@pytest.mark.filterwarnings("ignore")  # of the trainer itself
def test_the_trainer_of_hugging_face_records_the_numbers_of_every_epoch(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="the Trainer of transformers needs it")
    from overt.nn.huggingface import NoiseMonitor

    torch.manual_seed(0)
    ids = torch.randint(5, 30, (48, 6))
    rows = [{"input_ids": row, "labels": row[0] % 2} for row in ids]
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
    model = transformers.BertForSequenceClassification(config)
    monitor = NoiseMonitor(DataLoader(rows, batch_size=24))
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        num_train_epochs=2,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
    )
    trainer = transformers.Trainer(
        model, arguments, train_dataset=rows, callbacks=[monitor]
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "noise_penalty" in entry]
    assert [entry["epoch"] for entry in logged] == [1.0, 2.0]
    expected = noise_metrics(
        model,
        DataLoader(rows, batch_size=24),
        "cross_entropy",
        output=lambda o: o.logits,
    )
    for key, value in expected.items():
        assert logged[-1][f"noise_{key}"] == pytest.approx(value, rel=1e-4)


def test_the_penalty_is_what_the_noise_adds_where_it_moves_the_mean():
    """It was .8 for AlphaDropout, as if the mean were that without noise; the truth is -.15."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.AlphaDropout(0.3), nn.Linear(6, 3)).double()
    x, y = torch.randn(16, 6).double(), torch.randn(16, 3).double()
    found = noise_metrics(model, (x, y), "squared")
    model.train()
    with torch.no_grad():
        noisy = torch.stack([((model(x) - y) ** 2).sum(1).mean() for _ in range(4000)])
    error = float(noisy.std()) / len(noisy) ** 0.5
    added = float(noisy.mean()) - found["loss"]
    assert abs(found["penalty"] - added) <= 4 * error
    objective_error = audit(model, (x, y), "squared").objective_error
    away = found["objective"] - found["loss"] - found["penalty"]
    assert abs(away) <= 4 * objective_error
