"""Logs lines for the user from one process of a run, and hides lines of Lightning."""

import logging
import warnings

from lightning.pytorch.utilities import rank_zero_only

LOGGER = logging.getLogger("fer_vit")

# Both log only in process 0. The command line prints the lines; Python shows warnings alone.
log_once = rank_zero_only(LOGGER.info)
warn_once = rank_zero_only(LOGGER.warning)

ADVERTISEMENTS = (  # lines of Lightning's log that are hidden
    "Tip: For",
    "An SIGTERMException was",
    "TPU available",
    "Loading `train_dataloader` to estimate",
)
EXPECTED = (  # warnings about what is intended here or reported elsewhere
    # metrics are already computed over all processes
    ".*sync_dist=True.*accumulate the metric across devices",
    # FaceDataModule restores the position
    "You're resuming from a checkpoint that ended before the epoch",
    # without a validation, there are no metrics: `fit` says that no best checkpoint was written
    r".*could not find the monitored key .* metrics: (?!.*'val/)",
    # LastCheckpoint restores the best score
    "The dirpath has changed from",
    # `model.freeze` does this
    r"Found \d+ module\(s\) in eval mode at the start of training",
    # Lightning's own use of torch
    ".*isinstance.treespec, LeafSpec.*",
)


def is_news(line: logging.LogRecord) -> bool:
    """Returns whether a line of Lightning's log contains none of `ADVERTISEMENTS`."""
    message = line.getMessage()
    return not any(words in message for words in ADVERTISEMENTS)


def hide_noise() -> None:
    """Hides advertisements, and warnings about what is intended here or reported elsewhere."""
    logging.getLogger("lightning.pytorch.utilities.rank_zero").addFilter(is_news)
    for message in EXPECTED:
        warnings.filterwarnings("ignore", message=message)
