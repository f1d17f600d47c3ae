"""Networks of timm and transformers, small ones without any download: one table.

Both libraries are the extra `zoo`. `missing` says what is not installed.
"""

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

IDS, MEL = (2, 12), (2, 16, 40)


@dataclass(frozen=True)
class LibraryModel:
    """A network of a library.

    Args:
        library: "timm" or "transformers".
        make: from the imported library.
        shape: of an input; ids of tokens if it has two axes.
        names: of the inputs if there are several, all with the same values; None for one by place.
        left: the fraction of parameters that half the units may leave.
    """

    library: str
    make: Callable[[Any], nn.Module]
    shape: tuple[int, ...] = (2, 3, 64, 64)
    names: tuple[str, ...] | None = None
    left: float = 0.35

    def build(self) -> tuple[nn.Module, Any]:
        """The network with random weights in eval mode, and an example."""
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            model = self.make(importlib.import_module(self.library)).eval()
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:  # some scales start at 0
                    nn.init.normal_(parameter, 0.0 if name.endswith("bias") else 1.0, 0.1)
            ids = len(self.shape) == 2
            x = torch.randint(1, 32, self.shape) if ids else torch.randn(self.shape)
        return model, x if self.names is None else dict.fromkeys(self.names, x)


def missing(library: str) -> bool:
    """Whether a library is not installed."""
    return importlib.util.find_spec(library) is None


def timm(name: str, size: int = 64, left: float = 0.35, **options: Any) -> LibraryModel:
    """A network of timm for ten classes of images of some size."""

    def make(library: Any) -> nn.Module:
        model: nn.Module = library.create_model(name, num_classes=10, **options)
        return model

    return LibraryModel("timm", make, (2, 3, size, size), left=left)


def hugging(
    model: str,
    config: str,
    shape: tuple[int, ...] = IDS,
    names: tuple[str, ...] | None = None,
    left: float = 0.35,
    **options: Any,
) -> LibraryModel:
    """A network of transformers from the names of its classes and the options of its config."""

    def make(library: Any) -> nn.Module:
        made: nn.Module = getattr(library, model)(getattr(library, config)(**options))
        return made

    return LibraryModel("transformers", make, shape, names, left)


_SIZES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
_TEXT: dict[str, Any] = {**_SIZES, "vocab_size": 32, "max_position_embeddings": 32}
_T5: dict[str, Any] = {
    "vocab_size": 32, "d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 4, "d_kv": 8,
    "decoder_start_token_id": 0,
}  # fmt: skip
_WHISPER: dict[str, Any] = {
    "vocab_size": 64, "d_model": 32, "encoder_layers": 2, "decoder_layers": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "num_mel_bins": 16, "max_source_positions": 20, "pad_token_id": 0,
    "bos_token_id": 0, "eos_token_id": 0, "decoder_start_token_id": 0, "num_labels": 3,
    "classifier_proj_size": 16,
}  # fmt: skip
_SMALL_VIT: dict[str, Any] = {"img_size": 64, "depth": 3, "embed_dim": 64, "num_heads": 4}
_THIN = (16, 16, 32, 32)
LIBRARY_MODELS: dict[str, LibraryModel] = {
    "timm resnet18, thin": timm("resnet18", channels=_THIN),
    "timm resnet50, thin": timm("resnet50", channels=_THIN),
    "timm resnetv2_50d_gn, thin": timm(
        "resnetv2_50d_gn", layers=(1, 1, 1, 1), channels=(128, 128, 128, 128)
    ),
    "timm mobilenetv3_small_100": timm("mobilenetv3_small_100"),
    "timm efficientnet_b0": timm("efficientnet_b0"),
    "timm regnety_002": timm("regnety_002"),
    "timm repvgg_a0": timm("repvgg_a0"),
    "timm densenet121, thin": timm(
        "densenet121", growth_rate=8, block_config=(2, 2, 2, 2)
    ),
    "timm ghostnet_100": timm("ghostnet_100"),
    "timm convnext_atto, thin": timm(
        "convnext_atto", depths=(1, 1, 1, 1), dims=(16, 32, 32, 64)
    ),
    "timm vit_tiny, 3 blocks": timm("vit_tiny_patch16_224", **_SMALL_VIT),
    "timm deit_tiny, 3 blocks": timm("deit_tiny_patch16_224", **_SMALL_VIT),
    "timm swin_tiny, narrow": timm(
        "swin_tiny_patch4_window7_224", 112, img_size=112, embed_dim=24, depths=(2, 2, 2, 1)
    ),
    "timm mixer_s32": timm("mixer_s32_224", img_size=64, left=0.6),
    "transformers BERT": hugging("BertForSequenceClassification", "BertConfig", **_TEXT),
    "transformers GPT-2": hugging(
        "GPT2LMHeadModel", "GPT2Config", vocab_size=32, n_embd=32, n_layer=2, n_head=4,
        n_positions=32, bos_token_id=0, eos_token_id=0,
    ),
    "transformers Llama": hugging(
        "LlamaForCausalLM", "LlamaConfig", **_TEXT, num_key_value_heads=2
    ),
    "transformers T5": hugging(
        "T5ForConditionalGeneration", "T5Config", IDS, ("input_ids", "decoder_input_ids"), **_T5
    ),
    "transformers T5 v1.1": hugging(
        "T5ForConditionalGeneration", "T5Config", IDS, ("input_ids", "decoder_input_ids"), **_T5,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False,
    ),
    "transformers ViT": hugging(
        "ViTForImageClassification", "ViTConfig", (2, 3, 32, 32), left=0.4, **_SIZES,
        image_size=32, patch_size=8, num_labels=3,
    ),
    "transformers Swin": hugging(
        "SwinForImageClassification", "SwinConfig", (2, 3, 32, 32), image_size=32, patch_size=2,
        embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=3,
    ),
    "transformers Whisper encoder": hugging(
        "WhisperForAudioClassification", "WhisperConfig", MEL, left=0.5, **_WHISPER
    ),
}  # fmt: skip
