"""Lines for the user, from one process of a run."""

import logging

from lightning.pytorch.utilities import rank_zero_only

LOGGER = logging.getLogger("fer_vit")

log_once = rank_zero_only(LOGGER.info)
"""Logs a line in process 0 only; the command line prints it."""
