"""Starts a network from another model: takes the weights that fit, and names frozen parts."""

import logging
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal

import timm
import torch
from timm.layers import resample_abs_pos_embed, resample_patch_embed
from torch import Tensor
from torch.nn import Module

from fer_vit.errors import FerVitError, check_number, suggest
from fer_vit.face.crop import DEFAULT_REGIONS
from fer_vit.heads import HeadOutputs
from fer_vit.labels import EXPRESSIONS
from fer_vit.model.config import RegionViTConfig
from fer_vit.model.region_vit import RegionViT, build_from_parts, build_model
from fer_vit.model_settings import ModelSettings
from fer_vit.store.model_folder import check_finite, differing, read_model
from fer_vit.store.stored_model import StoredModel
from fer_vit.wording import list_names

LOGGER = logging.getLogger("fer_vit")
Freeze = Literal["none", "stem", "encoder"]  # the part of a network that is not trained
CLASSIFIER = ("pool", "vit.head")
HEAD_PARTS = (*CLASSIFIER, "heads.")

# Tensors with a row for each label; pooling may have further ones.
LABEL_ROWS = ("vit.head.weight", "vit.head.bias")

POSITIONS = "vit.pos_embed"

# The end of the names of kernels (D, C, P, P) that embed patches or regions.
KERNEL = "patch_embed.proj.weight"


@torch.no_grad()
def take_weights(net: RegionViT, start: StoredModel) -> str:
    """Copies the tensors of another network that fit, and the classifier's rows of common labels.

    Learned positions and patch kernels are resampled for another image or patch size. Computed
    positions and heads of another kind are not copied.

    Args:
        net: The network to change.
        start: The other network; an encoder without labels has no classifier.

    Returns:
        A line for the user with copied, resampled and other tensors, and different settings.

    Raises:
        FerVitError: Fewer than nine tenths of the encoder's tensors fit, or a copied tensor is not
            finite.
    """
    state, resampled = fit_sizes(net, start.config, start.state)

    # the encoder's tensors that both networks have in the same shape
    target = _without_computed(net, net.state_dict())
    misfits = {}
    for key, expected, actual in differing(target, _without_computed(net, state)):
        if in_encoder(key):
            misfits[key] = f"{key} ({actual} there, {expected} here)"
    encoder = [key for key in target if in_encoder(key)]
    fitting = [key for key in encoder if key not in misfits]
    differences = _describe_differences(
        list(misfits.values()), asdict(start.config), asdict(net.config)
    )
    if len(fitting) < 0.9 * len(encoder):
        raise FerVitError(
            f"Expected nine tenths of the encoder to fit {start.name}, but only "
            f"{len(fitting)} of {len(encoder)} tensors do{differences}. "
            "Remove the options of the network, or choose another model."
        )

    # the classifier's tensors; those with a row for each label only have the rows of common labels
    rows = _common_rows(net, start)
    copied = list(fitting)
    if rows:
        copied += [key for key in target if key.startswith(CLASSIFIER) and key in state]
    by_label = {*LABEL_ROWS, *(f"pool.{key}" for key in getattr(net.pool, "label_rows", ()))}

    check_finite({key: state[key] for key in copied}, start.name)
    for key in copied:
        if key in by_label:
            target[key][list(rows)] = state[key][list(rows.values())].to(target[key])
        else:
            target[key].copy_(state[key])
    for head, outputs in net.settings.outputs.by_head.items():
        start_outputs = start.settings.outputs.of_head(head)
        _copy_outputs(net.heads[head], head, outputs, start_outputs, state)

    classes = _describe_classes(net.settings.labels, rows)
    kept = f"; {classes}" if classes else ""
    sizes = f"; resampled: {', '.join(resampled)}" if resampled else ""
    return (
        f"Started from {start.name}: {len(fitting)} of {len(encoder)} tensors of the encoder"
        f"{kept}{sizes}{differences}."
    )


