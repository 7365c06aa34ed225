"""`pyridgefill.Llama`: calls that follow one another share cells only where they may."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from llama_cpp import Llama as StockLlama
from llama_cpp import LlamaDiskCache, LlamaRAMCache
from support import maps, paths, spelling
from support.families import FAMILIES
from support.tokens import tokens

from pyridgefill import Llama, RidgeFillConfig, RidgeFillError, fill
from pyridgefill.errors import UsageError
from pyridgefill.fill import FillStats
from pyridgefill.maps.model import Recommended, RetrievalHead

TAIL, SINK = 64, 4
OPTIONS: dict[str, Any] = {
    "n_ctx": 1024, "n_batch": 64, "n_ubatch": 32, "n_threads": 1, "n_threads_batch": 1, "verbose": False,
}  # fmt: skip


def make(workshop: Any, family: str = "llama", kind: str = "poison", **options: Any) -> Llama:
    config = RidgeFillConfig(maps=workshop.maps(family, kind), tail=TAIL, sink=SINK, min_prompt=0)
    return Llama(str(workshop.model(family)), ridgefill=config, **{**OPTIONS, **options})


def plain(workshop: Any, family: str = "llama") -> Llama:
    return Llama(str(workshop.model(family)), **OPTIONS)


def answer(llm: Any, prompt: list[int], n: int = 8, **keywords: Any) -> list[int]:
    found = []
    for token in llm.generate(prompt, temp=0.0, **keywords):
        found.append(token)
        if len(found) == n:
            return found
    return found


def exact(llm: Llama, prompt: list[int]) -> list[int]:
    return answer(llm, prompt, ridgefill=False)


@pytest.fixture
def llm(workshop: Any) -> Iterator[Llama]:
    made = make(workshop)
    yield made
    made.close()


def prompt(n: int, seed: int = 0) -> list[int]:
    return list(tokens(n, seed))


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen35", "lfm2", "mamba2"])
def test_exact_calls_are_stock_in_every_order(workshop: Any, family: str) -> None:
    p, longer = prompt(300), prompt(300) + prompt(40, 7)
    want, want_longer = answer(plain(workshop, family), p), answer(plain(workshop, family), longer)
    mixed = make(workshop, family)
    assert exact(mixed, p) == want
    answer(mixed, p[:50] + prompt(200, 3))
    assert mixed.fill_stats is not None
    assert mixed.fill_stats.filled > 0
    assert exact(mixed, p) == want
    assert exact(mixed, p) == want
    mixed.reset()
    assert answer(mixed, longer) != want_longer, "POISON does not show"
    assert exact(mixed, longer) == want_longer
    assert exact(mixed, p) == want


def test_rows_are_counted(llm: Llama) -> None:
    n = 300
    p = prompt(n)
    answer(llm, p)
    assert llm.fill_stats == FillStats(reused=0, filled=n - TAIL - SINK, exact=TAIL + SINK)
    answer(llm, p)
    assert llm.fill_stats == FillStats(reused=n - 1, filled=0, exact=1)
    exact(llm, p)
    assert llm.fill_stats == FillStats(reused=SINK, filled=0, exact=n - SINK)
    answer(llm, p + prompt(50, 3))
    assert llm.fill_stats == FillStats(reused=n, filled=0, exact=50), "a filled call may build on exact cells"


def test_no_tail_lies_in_filled_cells(llm: Llama) -> None:
    p = prompt(300)
    answer(llm, p)
    shorter = p[:200]
    answer(llm, shorter)
    assert llm.fill_stats == FillStats(reused=200 - TAIL, filled=0, exact=TAIL)
    assert fill.n_filled(llm._ctx.ctx, 0, 200 - TAIL, 200) == 0
    assert fill.n_filled(llm._ctx.ctx, 0, 0, 200) == 200 - TAIL - SINK


def test_edited_prompt(llm: Llama, workshop: Any) -> None:
    p = prompt(300)
    answer(llm, p)
    edited = p[:150] + prompt(150, 5)
    answer(llm, edited)
    assert llm.fill_stats == FillStats(reused=150, filled=300 - TAIL - 150, exact=TAIL)
    assert exact(llm, edited) == answer(plain(workshop), edited)


def test_reset_and_unrelated_prompt(llm: Llama, workshop: Any) -> None:
    answer(llm, prompt(300))
    llm.reset()
    other = prompt(120, 9)
    assert exact(llm, other) == answer(plain(workshop), other)
    answer(llm, prompt(300))
    assert exact(llm, other) == answer(plain(workshop), other)


@pytest.mark.parametrize("family", ["llama", "qwen35", "gemma3"])
def test_saved_state_remembers_what_was_filled(workshop: Any, family: str) -> None:
    p = prompt(300)
    first = make(workshop, family)
    filled = answer(first, p)
    state = first.save_state()
    want = answer(plain(workshop, family), p)

    second = make(workshop, family)
    second.load_state(state)
    assert fill.n_filled(second._ctx.ctx, 0) == 300 - TAIL - SINK
    assert exact(second, p) == want
    second.load_state(state)
    assert answer(second, p) == filled

    # an object without maps knows as well that the cells are no exact ones
    third = plain(workshop, family)
    third.load_state(state)
    assert fill.reusable(third._ctx.ctx, 0, [], 300) == SINK
    longer = prompt(300) + prompt(20, 7)
    want_longer = answer(plain(workshop, family), longer)
    for other in (third, StockLlama(str(workshop.model(family)), **OPTIONS)):
        other.load_state(state)
        assert answer(other, p) == want
        other.load_state(state)
        assert answer(other, longer) == want_longer


@pytest.fixture
def spelled(workshop: Any, tmp_path: Path) -> tuple[str, RidgeFillConfig]:
    """A model whose tokens spell their text, and its POISON maps."""
    model = spelling.write(workshop.model("llama"), tmp_path / "model.gguf")
    path = maps.write(tmp_path / "maps.gguf", maps.poison(model, FAMILIES["llama"].split, FAMILIES["llama"].sites()))
    return str(model), RidgeFillConfig(path, tail=32, sink=SINK, min_prompt=64)


TEXT = ("the word user system in on qu er or an " * 30)[:700]
CHAT = [{"role": "user", "content": TEXT}]


def completed(llm: Any, way: str, **keywords: Any) -> str:
    """What the model says, asked in one of the ways that users have."""
    keywords |= {"max_tokens": 8, "temperature": 0.0}
    if way == "call":
        return str(llm(TEXT, **keywords)["choices"][0]["text"])
    if way == "completion":
        return str(llm.create_completion(TEXT, **keywords)["choices"][0]["text"])
    if way == "stream":
        return "".join(part["choices"][0]["text"] for part in llm.create_completion(TEXT, stream=True, **keywords))
    if way == "chat":
        return str(llm.create_chat_completion(CHAT, **keywords)["choices"][0]["message"]["content"])
    parts = llm.create_chat_completion(CHAT, stream=True, **keywords)
    return "".join(part["choices"][0]["delta"].get("content") or "" for part in parts)


WAYS = ["call", "completion", "stream", "chat", "chat stream"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["state", "memory", "disk"])
def test_filled_cells_from_elsewhere_are_not_served_as_exact(
    spelled: tuple[str, RidgeFillConfig], tmp_path: Path, way: str, kind: str
) -> None:
    model, config = spelled
    options = {**OPTIONS, "chat_format": "chatml"}
    filled, off = Llama(model, ridgefill=config, **options), Llama(model, **options)
    want = completed(Llama(model, **options), way)
    cache: Any = LlamaRAMCache() if kind == "memory" else LlamaDiskCache(str(tmp_path / "cache"))
    if kind != "state":
        filled.set_cache(cache)
        off.set_cache(cache)
    assert completed(filled, way) != want, "POISON does not show"
    state = filled.save_state()
    again = Llama(model, ridgefill=config, **options)
    for llm in (again, off, StockLlama(model, **options)):
        if kind == "state":
            llm.load_state(state)
        else:
            llm.set_cache(cache)
            cache[state.input_ids[: filled.n_tokens].tolist()] = state  # the disk gives it once
        assert (completed(llm, way) == want) == (llm is not again)
    assert again.fill_stats is not None
    assert again.fill_stats.reused > 100
    assert completed(filled, way, ridgefill=False) == want
    assert off.fill_stats is None


@pytest.mark.parametrize("way", WAYS)
def test_each_call_says_how_it_is_filled(spelled: tuple[str, RidgeFillConfig], way: str) -> None:
    model, config = spelled
    llm = Llama(model, ridgefill=config, **OPTIONS, chat_format="chatml")
    want = completed(Llama(model, **OPTIONS, chat_format="chatml"), way)
    first = completed(llm, way)
    assert first != want
    n = llm.n_tokens

    def filled(**keywords: Any) -> int:
        llm.reset()
        completed(llm, way, **keywords)
        assert llm.fill_stats is not None
        return llm.fill_stats.filled

    everything = filled(ridgefill=True)
    assert everything == filled(ridgefill={}) == filled(ridgefill=None) > 0
    assert filled(ridgefill=False) == 0
    assert filled(ridgefill={"tail": 64, "sink": 0}) == everything - 32 + SINK
    assert filled(ridgefill={"min_prompt": n + 100}) == 0
    assert filled(ridgefill={"spans": [(100, 150)], "select": "spans"}) == everything - 50
    assert filled() == everything, "a request is for its call only"
    for wrong in ({"tial": 3}, {"budget": 0.1}, {"select": "stride"}, {"spans": [(0, 5000)]}, "yes"):
        with pytest.raises(UsageError):
            filled(ridgefill=wrong)
    assert filled() == everything
    assert completed(llm, way, ridgefill=False) == want
    with pytest.raises(UsageError, match="this object has no maps"):
        completed(Llama(model, **OPTIONS, chat_format="chatml"), way, ridgefill=True)


def test_streams_are_filled_as_they_were_asked(spelled: tuple[str, RidgeFillConfig]) -> None:
    """Two streams that are read in turns, after other calls were made."""
    model, config = spelled
    llm = Llama(model, ridgefill=config, **OPTIONS)
    keywords: dict[str, Any] = {"max_tokens": 3, "temperature": 0.0, "stream": True}
    off = llm.create_completion(TEXT, ridgefill=False, **keywords)
    on = llm.create_completion(TEXT, ridgefill={"tail": 64}, **keywords)
    next(off)
    assert llm.fill_stats is not None
    assert llm.fill_stats.filled == 0
    off.close()
    llm.reset()
    next(on)
    n_tokens = len(llm.tokenize(TEXT.encode()))
    assert llm.fill_stats.filled == n_tokens - 64 - SINK
    list(on)


def test_a_call_can_select(workshop: Any) -> None:
    llm = selecting(workshop, select="none", keep_states=True, heads=HEADS)
    answer(llm, prompt(300), ridgefill={"select": "attention", "budget": 0.1})
    assert llm.fill_stats is not None
    assert llm.fill_stats.selected == round(0.1 * (300 - TAIL - SINK))
    answer(llm, prompt(300), ridgefill={"select": "attention", "budget": 0.2})
    assert llm.fill_stats.selected == round(0.2 * (300 - TAIL - SINK)), "another selection is another request"
    llm.reset()
    answer(llm, prompt(300))
    assert llm.fill_stats.selected == 0
    without = selecting(workshop, select="none", keep_states=True)
    with pytest.raises(UsageError, match="needs retrieval heads"):
        without.generate(prompt(300), ridgefill={"select": "attention"})


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("ridgefil", "ridgefill"),
        ("ridge_fill", "ridgefill"),
        ("maps", "ridgefill"),
        ("n_cxt", "n_ctx"),
        ("zzzzz", None),
    ],
)
def test_unknown_keywords(workshop: Any, name: str, near: str | None) -> None:
    with pytest.raises(
        TypeError, match=f"Llama: unknown keyword '{name}'" + (f", did you mean '{near}'" if near else "$")
    ):
        Llama(str(workshop.model("llama")), **OPTIONS, **{name: True})


def test_the_plan_ends_with_its_prompt(llm: Llama, workshop: Any) -> None:
    answer(llm, prompt(300))
    llm.reset()
    llm.eval(prompt(200, 5))
    assert fill.n_filled(llm._ctx.ctx, 0) == 0
    late = llm.generate(prompt(300, 6), temp=0.0, ridgefill=False)
    assert [next(late) for _ in range(8)] == answer(plain(workshop), prompt(300, 6))


def test_short_prompts_run_exact(workshop: Any) -> None:
    config = RidgeFillConfig(maps=workshop.maps("llama", "poison"), tail=TAIL, min_prompt=301)
    llm = Llama(str(workshop.model("llama")), ridgefill=config, **OPTIONS)
    assert answer(llm, prompt(300)) == answer(plain(workshop), prompt(300))
    assert llm.fill_stats == FillStats(reused=0, filled=0, exact=300)


def test_exact_spans(workshop: Any) -> None:
    config = RidgeFillConfig(maps=workshop.maps("llama", "poison"), tail=TAIL, sink=0, min_prompt=0, spans=((0, 300),))
    llm = Llama(str(workshop.model("llama")), ridgefill=config, **OPTIONS)
    assert answer(llm, prompt(300)) == answer(plain(workshop), prompt(300))


def test_spans_of_characters(workshop: Any, tmp_path: Path) -> None:
    """The rows of a text's characters run exact, in each call those that are in force when it is made."""
    text = "The quick brown fox — über 日本語 🙂 jumps. " * 10
    model = spelling.write(workshop.model("llama"), tmp_path / "model.gguf")
    family = FAMILIES["llama"]
    path = maps.write(tmp_path / "maps.gguf", maps.poison(model, family.split, family.sites()))
    llm = Llama(str(model), ridgefill=RidgeFillConfig(path, tail=TAIL, sink=SINK, min_prompt=0), **OPTIONS)

    ids = llm.tokenize(text.encode(), special=True)
    pieces = [llm.detokenize([token], special=True) for token in ids]
    owner = [i for i, piece in enumerate(pieces) for _ in piece][len(pieces[0]) :]  # without <s>
    inside = sorted(set(owner[len(text[:100].encode()) : len(text[:140].encode())]))
    n_filled = len(set(range(SINK, len(ids) - TAIL)) - set(inside))

    def complete(*spans: Any, given: str | list[int] = text) -> int:
        llm.reset()
        list(llm.create_completion(given, max_tokens=1, stream=True, ridgefill={"spans": spans}))
        assert llm.fill_stats is not None
        return llm.fill_stats.filled

    assert len(inside) > 30
    assert complete({"chars": (100, 140)}) == n_filled
    assert complete((inside[0], inside[-1] + 1)) == n_filled
    assert complete((inside[0], inside[-1] + 1), given=ids) == n_filled
    assert complete({"chars": (0, len(text))}) == 0
    for beyond in ({"chars": (0, len(text) + 1)}, (5000, 6000), {"tokens": (0, len(ids) + 1)}):
        with pytest.raises(ValueError, match=f"ends after the prompt of {len(text)} char|of {len(ids)} tokens"):
            complete(beyond)
    assert complete() == len(ids) - TAIL - SINK
    with pytest.raises(RidgeFillError, match="spans of chars need a prompt that is a text"):
        complete({"chars": (0, 5)}, given=ids)
    assert complete(given=ids) == len(ids) - TAIL - SINK


