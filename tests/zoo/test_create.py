"""Models by name."""

from __future__ import annotations

import huggingface_hub
import pytest
import torch

from ffn.zoo import WeightsError, create_model, save_weights


def test_what_is_no_model() -> None:
    for name, options, message in (
        ("tsm_r51", {}, "tsm_r50"),
        ("tsm.resnet51", {}, r"tsm\.resnet50"),
        ("tsm_tiny", {"num_classes": 0}, "num_classes is 0"),
        ("tsm_tiny", {"drop_path": 0.1}, "no argument drop_path"),
        ("tsm_tiny", {"pretrained": True}, "no argument pretrained"),
    ):
        with pytest.raises(ValueError, match=message):
            create_model(name, **options)


@pytest.mark.parametrize("name", ["tsm_r18", "tea_r50", "uniformer_s"])
def test_drop_path_reaches_the_last_block(name: str) -> None:
    rates = [
        m.drop_prob
        for m in create_model(name, drop_path=0.2).modules()
        if type(m).__name__ == "DropPath"
    ]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(0.2)
    assert len(set(rates)) > 3  # and rises from block to block


def test_pretrained_may_be_a_path_or_a_zoo_name(tmp_path, plain, plain_meta) -> None:
    path = tmp_path / "mine.safetensors"
    save_weights(plain, path, plain_meta)
    for start in (path, str(path)):
        model = create_model("tsm_tiny", num_classes=5, pretrained=start, width=8)
        assert torch.equal(model.net.conv1[0].weight, plain.net.conv1[0].weight)
        assert model.net.fc.out_features == 5

    with pytest.raises(FileNotFoundError, match=r"no file .*other\.pt"):
        create_model("tsm_tiny", pretrained=tmp_path / "other.pt")
    with pytest.raises(ValueError, match=r'no weights "tsm_tiny\.nothing" in the zoo'):
        create_model("tsm_tiny", pretrained="tsm_tiny.nothing")
    with pytest.raises(WeightsError, match="does not fit the model"):
        create_model("tea_tiny", num_classes=5, pretrained=path)


def test_start_weights_that_cannot_be_downloaded(tmp_path, monkeypatch) -> None:
    """timm's name of the file, and how to start without it; FFN_OFFLINE holds for timm too."""
    monkeypatch.setenv("FFN_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(WeightsError, match=r"tsm_r18: .*model\.weights=FILE"):
        create_model("tsm_r18", pretrained=True)
    assert huggingface_hub.constants.HF_HUB_OFFLINE

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no connection")

    monkeypatch.setattr("timm.models._builder.load_state_dict_from_hf", refuse)
    with pytest.raises(WeightsError, match=r"tsm_r18: .*no connection.*model\.weights=FILE"):
        create_model("tsm_r18", pretrained=True)
