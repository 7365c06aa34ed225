"""The blocks that tiny models are built of; each adds its tensors, an attention block returns what feeds its memory."""

from __future__ import annotations

from dataclasses import dataclass

from support.gguf_builder import N_VOCAB, GGUFBuilder

EPS = 1e-5


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a tiny model."""

    arch: str
    n_layer: int = 8
    n_embd: int = 64
    n_head: int = 2
    n_head_kv: int = 1
    head: int = 64
    n_ff: int = 96


def common(b: GGUFBuilder, f: Shape, output_norm: str = "output_norm") -> None:
    b.set(context_length=4096, embedding_length=f.n_embd, block_count=f.n_layer, feed_forward_length=f.n_ff)
    b.set(attention__layer_norm_rms_epsilon=EPS, rope__freq_base=10000.0)
    b.matrix("token_embd.weight", f.n_embd, N_VOCAB, gain=f.n_embd**0.5)
    b.norm(f"{output_norm}.weight", f.n_embd)
    b.matrix("output.weight", f.n_embd, N_VOCAB)


def heads(b: GGUFBuilder, f: Shape, head_count_kv: int | list[int] | None = None) -> None:
    b.set(attention__head_count=f.n_head, attention__head_count_kv=head_count_kv or f.n_head_kv)
    b.set(attention__key_length=f.head, attention__value_length=f.head, rope__dimension_count=f.head)


def attention(
    b: GGUFBuilder,
    f: Shape,
    il: int,
    *,
    bias: bool = False,
    qk_norm: float = 0.0,
    gated: bool = False,
    head: int | None = None,
    kv: bool = True,
) -> tuple[str, ...]:
    p, head = f"blk.{il}.", head or f.head
    n_q, n_kv = f.n_head * head, f.n_head_kv * head
    b.norm(p + "attn_norm.weight", f.n_embd)
    # a gain above 1 sharpens attention, so that a wrong or misplaced K shows in the logits
    b.matrix(p + "attn_q.weight", f.n_embd, n_q * (2 if gated else 1), gain=1.6)
    b.matrix(p + "attn_output.weight", n_q, f.n_embd)
    if qk_norm:
        b.norm(p + "attn_q_norm.weight", head, gain=qk_norm)
    if not kv:
        return ()
    b.matrix(p + "attn_k.weight", f.n_embd, n_kv, gain=1.6)
    b.matrix(p + "attn_v.weight", f.n_embd, n_kv)
    if qk_norm:
        b.norm(p + "attn_k_norm.weight", head, gain=qk_norm)
    if bias:
        b.bias(p + "attn_q.bias", n_q)
        b.bias(p + "attn_k.bias", n_kv)
        b.bias(p + "attn_v.bias", n_kv)
    return ("attn_k", "attn_v")


def ffn(b: GGUFBuilder, f: Shape, il: int, norm: str = "ffn_norm.weight") -> None:
    p = f"blk.{il}."
    b.norm(p + norm, f.n_embd)
    b.matrix(p + "ffn_gate.weight", f.n_embd, f.n_ff)
    b.matrix(p + "ffn_up.weight", f.n_embd, f.n_ff)
    b.matrix(p + "ffn_down.weight", f.n_ff, f.n_embd)


def experts(
    b: GGUFBuilder,
    f: Shape,
    il: int,
    norm: str = "ffn_norm.weight",
    n_shared: int = 0,
    shared_gate: bool = False,
    bias: bool = False,
) -> None:
    p, n_expert = f"blk.{il}.", 4
    b.set(expert_count=n_expert, expert_used_count=2, expert_feed_forward_length=f.n_ff)
    b.norm(p + norm, f.n_embd)
    b.matrix(p + "ffn_gate_inp.weight", f.n_embd, n_expert, gain=2.0)
    b.matrix(p + "ffn_gate_exps.weight", f.n_embd, f.n_ff, n_expert)
    b.matrix(p + "ffn_up_exps.weight", f.n_embd, f.n_ff, n_expert)
    b.matrix(p + "ffn_down_exps.weight", f.n_ff, f.n_embd, n_expert)
    if bias:
        b.bias(p + "ffn_gate_inp.bias", n_expert)
        b.bias(p + "ffn_gate_exps.bias", f.n_ff, n_expert)
        b.bias(p + "ffn_up_exps.bias", f.n_ff, n_expert)
        b.bias(p + "ffn_down_exps.bias", f.n_embd, n_expert)
    if n_shared:
        b.matrix(p + "ffn_gate_shexp.weight", f.n_embd, n_shared)
        b.matrix(p + "ffn_up_shexp.weight", f.n_embd, n_shared)
        b.matrix(p + "ffn_down_shexp.weight", n_shared, f.n_embd)
    if shared_gate:
        b.norm(p + "ffn_gate_inp_shexp.weight", f.n_embd, gain=0.2)


def mamba2_block(b: GGUFBuilder, f: Shape, il: int) -> None:
    n_inner, state, n_group, n_head, kernel = 2 * f.n_embd, 32, 1, 4, 4
    n_conv = n_inner + 2 * n_group * state
    b.set(ssm__inner_size=n_inner, ssm__state_size=state, ssm__group_count=n_group, ssm__time_step_rank=n_head)
    b.set(ssm__conv_kernel=kernel)
    p = f"blk.{il}."
    b.matrix(p + "ssm_in.weight", f.n_embd, n_inner + n_conv + n_head)
    b.matrix(p + "ssm_conv1d.weight", kernel, n_conv)
    b.bias(p + "ssm_conv1d.bias", n_conv)
    b.bias(p + "ssm_dt.bias", n_head)
    b.bias(p + "ssm_a", 1, n_head, mean=-0.05, scale=0.01)
    b.bias(p + "ssm_d", 1, n_head, mean=1.0)
    b.norm(p + "ssm_norm.weight", n_inner // n_group, n_group)
    b.matrix(p + "ssm_out.weight", n_inner, f.n_embd)