def test_tokens_that_do_not_spell_the_text(llm: Llama) -> None:
    with pytest.raises(RidgeFillError, match="need tokens that spell the text"):
        llm.create_completion("word " * 100, max_tokens=1, ridgefill={"spans": [{"chars": (0, 5)}]})


def test_off_is_the_base_class(workshop: Any) -> None:
    llm = Llama(str(workshop.model("llama")), ridgefill=False, **OPTIONS)
    answer(llm, prompt(300))
    assert llm.fill_stats is None
    assert fill.counters(llm._ctx.ctx).n_filled == 0


def test_maps_are_found_beside_the_model(workshop: Any, tmp_path: Path) -> None:
    model = tmp_path / "a model.gguf"
    model.symlink_to(workshop.model("llama"))
    with pytest.raises(RidgeFillError, match=r"no maps for .*calibrate"):
        Llama(str(model), ridgefill=True, **OPTIONS)
    (tmp_path / "a model.ridgefill.gguf").symlink_to(workshop.maps("llama", "poison"))
    llm = Llama(str(model), ridgefill=True, **OPTIONS)
    assert llm._fill is not None
    assert llm._fill.split == FAMILIES["llama"].split


@pytest.mark.parametrize("keyword", ["logits_all", "embedding"])
def test_keywords_that_cannot_work(workshop: Any, keyword: str) -> None:
    with pytest.raises(RidgeFillError, match=f"{keyword} and ridgefill cannot work together"):
        make(workshop, **{keyword: True})


