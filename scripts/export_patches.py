"""Writes patches and overlay back from a patched llama.cpp tree under git, after work in that tree.

    python scripts/export_patches.py TREE BASE

TREE is a copy of `build/engine/src` under version control, BASE its commit without the patches.
Each existing patch is written anew for the files that it touches; files that no patch names yet are listed, so that
they can be given one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FORK = Path(__file__).resolve().parents[1] / "llama.cpp"


def git(tree: Path, *arguments: str) -> str:
    """Output of a git command in the tree."""
    return subprocess.run(["git", "-C", str(tree), *arguments], check=True, capture_output=True, text=True).stdout


def touched(patch: Path) -> list[str]:
    """Upstream files that a patch changes."""
    lines = patch.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/")]


def main() -> None:
    """Write patches, then overlay files."""
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} TREE BASE")
    tree, base = Path(sys.argv[1]), sys.argv[2]
    owner: dict[str, Path] = {}
    for patch in sorted((FORK / "patches").glob("*.patch")):
        for name in touched(patch):
            if name in owner:
                sys.exit(f"{name} is in {owner[name].name} and {patch.name}: write these two by hand")
            owner[name] = patch
    changed = {name for name in git(tree, "diff", "--name-only", base).splitlines() if "ridgefill" not in name}
    for patch in sorted(set(owner.values())):
        names = [name for name in owner if owner[name] == patch]
        patch.write_text(git(tree, "diff", "-U1", base, "--", *names), encoding="utf-8")
    for name in sorted(changed - set(owner)):
        print(f"no patch has {name}")
    for file in (FORK / "overlay").rglob("*"):
        source = tree / file.relative_to(FORK / "overlay")
        if file.is_file() and source.is_file():
            shutil.copy2(source, file)


if __name__ == "__main__":
    main()
