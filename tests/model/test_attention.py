import timm

from fer_vit.model.attention import use_fused_attention


def test_switches_every_layer_and_tells_what_was() -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=3)
    model.blocks[1].attn.fused_attn = False
    before = use_fused_attention(model, fused=False)
    assert before == {"blocks.0.attn": True, "blocks.1.attn": False, "blocks.2.attn": True}
    assert not any(block.attn.fused_attn for block in model.blocks)