def test_failures_in_the_constructor_leave_nothing(workshop: Any, tmp_path: Path) -> None:
    other = maps.write(tmp_path / "other.gguf", maps.poison(workshop.model("qwen2"), 3, {4: (), 5: (), 6: (), 7: ()}))
    for bad in (tmp_path / "missing.gguf", other, RidgeFillConfig(maps=workshop.maps("llama", "poison"), split=1)):
        with pytest.raises(RidgeFillError):
            Llama(str(workshop.model("llama")), ridgefill=bad, **OPTIONS)
    assert answer(make(workshop), prompt(100))


def test_close_is_final_and_repeatable(workshop: Any) -> None:
    llm = make(workshop)
    answer(llm, prompt(100))
    llm.close()
    llm.close()


HEADS = ((0, 0), (1, 1))


def selecting(workshop: Any, **settings: Any) -> Llama:
    config = RidgeFillConfig(maps=workshop.maps("llama", "poison"), tail=TAIL, sink=SINK, min_prompt=0, **settings)
    return Llama(str(workshop.model("llama")), ridgefill=config, **OPTIONS)


def recommending(workshop: Any, folder: Path, family: str) -> Path:
    """Identity maps that recommend a selection."""
    f, model = FAMILIES[family], workshop.model(family)
    made = replace(
        maps.identity(model, [f.split], f.sites()),
        heads=(RetrievalHead(f.split, 1, 0),),
        recommended=Recommended(split=f.split, select="attention", budget=0.25, pool=(1, 2), queries=20),
    )
    return maps.write(folder / "maps.gguf", made)