def fit_sizes(
    net: RegionViT, config: RegionViTConfig, state: dict[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Resamples another network's learned positions and patch kernels to the sizes of `net`.

    As in timm, positions are interpolated bicubically, and kernels by the pseudoinverse of a
    bicubic interpolation (Beyer et al., "FlexiViT", CVPR 2023). Prefix tokens keep their positions.

    Args:
        net: The network that gets the tensors.
        config: The config of the other network.
        state: The state dict of the other network.

    Returns:
        A state dict, and the names of the tensors that were resampled.
    """
    changed = {}
    for name, value in net.state_dict().items():
        before = state.get(name)
        if before is None or before.shape == value.shape:
            continue
        if name == POSITIONS and net.vit.pos_embed.requires_grad:
            positions = _resample_positions(net, config, before)
            if positions is not None:
                changed[name] = positions
        if name.endswith(KERNEL) and before.shape[:2] == value.shape[:2]:
            changed[name] = resample_patch_embed(before, list(value.shape[2:]))
    return state | changed, list(changed)


def _resample_positions(net: RegionViT, config: RegionViTConfig, before: Tensor) -> Tensor | None:
    """Returns another network's positions (1, prefix + N, D), resampled for the grid of `net`.

    Returns None if the networks differ in width or prefix tokens, or if one has no patches.
    """
    with torch.device("meta"):  # uses no memory
        start_layout = build_model(config, [], initialize=False).layout
    wanted = net.vit.pos_embed
    prefix = before.shape[1] - start_layout.num_patches
    same_prefix = prefix == wanted.shape[1] - net.layout.num_patches
    same_width = before.shape[-1] == wanted.shape[-1]
    if not (same_prefix and same_width and start_layout.num_patches and net.layout.num_patches):
        return None
    new_grid = list(net.layout.grid)
    positions: Tensor = resample_abs_pos_embed(
        before, new_grid, list(start_layout.grid), num_prefix_tokens=prefix
    )
    return positions


def _without_computed(net: RegionViT, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns a state dict without the positions that the network computes."""
    computed = {key for key, value in net.named_parameters() if not value.requires_grad}
    return {key: value for key, value in state.items() if key not in computed}


def _common_rows(net: RegionViT, start: StoredModel) -> dict[int, int]:
    """Returns the classifier's rows of common labels: rows of `net` to rows of `start`.

    Classifiers of different kinds have no common rows.
    """
    if start.config.pool != net.config.pool:
        return {}
    start_labels = start.settings.labels
    rows = {}
    for row, label in enumerate(net.settings.labels):
        if label in start_labels:
            rows[row] = start_labels.index(label)
    return rows


def _describe_classes(labels: Sequence[str], kept_rows: Container[int]) -> str:
    """Describes which labels keep their rows of the classifier, and which are new."""
    kept = [label for row, label in enumerate(labels) if row in kept_rows]
    new = [label for row, label in enumerate(labels) if row not in kept_rows]
    classes = []
    if kept:
        classes.append(f"kept {', '.join(kept)}")
    if new:
        classes.append(f"new {', '.join(new)}")
    return "; ".join(classes)


def _copy_outputs(
    layer: Module,
    head: str,
    outputs: HeadOutputs,
    start_outputs: HeadOutputs,
    state: dict[str, Tensor],
) -> None:
    """Copies the common outputs of a head from another network if regions and width are equal.

    `outputs` are the outputs of `layer`; `start_outputs` and `state` belong to the other network.
    """
    kept = outputs.shared(start_outputs)
    if not kept:
        return
    rows = kept.indices_in(outputs)
    start_rows = kept.indices_in(start_outputs)
    for name, value in layer.state_dict().items():
        before = state.get(f"heads.{head}.{name}")
        if before is not None and before.shape[:-1] == value.shape[:-1]:
            value[..., rows] = before[..., start_rows].to(value)


def _describe_differences(
    tensors: Sequence[str], before: Mapping[str, Any], now: Mapping[str, Any]
) -> str:
    """Describes up to three tensors that were not copied, and different settings."""
    text = ""
    if tensors:
        text += f"; not copied: {list_names(tensors)}"
    changed = [name for name in now if name != "pretrained" and before[name] != now[name]]
    if changed:
        text += f"; different settings: {', '.join(changed)}"
    return text


def in_encoder(name: str) -> bool:
    """Returns whether a tensor or module is part of the encoder, before the heads."""
    return not name.startswith(HEAD_PARTS)


def is_frozen(name: str, freeze: Freeze) -> bool:
    """Returns whether a parameter or module is frozen, as a patch embedding or in the encoder."""
    if freeze == "stem":
        return "patch_embed" in name
    return freeze == "encoder" and in_encoder(name)


def create_model(
    name: str | Path | None = None,
    pretrained: bool = False,
    num_classes: int | None = None,
    **settings: Any,
) -> RegionViT:
    """Creates a network by name, as `timm.create_model` does.

    `forward_features(image)` returns encoded tokens, `logits(image)` the logits (B, C), and
    `model(image)` the raw outputs of each head. Each method also takes the boxes of the regions
    (`face.crop.region_boxes`); without boxes, a face has patches alone.

    Args:
        name: A model of fer-vit (see `load`), or a plain vision transformer of timm, such as
            "vit_small_patch16_224". None: the default model.
        pretrained: Whether to load the weights of the model, or of timm's backbone. If some weights
            do not fit, a warning of the logger `fer_vit` names resampled and random tensors.
        num_classes: The number of classes; 0: no classifier. A number that the model does not have,
            or a backbone of timm, gives a new classifier. None: the number of the model, or eight
            for a backbone.
        **settings: Settings of `RegionViTConfig` to change, such as `drop_path_rate=0.1`.

    Returns:
        The network in training mode, as in timm.

    Raises:
        FerVitError: There is no such model, a setting is unknown, or weights do not fit.
    """
    if isinstance(name, str) and timm.is_model(name):
        config = RegionViTConfig(backbone=name, pretrained=pretrained, regions=DEFAULT_REGIONS)
        labels = class_names(num_classes, EXPRESSIONS)
        return build_model(change_settings(config, settings), labels)

    start = read_model(name)
    config = change_settings(start.config, settings)
    labels = class_names(num_classes, start.settings.labels)
    crop = replace(start.settings.crop, size=config.img_size, regions=tuple(config.regions))
    new_settings = replace(start.settings, crop=crop)
    if labels != start.settings.labels:
        # not the temperature, prior and thresholds, which were fitted to the former labels
        new_settings = ModelSettings(labels, crop, outputs=start.settings.outputs.with_r({}))
    net = build_from_parts(config, new_settings)
    if pretrained:
        level = logging.WARNING if _new_tensors(net, start.state) else logging.INFO
        LOGGER.log(level, take_weights(net, start))
    return net


def _new_tensors(net: RegionViT, state: dict[str, Tensor]) -> list[str]:
    """Returns the names of tensors that another network lacks, or has in another shape.

    These tensors are random or resampled. Computed positions are left out: they are neither.
    """
    target = _without_computed(net, net.state_dict())
    return [key for key, _, _ in differing(target, state) if key in target]


def change_settings(config: RegionViTConfig, settings: Mapping[str, Any]) -> RegionViTConfig:
    """Returns a config with changed settings; raises FerVitError for an unknown setting."""
    known = [field.name for field in fields(config)]
    for name in settings:
        if name not in known:
            raise FerVitError(
                f"Expected settings of RegionViTConfig, but got {name}.{suggest(name, known)}"
            )
    return replace(config, **settings)


def class_names(num_classes: int | None, labels: Sequence[str]) -> list[str]:
    """Returns labels, or the names "0", "1", ... for another number of classes."""
    if num_classes is None or num_classes == len(labels):
        return list(labels)
    check_number("num_classes", num_classes, 0, 100_000)
    return [str(index) for index in range(num_classes)]
