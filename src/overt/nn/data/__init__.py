"""What users give to `overt.nn` and `overt.robust`: data, models, losses, modes and RNG states."""

from overt.nn.data.batches import Batch, Batches, Inputs, call_model, split_batch
from overt.nn.data.losses import LOSSES, Loss, Targets, check_loss, guess_loss, loss_name, mean_loss
from overt.nn.data.models import check_model, copy_model, modes, restore_training, unwrap_model
from overt.nn.data.rng import preserve_rng, rng_states, seeded

__all__ = [
    "LOSSES",
    "Batch",
    "Batches",
    "Inputs",
    "Loss",
    "Targets",
    "call_model",
    "check_loss",
    "check_model",
    "copy_model",
    "guess_loss",
    "loss_name",
    "mean_loss",
    "modes",
    "preserve_rng",
    "restore_training",
    "rng_states",
    "seeded",
    "split_batch",
    "unwrap_model",
]
