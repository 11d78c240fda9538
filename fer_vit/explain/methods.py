"""The methods of explanation: their names in the command line, and what they show.

The help lists them without PyTorch. So the functions of the same names, which compute them, are in
`explain.attribution`, which imports it.
"""

from collections.abc import Mapping
from typing import NamedTuple

from fer_vit.errors import FerVitError, suggest
from fer_vit.extras import is_installed, missing_extra
from fer_vit.wording import describe_entries


class Method(NamedTuple):
    """A method of explanation."""

    title: str  # a few words, for the top of a report and for the help
    text: str  # what the method shows, for a report
    explains_heads: bool = True  # whether the method also explains the outputs of further heads
    can_be_rounded: bool = False  # whether bfloat16, in half the time, is exact enough
    draws: int = 1  # how many explanations are measured and averaged, to reduce noise


# Rows and columns of a heat map: each cell is a mean, since single pixels are hard to see.
HEAT_GRID = 24

# The method that any engine computes; all others need PyTorch.
REGIONS = "regions"

# The methods by their names in the command line. The effects of masked tokens are too small for
# bfloat16.
METHODS = {
    # In bfloat16, the result is as close to an integration of many passes as in float32.
    "pixels": Method(
        "what each pixel adds (integrated gradients)",
        "what each pixel adds to the score, from a blurred face to this one "
        "(integrated gradients).",
        can_be_rounded=True,
    ),
    REGIONS: Method(
        "hiding one region after the other",
        "how far the score falls when a region is hidden: its pixels get the mean colour of the "
        "face, and its tokens are left out.",
    ),
    "relevance": Method(
        "gradient times attention",
        "gradient times attention, from the score back to the model's tokens.",
        explains_heads=False,
    ),
    "ablation": Method(
        "masking the tokens of one region after the other",
        "how far the score falls when a region's tokens, and the patches under it, "
        "are masked together.",
    ),
}

# The methods with their titles, for the help.
METHODS_HELP = describe_entries({name: method.title for name, method in METHODS.items()})

CONTROLS = {  # baselines for the methods: scores that do not depend on what the model learned
    "random": Method("random scores", "random scores.", draws=3),
    "centre": Method("the centre", "a Gaussian around the centre of the crop."),
}

# The methods that `fer-vit faithfulness` measures. Reports draw attention separately, so it is not
# one of `METHODS`.
MEASURED = (
    METHODS | {"attention": Method("attention", "how tokens exchange information.")} | CONTROLS
)


def find_method(name: str, methods: Mapping[str, Method]) -> Method:
    """Returns the method of a name; raises FerVitError for an unknown name."""
    if not isinstance(name, str) or name not in methods:
        names = ", ".join(methods)
        remedy = suggest(str(name), methods)
        raise FerVitError(f"Expected method to be one of {names}, but got {name}.{remedy}")
    return methods[name]


def choose_method(name: str | None) -> str:
    """Returns the name of one of `METHODS`; None: "pixels", or "regions" without PyTorch.

    Raises FerVitError for an unknown name, and for a method that needs PyTorch if that is not
    installed.
    """
    if name is None:
        return "pixels" if is_installed("torch") else REGIONS
    find_method(name, METHODS)
    if name != REGIONS and not is_installed("torch"):
        raise missing_extra(f"The method {name}", "torch")
    return name
