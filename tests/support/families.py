"""One tiny model per family of architectures: what it stores per layer, and which projections feed that memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.blocks import Shape, attention, common, experts, ffn, heads, mamba2_block
from support.gguf_builder import N_VOCAB, GGUFBuilder

WINDOW = 48  # above one ubatch, below the shortest long prompt

Sites = dict[int, tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Family(Shape):
    """A tiny model.

    Attributes
    ----------
    build
        Adds metadata and tensors, returns for each layer that writes memory the projections that feed the write.
    split
        The split that the tests use.
    recurrent
        The memory holds a recurrent state, which llama.cpp cannot roll back to an arbitrary position.
    windowed
        The memory drops cells that have left the attention window.
    """

    name: str
    build: Callable[[GGUFBuilder, Family], Sites]
    split: int = 3
    recurrent: bool = False
    windowed: bool = False

    def sites(self) -> Sites:
        """Projections per memory-writing layer."""
        return self.build(GGUFBuilder(self.arch), self)

    def write(self, path: Path, seed: int = 0) -> Path:
        builder = GGUFBuilder(self.arch, seed)
        self.build(builder, self)
        return builder.write(path)


def _llama(b: GGUFBuilder, f: Family) -> Sites:
    common(b, f)
    heads(b, f)
    sites: Sites = {}
    for il in range(f.n_layer):
        sites[il] = attention(b, f, il, bias=f.arch == "qwen2", qk_norm=1.6 if f.arch == "qwen3" else 0.0)
        experts(b, f, il) if f.name == "llama-moe" else ffn(b, f, il)
    return sites


def _gemma3(b: GGUFBuilder, f: Family) -> Sites:
    common(b, f)
    heads(b, f)
    b.set(attention__sliding_window=WINDOW, attention__sliding_window_pattern=3, rope__freq_base_swa=1000.0)
    sites: Sites = {}
    for il in range(f.n_layer):
        sites[il] = attention(b, f, il, qk_norm=1.6)
        b.norm(f"blk.{il}.post_attention_norm.weight", f.n_embd)
        ffn(b, f, il)
        b.norm(f"blk.{il}.post_ffw_norm.weight", f.n_embd)
    return sites


def _gemma4(b: GGUFBuilder, f: Family) -> Sites:
    """The last layers have no K and V of their own, each layer gets an input from the token itself."""
    n_shared, n_side, head_swa = 2, 32, 32
    swa = [il % 2 == 0 for il in range(f.n_layer)]
    common(b, f)
    heads(b, f)
    b.set(attention__sliding_window=WINDOW, attention__sliding_window_pattern=swa, rope__freq_base_swa=1000.0)
    b.set(attention__key_length_swa=head_swa, attention__value_length_swa=head_swa, rope__dimension_count_swa=head_swa)
    b.set(attention__shared_kv_layers=n_shared, embedding_length_per_layer_input=n_side)
    b.norm("rope_freqs.weight", f.head // 2)
    b.matrix("per_layer_token_embd.weight", n_side * f.n_layer, N_VOCAB, gain=f.n_layer**0.5)
    b.matrix("per_layer_model_proj.weight", f.n_embd, n_side * f.n_layer)
    b.norm("per_layer_proj_norm.weight", n_side)
    sites: Sites = {}
    for il in range(f.n_layer):
        p, kv = f"blk.{il}.", il < f.n_layer - n_shared
        names = attention(b, f, il, qk_norm=0.6, head=head_swa if swa[il] else f.head, kv=kv)
        if kv:
            sites[il] = names
        b.norm(p + "post_attention_norm.weight", f.n_embd)
        ffn(b, f, il)
        b.norm(p + "post_ffw_norm.weight", f.n_embd)
        b.matrix(p + "inp_gate.weight", f.n_embd, n_side)
        b.matrix(p + "proj.weight", n_side, f.n_embd)
        b.norm(p + "post_norm.weight", f.n_embd)
    return sites


def _gpt_oss(b: GGUFBuilder, f: Family) -> Sites:
    common(b, f)
    heads(b, f)
    b.set(attention__sliding_window=WINDOW)
    sites: Sites = {}
    for il in range(f.n_layer):
        sites[il] = attention(b, f, il, bias=True)
        b.bias(f"blk.{il}.attn_output.bias", f.n_embd)
        b.bias(f"blk.{il}.attn_sinks.weight", f.n_head, scale=1.0)
        experts(b, f, il, norm="post_attention_norm.weight", bias=True)
    return sites


def _deepseek2(b: GGUFBuilder, f: Family) -> Sites:
    """Multi-head latent attention: one compressed row per token serves as both K and V."""
    rank, rot, nope, head_v = 64, 32, 32, 32
    common(b, f)
    b.set(attention__head_count=f.n_head, attention__head_count_kv=1, rope__dimension_count=rot)
    b.set(attention__key_length=rank + rot, attention__value_length=rank)
    b.set(attention__key_length_mla=nope + rot, attention__value_length_mla=head_v)
    b.set(attention__q_lora_rank=rank, attention__kv_lora_rank=rank)
    b.set(leading_dense_block_count=1, expert_shared_count=1, expert_gating_func=2, expert_weights_scale=1.0)
    for il in range(f.n_layer):
        p = f"blk.{il}."
        b.norm(p + "attn_norm.weight", f.n_embd)
        b.matrix(p + "attn_q_a.weight", f.n_embd, rank)
        b.norm(p + "attn_q_a_norm.weight", rank)
        b.matrix(p + "attn_q_b.weight", rank, f.n_head * (nope + rot), gain=1.6)
        b.matrix(p + "attn_kv_a_mqa.weight", f.n_embd, rank + rot, gain=1.6)
        b.norm(p + "attn_kv_a_norm.weight", rank)
        b.matrix(p + "attn_k_b.weight", nope, rank, f.n_head)
        b.matrix(p + "attn_v_b.weight", rank, head_v, f.n_head)
        b.matrix(p + "attn_output.weight", f.n_head * head_v, f.n_embd)
        if il == 0:
            ffn(b, f, il)
        else:
            experts(b, f, il, n_shared=f.n_ff)
            b.bias(p + "exp_probs_b.bias", 4)
    return {il: ("attn_kv_a_mqa",) for il in range(f.n_layer)}


def _delta_net(b: GGUFBuilder, f: Family) -> Sites:
    """Gated delta-net layers with a full-attention layer after each."""
    state, n_k, n_v, kernel = 32, 2, 4, 4
    n_value, n_conv = n_v * state, 2 * n_k * state + n_v * state
    common(b, f)
    heads(b, f)
    b.set(full_attention_interval=2, ssm__conv_kernel=kernel, ssm__inner_size=n_value, ssm__state_size=state)
    b.set(ssm__time_step_rank=n_v, ssm__group_count=n_k, rope__dimension_count=32)
    if f.arch != "qwen3next":
        b.set(rope__dimension_sections=[6, 5, 5, 0])
    if f.arch != "qwen35":
        b.set(expert_shared_feed_forward_length=f.n_ff)
    fused = f.arch == "qwen3next"  # one projection for beta and alpha
    sites: Sites = {}
    for il in range(f.n_layer):
        p = f"blk.{il}."
        if il % 2:
            sites[il] = attention(b, f, il, qk_norm=1.6, gated=True)
        else:
            b.norm(p + "attn_norm.weight", f.n_embd)
            b.matrix(p + "attn_qkv.weight", f.n_embd, n_conv)
            b.matrix(p + "attn_gate.weight", f.n_embd, n_value)
            b.matrix(p + "ssm_conv1d.weight", kernel, n_conv)
            b.bias(p + "ssm_dt.bias", n_v)
            b.bias(p + "ssm_a", n_v, mean=-0.05, scale=0.01)  # slow decay: the state outlives the tail
            if fused:
                b.matrix(p + "ssm_ba.weight", f.n_embd, 2 * n_v)
            else:
                b.matrix(p + "ssm_beta.weight", f.n_embd, n_v)
                b.matrix(p + "ssm_alpha.weight", f.n_embd, n_v)
            b.norm(p + "ssm_norm.weight", state)
            b.matrix(p + "ssm_out.weight", n_value, f.n_embd)
            sites[il] = ("attn_qkv", "ssm_ba") if fused else ("attn_qkv", "ssm_beta", "ssm_alpha")
        if f.arch == "qwen35":
            ffn(b, f, il, norm="post_attention_norm.weight")
        else:
            experts(b, f, il, norm="post_attention_norm.weight", n_shared=f.n_ff, shared_gate=True)
    return sites


def _lfm2(b: GGUFBuilder, f: Family) -> Sites:
    """Short convolutions with an attention layer after every second one."""
    n_cache = 3
    attn = [il % 3 == 2 for il in range(f.n_layer)]
    common(b, f, output_norm="token_embd_norm")
    heads(b, f, [f.n_head_kv if a else 0 for a in attn])
    b.set(shortconv__l_cache=n_cache)
    if f.windowed:
        b.set(attention__sliding_window=WINDOW)
    sites: Sites = {}
    for il in range(f.n_layer):
        p = f"blk.{il}."
        if attn[il]:
            sites[il] = attention(b, f, il, qk_norm=1.6)
        else:
            b.norm(p + "attn_norm.weight", f.n_embd)
            b.matrix(p + "shortconv.in_proj.weight", f.n_embd, 3 * f.n_embd)
            b.matrix(p + "shortconv.conv.weight", n_cache, f.n_embd)
            b.matrix(p + "shortconv.out_proj.weight", f.n_embd, f.n_embd)
            sites[il] = ("shortconv.in_proj",)
        ffn(b, f, il)
    return sites


def _mamba2(b: GGUFBuilder, f: Family) -> Sites:
    common(b, f)
    for il in range(f.n_layer):
        b.norm(f"blk.{il}.attn_norm.weight", f.n_embd)
        mamba2_block(b, f, il)
    return {il: ("ssm_in",) for il in range(f.n_layer)}


def _falcon_h1(b: GGUFBuilder, f: Family) -> Sites:
    """Attention and a state-space block side by side in every layer."""
    common(b, f)
    heads(b, f)
    for il in range(f.n_layer):
        attention(b, f, il)
        mamba2_block(b, f, il)
        ffn(b, f, il, norm="ffn_norm")
    return {il: ("ssm_in", "attn_k", "attn_v") for il in range(f.n_layer)}


def _jamba(b: GGUFBuilder, f: Family) -> Sites:
    """Mamba layers with an attention layer after every second one."""
    n_inner, state, rank, kernel = 2 * f.n_embd, 16, 8, 4
    attn = [il % 3 == 2 for il in range(f.n_layer)]
    common(b, f)
    heads(b, f, [f.n_head_kv if a else 0 for a in attn])
    b.set(ssm__inner_size=n_inner, ssm__state_size=state, ssm__time_step_rank=rank, ssm__conv_kernel=kernel)
    sites: Sites = {}
    for il in range(f.n_layer):
        p = f"blk.{il}."
        if attn[il]:
            sites[il] = attention(b, f, il)
        else:
            b.norm(p + "attn_norm.weight", f.n_embd)
            b.matrix(p + "ssm_in.weight", f.n_embd, 2 * n_inner)
            b.matrix(p + "ssm_conv1d.weight", kernel, n_inner)
            b.bias(p + "ssm_conv1d.bias", n_inner)
            b.matrix(p + "ssm_x.weight", n_inner, rank + 2 * state)
            b.norm(p + "ssm_dt_norm.weight", rank)
            b.norm(p + "ssm_b_norm.weight", state)
            b.norm(p + "ssm_c_norm.weight", state)
            b.matrix(p + "ssm_dt.weight", rank, n_inner)
            b.bias(p + "ssm_dt.bias", n_inner)
            b.bias(p + "ssm_a", state, n_inner, mean=-0.05, scale=0.01)
            b.bias(p + "ssm_d", n_inner, mean=1.0)
            b.matrix(p + "ssm_out.weight", n_inner, f.n_embd)
            sites[il] = ("ssm_in",)
        ffn(b, f, il)
    return sites


FAMILIES = {
    f.name: f
    for f in (
        Family(name="llama", arch="llama", build=_llama),
        Family(name="llama-moe", arch="llama", build=_llama),
        Family(name="qwen2", arch="qwen2", build=_llama, n_embd=128),
        Family(name="qwen3", arch="qwen3", build=_llama),
        Family(name="gemma3", arch="gemma3", build=_gemma3, n_head=1, head=256, windowed=True),
        Family(name="gemma4", arch="gemma4", build=_gemma4, split=2, windowed=True),
        Family(name="gpt-oss", arch="gpt-oss", build=_gpt_oss, windowed=True),
        Family(name="deepseek2", arch="deepseek2", build=_deepseek2),
        Family(name="qwen35", arch="qwen35", build=_delta_net, recurrent=True),
        Family(name="qwen35moe", arch="qwen35moe", build=_delta_net, recurrent=True),
        Family(name="qwen3next", arch="qwen3next", build=_delta_net, recurrent=True),
        Family(name="lfm2", arch="lfm2", build=_lfm2, n_embd=128, recurrent=True),
        Family(name="lfm2-swa", arch="lfm2", build=_lfm2, n_embd=128, recurrent=True, windowed=True),
        Family(name="mamba2", arch="mamba2", build=_mamba2, recurrent=True),
        Family(name="falcon-h1", arch="falcon-h1", build=_falcon_h1, recurrent=True),
        Family(name="jamba", arch="jamba", build=_jamba, n_embd=128, recurrent=True),
    )
}
