"""The contract of `models/base.py` for one small model of every family of timm."""

from __future__ import annotations

import pytest
import torch

from models import InputShape, ModelError, SplitModel, build_model

pytest.importorskip("timm", reason="needs the extra timm")

FEATURE_DIM = 24

AT_32_PIXELS = (  # noqa: SIM905
    "botnet26t_256 test_byobnet cait_xxs24_224 coat_lite_tiny "
    "test_convnext cpubone_nano cs3darknet_focus_s "
    "cspnext_tiny davit_tiny deit_tiny_distilled_patch16_224 densenet121 dla46x_c dpn68 "
    "edgenext_xx_small efficientformerv2_s0 test_efficientnet "
    "efficientvit_b0 efficientvit_m0 fasternet_t0 fastvit_t8 "
    "focalnet_tiny_srf gcvit_xxtiny ghostnet_050 hardcorenas_a hgnetv2_b0 hiera_tiny_224 "
    "sam2_hiera_tiny hrnet_w18_small iformer_t inception_next_atto lcnetv2_small "
    "levit_128s lowformer_b0 test_mambaout test_maxvit poolformer_s12 gmlp_ti16_224 "
    "mobilenetv3_small_050 mobilenetv4_conv_small mobilevit_xxs mvitv2_tiny "
    "nest_tiny nextvit_small test_nfnet pit_ti_224 pvt_v2_b0 "
    "rdnet_tiny regnetx_002 repghostnet_050 repvit_m0_9 res2net50_26w_4s resnest14d test_resnet "
    "resnet18d resnetv2_18 rexnet_100 selecsls42 legacy_seresnet18 shvit_s1 "
    "skresnet18 starnet_s050 swiftformer_xs swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 "
    "swinv2_cr_tiny_224 tiny_vit_5m_224 tnt_s_patch16_224 tresnet_m twins_pcpvt_small "
    "visformer_tiny test_vit vit_tiny_patch16_224 vit_tiny_r_s16_p8_224 test_vit_relpos "
    "vitamin_small_224 volo_d1_224 ese_vovnet19b_slim_dw legacy_xception "
    "xception41 xcit_nano_12_p8_224"
).split()
ELSEWHERE = {
    "convmixer_768_32": 35,
    "crossvit_tiny_240": 240,
    "csatv2": 64,
    "efficientformer_l1": 224,
    "eva02_tiny_patch14_224": 42,
    "inception_v3": 84,
    "sequencer2d_s": 35,
}
"""The size to set for those that cannot be built at 32 pixels, or do not run."""
LARGE = (  # noqa: SIM905
    "beit_base_patch16_224 inception_resnet_v2 inception_v4 mobilenetv5_base "
    "naflexvit_base_patch16_siglip nasnetalarge samvit_base_patch16 vgg11"
).split()
"""Families without a small member: built without weights only, at a size that they take."""

CASES = [*((name, 32) for name in AT_32_PIXELS), *ELSEWHERE.items()]


def built(name: str, size: int) -> SplitModel:
    return build_model(f"timm/{name}", InputShape(3, size, 5), FEATURE_DIM, seed=0)


@pytest.mark.parametrize(("name", "size"), CASES, ids=[name for name, _ in CASES])
def test_a_family_fulfils_the_contract(name: str, size: int) -> None:
    model = built(name, size)
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    images.requires_grad_(True)
    logits = model(images)
    assert logits.shape == (2, 5)
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1])).backward()
    assert not [key for key, item in model.named_parameters() if item.grad is None]
    # No border of the images is cut off.
    for axes in ((0, 1, 2), (0, 1, 3)):
        assert int((images.grad.abs().sum(axes) > 0).sum()) >= size - 1  # a stride of 2 leaves one
    with torch.device("meta"):
        copy = built(name, size)
    assert all(item.is_meta for item in copy.parameters())
    copy.load_state_dict(model.state_dict(), assign=True)
    assert not [key for key, item in copy.named_buffers() if item.is_meta]
    with torch.no_grad():
        model.eval()
        features = model.features(images)
        assert features.shape == (2, FEATURE_DIM)
        assert model.backbone(images).shape == (2, model.raw_dim)
        torch.testing.assert_close(model.head(features), model(images))
        assert torch.equal(copy.eval()(images), model(images))


@pytest.mark.parametrize("name", LARGE)
def test_a_family_of_large_models_runs_without_weights(name: str) -> None:
    with torch.device("meta"):
        model = built(name, 224)
    assert model(torch.zeros(2, 3, 224, 224, device="meta")).shape == (2, 5)


@pytest.mark.parametrize("name", ["convmixer_768_32", "eva02_tiny_patch14_224", "inception_v3"])
def test_a_size_that_cannot_be_had_names_one_that_can(name: str) -> None:
    size = ELSEWHERE[name]
    with pytest.raises(ModelError, match=rf"timm/{name}' .*3x32x32 .*; set image-size={size}\b"):
        built(name, 32)