def test_the_recommended_selection_is_the_default(workshop: Any, tmp_path: Path) -> None:
    path = recommending(workshop, tmp_path, "llama")
    config = RidgeFillConfig(maps=path, tail=TAIL, sink=SINK, min_prompt=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for select, share in ((None, 0.25), ("none", 0), ("stride", 0.25)):
            llm = Llama(str(workshop.model("llama")), ridgefill=replace(config, select=select), **OPTIONS)
            answer(llm, prompt(300))
            assert llm.fill_stats is not None
            assert llm.fill_stats.selected == round(share * (300 - TAIL - SINK))


@pytest.mark.parametrize(
    ("family", "reason"), [("qwen35", "not an attention cache"), ("gemma3", "sliding windows have dropped them")]
)
def test_where_rows_cannot_run_again_the_recommended_selection_is_left_out(
    workshop: Any, tmp_path: Path, family: str, reason: str
) -> None:
    config = RidgeFillConfig(maps=recommending(workshop, tmp_path, family), tail=TAIL, sink=SINK, min_prompt=0)
    model, options = str(workshop.model(family)), {**OPTIONS, "swa_full": False}
    with pytest.warns(UserWarning, match=f"selects no rows, though the maps recommend it: .*{reason}"):
        llm = Llama(model, ridgefill=config, **options)
    answer(llm, prompt(300))
    assert llm.fill_stats == FillStats(reused=0, filled=300 - TAIL - SINK, exact=TAIL + SINK, selected=0)
    for asked in ({"select": "attention"}, {"select": "stride"}, {"keep_states": True, "select": "none"}):
        with pytest.raises(RidgeFillError, match=reason):
            Llama(model, ridgefill=replace(config, **asked), **options)


def test_all_rows_selected_are_an_exact_prompt(workshop: Any) -> None:
    p = prompt(300)
    llm = selecting(workshop, select="attention", heads=HEADS, budget=1)
    assert answer(llm, p) == answer(plain(workshop), p)
    n_filled = 300 - TAIL - SINK
    assert llm.fill_stats == FillStats(reused=0, filled=n_filled, exact=300 - n_filled, selected=n_filled)


@pytest.mark.parametrize("select", ["stride", "attention"])
def test_selected_rows_are_counted_and_kept(workshop: Any, select: str) -> None:
    llm = selecting(workshop, select=select, heads=HEADS, budget=0.1)
    p = prompt(300)
    answer(llm, p)
    assert llm.fill_stats is not None
    assert llm.fill_stats.selected == round(0.1 * (300 - TAIL - SINK))
    answer(llm, p + prompt(30, 4))
    assert llm.fill_stats == FillStats(reused=300, filled=0, exact=30, selected=round(0.1 * (330 - TAIL - SINK)))


@pytest.mark.parametrize("settings", [{"keep_states": True}, {"select": "attention", "heads": HEADS}])
def test_heal_makes_the_cache_exact(workshop: Any, settings: dict[str, Any]) -> None:
    p = prompt(300)
    llm = selecting(workshop, **settings)
    first = answer(llm, p)
    assert llm.heal(100) == 100
    healed = 100 + llm.heal()
    assert llm.heal() == 0
    assert healed >= 300 - SINK - 50
    assert exact(llm, p) == answer(plain(workshop), p) != first
    assert llm.fill_stats == FillStats(reused=299, filled=0, exact=1)


def test_logits_from_before_a_heal_are_not_used_again(workshop: Any) -> None:
    p = prompt(300)
    llm = selecting(workshop, keep_states=True)
    list(islice(llm.generate(p, temp=0.0), 1))  # the cache is exactly the prompt
    llm.heal()
    assert exact(llm, p) == answer(plain(workshop), p)
    assert llm.fill_stats == FillStats(reused=299, filled=0, exact=1)


def test_a_repeated_prompt_keeps_its_selection(workshop: Any) -> None:
    p = prompt(300)
    llm = selecting(workshop, select="attention", heads=HEADS, budget=0.1)
    first = answer(llm, p)
    assert answer(llm, p) == first
    assert llm.fill_stats == FillStats(reused=299, filled=0, exact=1, selected=0)
    n_selected = round(0.1 * (300 - TAIL - SINK))
    llm.reset()
    answer(llm, p)
    assert llm.fill_stats is not None
    assert llm.fill_stats.selected == n_selected, "nothing is there any more"


def test_heal_needs_split_states(llm: Llama) -> None:
    answer(llm, prompt(300))
    with pytest.raises(RidgeFillError, match="keep_states"):
        llm.heal()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"select": "best"}, "expected none, stride or attention"),
        ({"budget": -1}, "budget"),
        ({"pool": (8, -1)}, "pool"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RidgeFillConfig(**settings)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_repeated_construction_keeps_no_memory(workshop: Any) -> None:
    def cycle() -> None:
        llm = make(workshop)
        answer(llm, prompt(100), 1)
        llm.close()

    for _ in range(5):
        cycle()
    gc.collect()
    before = resident()
    for _ in range(50):
        cycle()
    gc.collect()
    assert resident() - before < 5 << 20


def test_pickling_keeps_the_keyword(workshop: Any) -> None:
    llm = make(workshop)
    copy = pickle.loads(pickle.dumps(llm))
    assert answer(copy, prompt(200)) == answer(llm, prompt(200))
    assert copy.fill_stats is not None
    assert copy.fill_stats.filled == 200 - TAIL - SINK


SCRIPT = """
import sys
{first}
try:
    from pyridgefill import Llama
except Exception as error:
    sys.exit(str(error))
"""


def run(first: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(first=first)
    env = {**os.environ, "RIDGEFILL_LIB_PATH": str(paths.engine_library()), **environment}
    return subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)


def test_a_foreign_library_is_detected() -> None:
    stock = str(paths.stock_library())
    assert "already imported with the library in" in run("import llama_cpp", LLAMA_CPP_LIB_PATH=stock).stderr
    assert "has no llama_ridgefill" in run("", RIDGEFILL_LIB_PATH=stock).stderr
    clean = run("")
    assert (clean.returncode, clean.stderr) == (0, "")


def test_exit_without_close(workshop: Any) -> None:
    script = (
        "from pyridgefill import Llama, RidgeFillConfig\n"
        f"config = RidgeFillConfig(maps={str(workshop.maps('llama', 'poison'))!r}, tail=64, min_prompt=0)\n"
        f"llm = Llama({str(workshop.model('llama'))!r}, ridgefill=config, n_ctx=512, verbose=False)\n"
        "next(llm.generate(list(range(10, 200)), temp=0.0))\n"
    )
    env = {**os.environ, "RIDGEFILL_LIB_PATH": str(paths.engine_library())}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
