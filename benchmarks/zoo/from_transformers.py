"""Architectures of `transformers`, as their constructors give them from small configurations.

Nothing is switched off for us: caches, dropout, layer drop and the attention that the
configuration chooses are those of `Model(config).train()`. The loss is the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Values = dict[str, Any]
Options = Mapping[str, Any]

VOCAB, TOKENS, BATCH = 61, 12, 2

TEXT: Options = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED: Options = {**TEXT, "num_key_value_heads": 2}
HEADS: Options = {**GROUPED, "head_dim": 8}
PLACES_FROM_2: Options = {**TEXT, "max_position_embeddings": 40, "pad_token_id": 1}
EXPERTS: Options = {**GROUPED, "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
OF_EXPERTS: Options = {**EXPERTS, "moe_intermediate_size": 16}
PAIR: Options = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
T5: Options = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "pad_token_id": 0,
    "decoder_start_token_id": 0,
}
VISION: Options = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 4,
    "num_labels": 5,
}
STAGES: Options = {"num_labels": 5, "image_size": 32}
SWIN: Options = {
    **STAGES,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [1, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
SPEECH: Options = {
    "vocab_size": 12,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "conv_dim": (16, 16),
    "conv_stride": (5, 4),
    "conv_kernel": (10, 8),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}


def _ids(length: int = TOKENS) -> Tensor:
    return torch.randint(3, VOCAB, (BATCH, length))


def _text() -> Values:
    ids = _ids()
    return {"input_ids": ids, "labels": ids.clone()}


def _padded_text() -> Values:
    """Text whose first row ends in padding, with the mask that says so."""
    ids, mask = _ids(), torch.ones(BATCH, TOKENS, dtype=torch.long)
    ids[0, -3:], mask[0, -3:] = 0, 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def _pair() -> Values:
    return {"input_ids": _ids(), "labels": _ids(8)}


def _image(side: int = 16) -> Callable[[], Values]:
    return lambda: {
        "pixel_values": torch.randn(BATCH, 3, side, side),
        "labels": torch.randint(0, 5, (BATCH,)),
    }


def _segments(side: int = 32) -> Callable[[], Values]:
    return lambda: {
        "pixel_values": torch.randn(BATCH, 3, side, side),
        "labels": torch.randint(0, 5, (BATCH, side, side)),
    }


def _autoencoded() -> Values:
    return {"pixel_values": torch.randn(BATCH, 3, 16, 16)}


def _video() -> Values:
    return {
        "pixel_values": torch.randn(BATCH, 4, 3, 16, 16),
        "labels": torch.randint(0, 5, (BATCH,)),
    }


def _speech() -> Values:
    return {"input_values": torch.randn(BATCH, 2000), "labels": torch.randint(1, 12, (BATCH, 6))}


def _whisper() -> Values:
    return {"input_features": torch.randn(BATCH, 16, 24), "labels": _ids(8)}


def _spectrogram() -> Values:
    return {"input_values": torch.randn(BATCH, 24, 16), "labels": torch.randint(0, 5, (BATCH,))}


def _image_and_text() -> Values:
    return {
        "input_ids": _ids(),
        "attention_mask": torch.ones(BATCH, TOKENS, dtype=torch.long),
        "pixel_values": torch.randn(BATCH, 3, 16, 16),
        "return_loss": True,
    }


def _series() -> Values:
    return {"past_values": torch.randn(BATCH, 32, 3), "future_values": torch.randn(BATCH, 8, 3)}


def _boxes() -> Values:
    targets = [
        {
            "class_labels": torch.randint(0, 5, (count,)),
            "boxes": torch.rand(count, 4) * 0.4 + 0.3,
        }
        for count in (2, 3)
    ]
    return {"pixel_values": torch.randn(BATCH, 3, 64, 64), "labels": targets}


def _classes() -> Values:
    return {"input_ids": _ids(), "labels": torch.randint(0, 2, (BATCH,))}


def _answers() -> Values:
    return {
        "input_ids": _ids(),
        "start_positions": torch.tensor([1, 2]),
        "end_positions": torch.tensor([3, 5]),
    }


def _tags() -> Values:
    return {"input_ids": _ids(), "labels": torch.randint(0, 2, (BATCH, TOKENS))}


def _states() -> Values:
    return {
        "states": torch.randn(BATCH, 6, 5),
        "actions": torch.randn(BATCH, 6, 3),
        "rewards": torch.randn(BATCH, 6, 1),
        "returns_to_go": torch.randn(BATCH, 6, 1),
        "timesteps": torch.arange(6).expand(BATCH, 6),
        "attention_mask": torch.ones(BATCH, 6, dtype=torch.long),
    }


def _resnet_backbone(transformers: Any) -> Any:
    return transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16],
        depths=[1, 1],
        layer_type="basic",
        out_features=["stage2"],
    )


def _clip(transformers: Any) -> Any:
    return transformers.CLIPConfig(
        text_config=dict(TEXT), vision_config=dict(VISION), projection_dim=16
    )


def _siglip(transformers: Any) -> Any:
    return transformers.SiglipConfig(text_config={**TEXT}, vision_config=dict(VISION))


def _detr(transformers: Any) -> Any:
    return transformers.DetrConfig(
        **{
            k: v
            for k, v in PAIR.items()
            if "token" not in k and "vocab" not in k and "max" not in k
        },
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=_resnet_backbone(transformers),
        num_queries=6,
        num_labels=5,
    )


def _llava(transformers: Any) -> Any:
    return transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION),
        text_config=transformers.LlamaConfig(**GROUPED),
        image_token_index=3,
        vision_feature_layer=-1,
    )


def _image_in_text() -> Values:
    ids = torch.randint(4, VOCAB, (BATCH, 24))
    ids[:, 1:17] = 3
    return {"input_ids": ids, "pixel_values": torch.randn(BATCH, 3, 16, 16), "labels": ids.clone()}


Config = Options | Callable[[Any], Any]

ARCHITECTURES: Mapping[str, tuple[str, Callable[[], Values], Config]] = {
    # Causal language models.
    "arcee": ("ArceeForCausalLM", _text, GROUPED),
    "biogpt": ("BioGptForCausalLM", _text, TEXT),
    "bloom": ("BloomForCausalLM", _text, {**TEXT, "n_head": 4}),
    "codegen": (
        "CodeGenForCausalLM",
        _text,
        {
            "vocab_size": VOCAB,
            "n_positions": 32,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "rotary_dim": 4,
        },
    ),
    "cohere": ("CohereForCausalLM", _text, GROUPED),
    "ctrl": (
        "CTRLLMHeadModel",
        _text,
        {
            "vocab_size": VOCAB,
            "n_positions": 32,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "dff": 64,
        },
    ),
    "deepseek-v3": (
        "DeepseekV3ForCausalLM",
        _text,
        {
            **GROUPED,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "kv_lora_rank": 8,
            "q_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4,
            "v_head_dim": 8,
            "first_k_dense_replace": 1,
        },
    ),
    "diffllama": ("DiffLlamaForCausalLM", _text, GROUPED),
    "exaone4": ("Exaone4ForCausalLM", _text, GROUPED),
    "falcon": ("FalconForCausalLM", _text, {**TEXT, "num_kv_heads": 2}),
    "gemma": ("GemmaForCausalLM", _text, HEADS),
    "gemma2": ("Gemma2ForCausalLM", _text, HEADS),
    "gemma3": ("Gemma3ForCausalLM", _text, HEADS),
    "glm": ("GlmForCausalLM", _text, HEADS),
    "glm4": ("Glm4ForCausalLM", _text, HEADS),
    "gpt2": ("GPT2LMHeadModel", _text, TEXT),
    "gpt-bigcode": ("GPTBigCodeForCausalLM", _text, TEXT),
    "gpt-neo": (
        "GPTNeoForCausalLM",
        _text,
        {**TEXT, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]]},
    ),
    "gpt-neox": ("GPTNeoXForCausalLM", _text, TEXT),
    "gpt-oss": ("GptOssForCausalLM", _text, {**EXPERTS, "head_dim": 8}),
    "gptj": ("GPTJForCausalLM", _text, {**TEXT, "rotary_dim": 4}),
    "granite": ("GraniteForCausalLM", _text, GROUPED),
    "granite-moe": ("GraniteMoeForCausalLM", _text, EXPERTS),
    "helium": ("HeliumForCausalLM", _text, HEADS),
    "llama": ("LlamaForCausalLM", _text, GROUPED),
    "mamba": ("MambaForCausalLM", _text, {**TEXT, "state_size": 4, "time_step_rank": 4}),
    "minicpm3": (
        "MiniCPM3ForCausalLM",
        _text,
        {**TEXT, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4},
    ),
    "mistral": ("MistralForCausalLM", _padded_text, GROUPED),
    "mixtral": ("MixtralForCausalLM", _text, EXPERTS),
    "mpt": (
        "MptForCausalLM",
        _text,
        {"vocab_size": VOCAB, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 32},
    ),
    "nemotron": ("NemotronForCausalLM", _text, GROUPED),
    "olmo": ("OlmoForCausalLM", _text, GROUPED),
    "olmo2": ("Olmo2ForCausalLM", _text, GROUPED),
    "olmoe": ("OlmoeForCausalLM", _text, EXPERTS),
    "openai-gpt": ("OpenAIGPTLMHeadModel", _text, {**TEXT, "n_positions": 32}),
    "opt": ("OPTForCausalLM", _padded_text, {**TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "persimmon": ("PersimmonForCausalLM", _text, TEXT),
    "phi": ("PhiForCausalLM", _text, TEXT),
    "phi3": ("Phi3ForCausalLM", _text, GROUPED),
    "qwen2": ("Qwen2ForCausalLM", _padded_text, GROUPED),
    "qwen2-moe": (
        "Qwen2MoeForCausalLM",
        _text,
        {**OF_EXPERTS, "shared_expert_intermediate_size": 16},
    ),
    "qwen3": ("Qwen3ForCausalLM", _text, HEADS),
    "qwen3-moe": ("Qwen3MoeForCausalLM", _text, {**OF_EXPERTS, "head_dim": 8}),
    "smollm3": ("SmolLM3ForCausalLM", _text, GROUPED),
    "stablelm": ("StableLmForCausalLM", _text, GROUPED),
    "starcoder2": ("Starcoder2ForCausalLM", _text, GROUPED),
    "xglm": (
        "XGLMForCausalLM",
        _text,
        {**TEXT, "d_model": 32, "ffn_dim": 64, "num_layers": 2, "attention_heads": 4},
    ),
    # Encoders of text.
    "albert": ("AlbertForMaskedLM", _text, {**TEXT, "embedding_size": 16}),
    "bert": ("BertForMaskedLM", _padded_text, TEXT),
    "camembert": ("CamembertForTokenClassification", _tags, PLACES_FROM_2),
    "convbert": ("ConvBertForMaskedLM", _text, {**TEXT, "embedding_size": 16}),
    "deberta": (
        "DebertaForMaskedLM",
        _text,
        {**TEXT, "pos_att_type": ["c2p", "p2c"], "relative_attention": True},
    ),
    "deberta-v2": (
        "DebertaV2ForMaskedLM",
        _text,
        {**TEXT, "pos_att_type": ["c2p", "p2c"], "relative_attention": True},
    ),
    "distilbert": (
        "DistilBertForQuestionAnswering",
        _answers,
        {"vocab_size": VOCAB, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    ),
    "electra": ("ElectraForSequenceClassification", _classes, {**TEXT, "embedding_size": 16}),
    "esm": (
        "EsmForMaskedLM",
        _text,
        {**TEXT, "mask_token_id": 4, "pad_token_id": 1, "position_embedding_type": "rotary"},
    ),
    "fnet": ("FNetForMaskedLM", _text, TEXT),
    "funnel": (
        "FunnelForMaskedLM",
        _text,
        {
            "vocab_size": VOCAB,
            "block_sizes": [1, 1],
            "d_model": 32,
            "n_head": 4,
            "d_head": 8,
            "d_inner": 64,
        },
    ),
    "layoutlm": ("LayoutLMForMaskedLM", _text, {**TEXT, "max_2d_position_embeddings": 64}),
    "longformer": ("LongformerForMaskedLM", _text, {**PLACES_FROM_2, "attention_window": [4, 4]}),
    "mobilebert": (
        "MobileBertForMaskedLM",
        _text,
        {
            **TEXT,
            "embedding_size": 16,
            "intra_bottleneck_size": 16,
            "true_hidden_size": 16,
            "hidden_size": 32,
        },
    ),
    "modernbert": ("ModernBertForMaskedLM", _text, TEXT),
    "mpnet": ("MPNetForMaskedLM", _text, PLACES_FROM_2),
    "nystromformer": (
        "NystromformerForMaskedLM",
        _text,
        {**TEXT, "num_landmarks": 4, "segment_means_seq_len": 12},
    ),
    "rembert": (
        "RemBertForMaskedLM",
        _text,
        {**TEXT, "input_embedding_size": 16, "output_embedding_size": 16},
    ),
    "roberta": ("RobertaForMaskedLM", _text, PLACES_FROM_2),
    "roformer": ("RoFormerForMaskedLM", _text, TEXT),
    "squeezebert": ("SqueezeBertForMaskedLM", _text, {**TEXT, "embedding_size": 32}),
    "xlm-roberta": ("XLMRobertaForMaskedLM", _text, PLACES_FROM_2),
    "xlnet": (
        "XLNetLMHeadModel",
        _text,
        {"vocab_size": VOCAB, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    ),
    # From text to text.
    "bart": ("BartForConditionalGeneration", _pair, PAIR),
    "blenderbot": ("BlenderbotForConditionalGeneration", _pair, PAIR),
    "led": (
        "LEDForConditionalGeneration",
        _pair,
        {
            **PAIR,
            "attention_window": 4,
            "max_encoder_position_embeddings": 32,
            "max_decoder_position_embeddings": 32,
        },
    ),
    "m2m-100": ("M2M100ForConditionalGeneration", _pair, PAIR),
    "marian": ("MarianMTModel", _pair, PAIR),
    "mbart": ("MBartForConditionalGeneration", _pair, PAIR),
    "mt5": ("MT5ForConditionalGeneration", _pair, T5),
    "pegasus": ("PegasusForConditionalGeneration", _pair, PAIR),
    "switch-transformers": (
        "SwitchTransformersForConditionalGeneration",
        _pair,
        {**T5, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    ),
    "t5": ("T5ForConditionalGeneration", _pair, T5),
    # Images and video.
    "beit": ("BeitForImageClassification", _image(), VISION),
    "bit": (
        "BitForImageClassification",
        _image(32),
        {
            "num_labels": 5,
            "embedding_size": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "num_groups": 2,
        },
    ),
    "convnext": (
        "ConvNextForImageClassification",
        _image(32),
        {**STAGES, "hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 2, 1], "drop_path_rate": 0.1},
    ),
    "convnextv2": (
        "ConvNextV2ForImageClassification",
        _image(32),
        {**STAGES, "hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 2, 1]},
    ),
    "cvt": (
        "CvtForImageClassification",
        _image(32),
        {"num_labels": 5, "embed_dim": [16, 16, 32], "num_heads": [1, 2, 4], "depth": [1, 2, 3]},
    ),
    "deit": ("DeiTForImageClassification", _image(), VISION),
    "dinov2": ("Dinov2ForImageClassification", _image(), VISION),
    "dpt": (
        "DPTForSemanticSegmentation",
        _segments(),
        {
            **VISION,
            "image_size": 32,
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 8, 8, 8],
            "fusion_hidden_size": 8,
            "is_hybrid": False,
            "hidden_act": "gelu",
        },
    ),
    "efficientnet": (
        "EfficientNetForImageClassification",
        _image(32),
        {
            "num_labels": 5,
            "image_size": 32,
            "width_coefficient": 0.25,
            "depth_coefficient": 0.25,
            "hidden_dim": 320,
        },
    ),
    "focalnet": (
        "FocalNetForImageClassification",
        _image(32),
        {
            **STAGES,
            "patch_size": 2,
            "embed_dim": 16,
            "hidden_sizes": [16, 32],
            "depths": [1, 1],
            "focal_levels": [2, 2],
            "focal_windows": [3, 3],
        },
    ),
    # Its last token begins an image, and is never one to be guessed.
    "imagegpt": (
        "ImageGPTForCausalImageModeling",
        _text,
        {**TEXT, "vocab_size": VOCAB + 1, "n_positions": 32},
    ),
    "levit": (
        "LevitForImageClassification",
        _image(64),
        {
            "num_labels": 5,
            "image_size": 64,
            "hidden_sizes": [16, 32, 48],
            "num_attention_heads": [2, 2, 2],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
        },
    ),
    "mobilenet-v1": (
        "MobileNetV1ForImageClassification",
        _image(32),
        {**STAGES, "depth_multiplier": 0.25},
    ),
    "mobilenet-v2": (
        "MobileNetV2ForImageClassification",
        _image(32),
        {**STAGES, "depth_multiplier": 0.35},
    ),
    "mobilevit": (
        "MobileViTForImageClassification",
        _image(32),
        {
            **STAGES,
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 32],
            "num_attention_heads": 4,
        },
    ),
    "poolformer": (
        "PoolFormerForImageClassification",
        _image(32),
        {"num_labels": 5, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    ),
    "pvt": (
        "PvtForImageClassification",
        _image(32),
        {
            **STAGES,
            "hidden_sizes": [8, 8, 16, 16],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 1, 2, 2],
            "sequence_reduction_ratios": [2, 2, 1, 1],
        },
    ),
    "regnet": (
        "RegNetForImageClassification",
        _image(32),
        {
            "num_labels": 5,
            "embedding_size": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "groups_width": 4,
        },
    ),
    "resnet": (
        "ResNetForImageClassification",
        _image(32),
        {
            "num_labels": 5,
            "embedding_size": 8,
            "hidden_sizes": [8, 16],
            "depths": [1, 1],
            "layer_type": "basic",
        },
    ),
    "segformer": (
        "SegformerForSemanticSegmentation",
        _segments(),
        {
            "num_labels": 5,
            "depths": [1, 1, 1, 1],
            "hidden_sizes": [8, 8, 16, 16],
            "num_attention_heads": [1, 1, 2, 2],
            "decoder_hidden_size": 16,
            "sr_ratios": [2, 2, 1, 1],
        },
    ),
    "swin": ("SwinForImageClassification", _image(32), SWIN),
    "swinv2": ("Swinv2ForImageClassification", _image(32), SWIN),
    "timesformer": ("TimesformerForVideoClassification", _video, {**VISION, "num_frames": 4}),
    "upernet": (
        "UperNetForSemanticSegmentation",
        _segments(64),
        lambda t: t.UperNetConfig(
            backbone_config=t.ConvNextConfig(
                hidden_sizes=[8, 8, 16, 16],
                depths=[1, 1, 1, 1],
                out_features=["stage1", "stage2", "stage3", "stage4"],
            ),
            hidden_size=16,
            num_labels=5,
            use_auxiliary_head=False,
            auxiliary_in_channels=16,
        ),
    ),
    "videomae": ("VideoMAEForVideoClassification", _video, {**VISION, "num_frames": 4}),
    "vit": ("ViTForImageClassification", _image(), VISION),
    "vit-mae": (
        "ViTMAEForPreTraining",
        _autoencoded,
        {
            **VISION,
            "decoder_num_attention_heads": 4,
            "decoder_hidden_size": 32,
            "decoder_num_hidden_layers": 1,
            "decoder_intermediate_size": 64,
        },
    ),
    "yolos": (
        "YolosForObjectDetection",
        _boxes,
        {**VISION, "image_size": [64, 64], "patch_size": 16, "num_detection_tokens": 6},
    ),
    "detr": ("DetrForObjectDetection", _boxes, _detr),
    # Sound, several kinds at once, and the rest.
    "ast": (
        "ASTForAudioClassification",
        _spectrogram,
        {
            **{k: v for k, v in VISION.items() if k != "image_size"},
            "max_length": 24,
            "num_mel_bins": 16,
            "frequency_stride": 4,
            "time_stride": 4,
        },
    ),
    "hubert": ("HubertForCTC", _speech, SPEECH),
    "wav2vec2": ("Wav2Vec2ForCTC", _speech, SPEECH),
    "whisper": (
        "WhisperForConditionalGeneration",
        _whisper,
        {**PAIR, "num_mel_bins": 16, "max_source_positions": 12, "max_target_positions": 16},
    ),
    "clip": ("CLIPModel", _image_and_text, _clip),
    "siglip": ("SiglipModel", _image_and_text, _siglip),
    "llava": ("LlavaForConditionalGeneration", _image_in_text, _llava),
    "decision-transformer": (
        "DecisionTransformerModel",
        _states,
        {
            "state_dim": 5,
            "act_dim": 3,
            "hidden_size": 32,
            "max_ep_len": 8,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 32,
        },
    ),
    "patchtst": (
        "PatchTSTForPrediction",
        _series,
        {
            "num_input_channels": 3,
            "context_length": 32,
            "patch_length": 8,
            "patch_stride": 8,
            "d_model": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 64,
            "prediction_length": 8,
        },
    ),
}


def make(name: str) -> tuple[nn.Module, Values]:
    """The model in train mode, and its arguments by name."""
    import transformers

    kind, values, config = ARCHITECTURES[name]
    model_class = getattr(transformers, kind)
    made = config(transformers) if callable(config) else model_class.config_class(**config)
    return model_class(made).train(), values()
