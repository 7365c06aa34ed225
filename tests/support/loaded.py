"""Models and maps files that llama.cpp has loaded, with its last messages for when it did not."""

from __future__ import annotations

import ctypes
from collections import deque
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import llama_cpp

from support import capi

log: deque[str] = deque(maxlen=200)


@llama_cpp.llama_log_callback
def _keep(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    log.append(text.decode(errors="replace"))


llama_cpp.llama_log_set(_keep, None)
llama_cpp.llama_backend_init()


def last_words() -> str:
    """The end of the library's log."""
    return "".join(log)[-500:]


class Model:
    """A loaded model; use as a context manager or call :meth:`close`."""

    def __init__(self, path: Path, n_gpu_layers: int = 0) -> None:
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        handle = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not handle:
            raise RuntimeError(f"cannot load {path}: {last_words()}")
        self.handle = handle
        self.path = path
        self._owned = ExitStack()
        self.n_layer = llama_cpp.llama_model_n_layer(handle)
        self.n_embd = llama_cpp.llama_model_n_embd(handle)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(handle))

    def own(self, maps: Maps) -> Maps:
        """Close the maps together with the model, before it."""
        return self._owned.enter_context(maps)

    def close(self) -> None:
        if self.handle:
            self._owned.close()
            llama_cpp.llama_model_free(self.handle)
            self.handle = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Maps:
    """A loaded maps file; must be closed before its model and after every context that uses it."""

    def __init__(self, model: Model, path: Path, skip_fingerprint: bool = False) -> None:
        params = capi.native().llama_ridgefill_params(skip_fingerprint=skip_fingerprint)
        handle = capi.native().llama_ridgefill_init(model.handle, str(path).encode(), params)
        if not handle:
            raise capi.RefusedError(capi.last_error())
        self.handle = handle

    def close(self) -> None:
        if self.handle:
            capi.native().llama_ridgefill_free(self.handle)
            self.handle = None

    def __enter__(self) -> Maps:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
