"""A tiny Gemma-3n-like model: several residual streams, and upper layers that read the K and V of lower ones."""

from __future__ import annotations

from pathlib import Path

from support.blocks import EPS
from support.families import WINDOW
from support.gguf_builder import N_VOCAB, GGUFBuilder

N_LAYER = 22  # llama.cpp has the first 20 layers own K and V
N_EMBD, N_FF, N_SIDE, N_STREAM, RANK = 64, 96, 256, 4, 64


def write(path: Path) -> Path:
    b = GGUFBuilder("gemma3n")
    b.set(context_length=4096, embedding_length=N_EMBD, block_count=N_LAYER, feed_forward_length=N_FF)
    b.set(attention__layer_norm_rms_epsilon=EPS, attention__sliding_window=WINDOW, rope__freq_base=10000.0)
    b.set(attention__head_count=1, attention__head_count_kv=1)
    b.set(attention__key_length=N_EMBD, attention__value_length=N_EMBD)
    b.matrix("token_embd.weight", N_EMBD, N_VOCAB)
    b.matrix("altup_proj.weight", N_EMBD, N_EMBD, N_STREAM - 1)
    b.matrix("altup_unembd_proj.weight", N_EMBD, N_EMBD, N_STREAM - 1)
    b.matrix("per_layer_token_embd.weight", N_SIDE * N_LAYER, N_VOCAB)
    b.matrix("per_layer_model_proj.weight", N_EMBD, N_SIDE * N_LAYER)
    b.norm("per_layer_proj_norm.weight", N_SIDE)
    b.norm("output_norm.weight", N_EMBD)
    for il in range(N_LAYER):
        p = f"blk.{il}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            b.matrix(f"{p}{name}.weight", N_EMBD, N_EMBD)
        for name in ("attn", "attn_q", "attn_k", "post_attention", "ffn", "post_ffw", "altup_router", "laurel_post"):
            b.norm(f"{p}{name}_norm.weight", N_EMBD)
        b.norm(p + "post_norm.weight", N_EMBD)
        b.matrix(p + "ffn_gate.weight", N_EMBD, N_FF)
        b.matrix(p + "ffn_up.weight", N_EMBD, N_FF)
        b.matrix(p + "ffn_down.weight", N_FF, N_EMBD)
        b.matrix(p + "inp_gate.weight", N_EMBD, N_SIDE)
        b.matrix(p + "proj.weight", N_SIDE, N_EMBD)
        b.matrix(p + "altup_correct_coef.weight", N_STREAM, N_STREAM)
        b.matrix(p + "altup_predict_coef.weight", N_STREAM, N_STREAM**2)
        b.norm(p + "altup_correct_scale.weight", N_EMBD)
        b.matrix(p + "altup_router.weight", N_EMBD, N_STREAM)
        b.matrix(p + "laurel_l.weight", N_EMBD, RANK)
        b.matrix(p + "laurel_r.weight", RANK, N_EMBD)
    return b.write(path)
