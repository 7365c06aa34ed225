"""Every architecture that upstream's maker of tiny random models can write is either filled right or refused by name.

Those models have two layers: the split is below the last layer but one, whose outputs are zeroed.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import capi, gemma3n, maps, paths
from support.capi import RefusedError
from support.engine import Context, Maps, Model
from support.options import ContextOptions
from support.oracle import oracle
from support.tokens import tokens

N_VOCAB, N, TAIL = 128, 100, 20

FILLED = """
    afmoe-moe arcee-dense arctic-moe baichuan-dense bailingmoe-moe bailingmoe2-moe bailingmoe3-moe
    bloom-dense chatglm-dense codeshell-dense cohere2-dense cohere2moe-moe command-r-dense dbrx-moe
    deci-dense deepseek-moe deepseek2-moe deepseek32-moe dots1-moe dots3note-moe ernie4_5-moe-moe
    ernie4_5-moe exaone-dense exaone-moe-moe falcon-dense falcon-h1-dense gemma-dense gemma2-dense
    gemma3-dense glm-dsa-moe glm4-dense glm4moe-moe gpt-oss-moe gpt2-dense gptneox-dense granite-dense
    granite-moe granite_swa-dense granitehybrid-dense granitemoe-dense granitemoe-moe grok-moe
    grovemoe-moe hunyuan-dense-dense hunyuan-moe-moe hunyuan_vl-dense hy_v3-moe internlm2-dense jais-dense
    jais2-dense jamba-dense laguna-moe lfm2-dense lfm2moe-moe llama-dense llama-moe llama4-moe
    maincoder-dense mamba-dense mamba2-dense maple-moe mellum-moe mimo2-moe minicpm-dense minicpm-moe
    minicpm3-dense minimax-m2-moe minimax-m3-moe mistral3-dense mistral3-moe mistral4-moe mpt-dense
    muse-glimmer-dense nanbeige-dense nemotron-dense olmo-dense olmoe-moe openelm-dense orion-dense
    paddleocr-moe pangu-embedded-dense phi2-dense phi3-dense phimoe-moe plamo-dense pockettts-dense
    qwen-dense qwen2-dense qwen2moe-moe qwen2vl-dense qwen3-dense qwen35-dense qwen35moe-moe qwen3moe-moe
    qwen3next-moe qwen3tts-dense qwen3vl-dense qwen3vlmoe-moe refact-dense seed_oss-dense smallthinker-moe
    smollm3-dense spark2_5-dense stablelm-dense starcoder-dense starcoder2-dense xverse-dense
"""

# some have no name for the bare embeddings, which two layers leave as the only split
REFUSED = {
    "cogvlm-dense": "the input of layer 0 has no name",
    "deepseek4-moe": "the input of layer 2 has no name",
    "dream-dense": "keeps no memory",
    "exaone4-dense": "the input of layer 0 has no name",
    "glm5-next-moe": "not one row of width",
    "hy_v4-moe": "not one row of width",
    "kimi-linear-moe": "names no layer",
    "llada-dense": "keeps no memory",
    "llada-moe-moe": "keeps no memory",
    "olmo2-dense": "the input of layer 0 has no name",
    "plamo2-dense": "names no layer",
    "plamo3-dense": "the input of layer 0 has no name",
    "qwen4exp-moe": "not one row of width",
    "rnd1-moe": "keeps no memory",
}


@pytest.fixture
def path(request, tmp_path) -> Iterator[Path]:
    """The model of an architecture, deleted after the test: all of them take a gigabyte."""
    name = re.sub("-(dense|moe)$", "", request.param)
    maker = paths.model_maker()
    subprocess.run([maker, "-s", "1", "-a", name, "-o", str(tmp_path)], check=True, capture_output=True)
    path = tmp_path / f"{request.param}.gguf"
    yield path
    for model in tmp_path.glob("*.gguf"):
        model.unlink()


def capture(model: Model, layer: int) -> dict[str, np.ndarray]:
    """Values of all sites from a layer on, in a prompt of one ubatch."""
    with Context(model, ContextOptions(n_ctx=512)) as context:
        return context.capture(tokens(30, n_vocab=N_VOCAB), layer)


@pytest.mark.parametrize("path", FILLED.split(), indirect=True)
def test_filled_equals_exact_bit_for_bit(path, tmp_path):
    n_layer = maps.product.read_base_model(path).block_count
    split, live = n_layer - 2, n_layer - 1
    model_path = oracle(path, tmp_path / "oracle.gguf", split, live)
    prompt = {0: tokens(N, n_vocab=N_VOCAB)}
    with Model(model_path) as model:
        values = capture(model, split)
        assert np.array_equal(values[f"blk.{split}.input"], values[f"blk.{live}.input"])
        assert {f"blk.{live}.input"} < {name for name in values if name.startswith(f"blk.{live}.")}
        maps_path = maps.write(tmp_path / "maps.gguf", maps.identity(model_path, [split], {live: ()}))
        with Maps(model, maps_path) as loaded, Context(model, ContextOptions(n_ctx=512)) as context:
            for p0, p1 in ((0, 4), (4, 64), (64, N - TAIL), (N - TAIL, N)):
                exact = context.decode({0: prompt[0][p0:p1]}, TAIL, start={0: p0})[0]
            context.clear()
            context.set_maps(loaded)
            context.mark(0, (4, N - TAIL))
            filled = context.decode(prompt, TAIL)[0]
            assert context.counters().n_filled == N - TAIL - 4
    assert np.array_equal(filled, exact)


@pytest.mark.parametrize("path", REFUSED, indirect=True)
def test_refused_by_name(request, path, tmp_path):
    name = request.node.callspec.params["path"]
    n_layer = maps.product.read_base_model(path).block_count
    split, live = n_layer - 2, n_layer - 1
    maps_path = maps.write(tmp_path / "maps.gguf", maps.identity(path, [split], {live: ()}))
    check_refused(path, maps_path, re.sub("-(dense|moe)$", "", name), REFUSED[name], split)


def test_gemma3n_is_refused_by_name(tmp_path):
    """It carries several residual streams from layer to layer."""
    path = gemma3n.write(tmp_path / "gemma3n.gguf")
    maps_path = maps.write(tmp_path / "maps.gguf", maps.identity(path, [10], {il: () for il in range(20)}))
    check_refused(path, maps_path, "gemma3n", "not one row of width", 10)


def check_refused(path: Path, maps_path: Path, arch: str, reason: str, split: int) -> None:
    """Maps cannot be set, values cannot be captured, and the context then works as if nobody had tried."""
    with Model(path) as model, Maps(model, maps_path) as loaded, Context(model, ContextOptions(n_ctx=512)) as context:
        with pytest.raises(RefusedError, match=f"'{arch}'.*{reason}"):
            context.set_maps(loaded)
        assert context.split == -1
        assert capi.native().llama_ridgefill_capture(context.handle, split) != 0
        assert arch in capi.last_error()
