"""What the stock functions for saved states return, and what they leave in the memory."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import llama_cpp

from support.engine import Context, Model
from support.options import ContextOptions

# what may lie behind a state in a larger buffer
SLACK = {
    "none": b"",
    "noise": b"\xaa" * 64,
    "zeros": bytes(64),
    "one byte": b"r",
    "a section's name": b"rfil" + bytes(60),
}

Restored = dict[str, tuple[int, bytes]]


@dataclass(frozen=True)
class Job:
    """A prompt whose states are saved and put back into a context that holds another prompt."""

    model: Path
    options: ContextOptions
    prompt: list[int]
    other: list[int]


def run(job: Job, prepare: Callable[[Model, Context], None] = lambda model, context: None) -> Restored:
    """Restore in every way: what was returned, and the state of the sequence afterwards."""
    done: Restored = {}
    with Model(job.model) as model, Context(model, job.options) as context:
        prepare(model, context)
        context.decode({0: job.prompt}, 0)
        whole, sequence = context.whole_state(), context.state(0)

        def restore(name: str, call: Callable[[ctypes.c_void_p], int], data: bytes) -> None:
            context.clear()
            context.decode({0: job.other}, 0)
            with Fenced(data) as buffer:
                returned = call(buffer)
            done[name] = (returned, context.state(0))

        for kind, slack in SLACK.items():
            size = len(whole + slack)
            restore(f"whole, {kind}", lambda src, n=size: set_data(context, src, n), whole + slack)
            size = len(sequence + slack)
            restore(f"sequence, {kind}", lambda src, n=size: set_sequence(context, src, n), sequence + slack)
        restore("whole, size unknown", lambda src: set_data(context, src, None), whole)
        restore("whole, cut off", lambda src: set_data(context, src, len(whole) - 1), whole[:-1])
        restore("sequence, cut off", lambda src: set_sequence(context, src, len(sequence) - 1), sequence[:-1])
    return done


def set_data(context: Context, src: ctypes.c_void_p, size: int | None) -> int:
    """llama_state_set_data; without a size llama_set_state_data, which knows none."""
    pointer = ctypes.cast(src, ctypes.POINTER(ctypes.c_uint8))
    if size is None:
        return int(llama_cpp.llama_set_state_data(context.handle, pointer))
    return int(llama_cpp.llama_state_set_data(context.handle, pointer, size))


def set_sequence(context: Context, src: ctypes.c_void_p, size: int) -> int:
    pointer = ctypes.cast(src, ctypes.POINTER(ctypes.c_uint8))
    return int(llama_cpp.llama_state_seq_set_data(context.handle, pointer, size, 0))


class Fenced:
    """Bytes that end where the process may not read on: one byte further is a segmentation fault."""

    def __init__(self, data: bytes) -> None:
        self.size = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.map = mmap.mmap(-1, self.size + mmap.PAGESIZE)
        self.map[self.size - len(data) : self.size] = data
        self.view = (ctypes.c_uint8 * len(self.map)).from_buffer(self.map)
        self.start = ctypes.addressof(self.view)
        self.data = self.start + self.size - len(data)

    def _protect(self, protection: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        page = ctypes.c_void_p(self.start + self.size)
        if libc.mprotect(page, ctypes.c_size_t(mmap.PAGESIZE), protection) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")

    def __enter__(self) -> ctypes.c_void_p:
        self._protect(0)
        return ctypes.c_void_p(self.data)

    def __exit__(self, *_: object) -> None:
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)
        del self.view
        self.map.close()
