"""llama.cpp: it runs a GGUF file that is made from a checkpoint and cached, or a GGUF file of the user."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from benchmarker.checkpoints import cache
from benchmarker.checkpoints.base import Checkpoint, Progress
from benchmarker.checkpoints.files import content_sha256
from benchmarker.checkpoints.gguf_file import check_writable, gguf_facts, why_no_gguf, write_gguf
from benchmarker.core.errors import BenchmarkerError
from benchmarker.engines.base import Form
from benchmarker.engines.external.driver_process import Driver
from benchmarker.engines.external.environments import Marker
from benchmarker.engines.external.external_engine import ExternalEngine, head_refusal
from benchmarker.hardware.device import Device
from benchmarker.quantization.base import Options

ALL_LAYERS = 999  # More layers than any model has.
FILE = "model.gguf"
GgufForm = Literal["F16", "Q8_0", "Q6_K", "Q4_K_M", "Q4_0"]


class LlamaCppOptions(Options):
    gguf: GgufForm = "F16"
    """Quantization of the GGUF file that is made from a checkpoint. A GGUF file given as --model is used unchanged."""
    threads: int | None = Field(default=None, gt=0)
    """Number of threads. Default: on a CPU that of torch's engines, else the number of physical cores."""
    gpu_layers: int | None = Field(default=None, ge=0)
    """Number of layers on the GPU. Default: all."""
    flash_attention: bool = True


class LlamaCppEngine(ExternalEngine):
    name = "llama-cpp"
    options = LlamaCppOptions
    quantizing_option = "gguf"

    def why_not_installed(self) -> str | None:
        return why_no_gguf() or super().why_not_installed()

    def why_not_taken(self, form: Form, checkpoint: Checkpoint) -> str | None:
        if form.quant != "fp16" and not (form.quant == "gguf" and checkpoint.is_gguf):
            way = "an unquantized model" if checkpoint.quantization else "--quant fp16"
            return f"llama.cpp has quantizations of its own: use {way} with --engine-option gguf=Q4_0, not {form.quant}"
        try:
            if checkpoint.is_gguf:
                gguf_facts(checkpoint.folder)
            else:
                check_writable(checkpoint.folder, checkpoint.config)
        except BenchmarkerError as error:
            return str(error)
        return head_refusal(form)

    def arguments(
        self, checkpoint: Checkpoint, form: Form, device: Device, marker: Marker, progress: Progress
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        import torch

        options = form.engine_options
        assert isinstance(options, LlamaCppOptions)
        threads = options.threads or (torch.get_num_threads() if device.kind == "cpu" else physical_cores())
        path = self.gguf_path(checkpoint, options.gguf, marker, threads, progress)
        facts = gguf_facts(path)
        arguments = {
            "model": str(path),
            "threads": threads,
            "gpu_layers": gpu_layers(options, device.kind),
            "flash_attention": options.flash_attention,
            "library": marker.library,
        }
        return arguments, {
            **facts.types.model_dump(),
            "fallback": None if checkpoint.is_gguf else facts.fallback(options.gguf),
            "packed_parameters": facts.packed_parameters,
            "parameters": facts.parameters,
        }

    def gguf_path(
        self, checkpoint: Checkpoint, gguf: GgufForm, marker: Marker, threads: int, progress: Progress
    ) -> Path:
        if checkpoint.is_gguf:
            return checkpoint.folder
        commit = checkpoint.revision and f"{checkpoint.model_id}@{checkpoint.revision}"
        # The folder name of a dummy checkpoint encodes everything from which it was made.
        dummy = f"dummy {checkpoint.folder.name}" if checkpoint.dummy else None
        model = dummy or commit or content_sha256(checkpoint.folder)

        def write(path: Path) -> None:
            progress.note(f"writing {checkpoint.model_id} as GGUF, F16")
            write_gguf(checkpoint.folder, path)

        plain = _cached(checkpoint, "F16", {"model": model, "gguf": "F16"}, write)
        if gguf == "F16":
            return plain

        def quantize(target: Path) -> None:
            progress.note(f"making the {gguf} form of {checkpoint.model_id}")
            arguments = {"source": str(plain), "target": str(target), "form": gguf, "threads": threads}
            with closing(Driver(self.name, self.command(marker))) as driver:
                driver.request("quantize", limit_s=self.limit_s, library=marker.library, **arguments)

        parts = {"model": model, "gguf": gguf, "version": marker.version, "library": marker.library}
        return _cached(checkpoint, gguf, parts, quantize)


def _cached(checkpoint: Checkpoint, gguf: GgufForm, parts: dict[str, Any], make: Any) -> Path:
    key = cache.key_of({"kind": "gguf", "tokens": "placeholder", **parts})
    if cache.find(key) is None:
        # Upper limit: a GGUF file is never larger than the 16-bit weights in the folder.
        needed_bytes, model = checkpoint.weight_file_bytes, checkpoint.model_id
        with cache.new_entry(key, kind="gguf", model=model, options={"gguf": gguf}, needed_bytes=needed_bytes) as draft:
            make(draft / FILE)
    return cache.whole(key, lambda folder: gguf_facts(folder / FILE)) / FILE


def gpu_layers(options: LlamaCppOptions, device: str) -> int:
    if options.gpu_layers is not None:
        return options.gpu_layers
    return 0 if device == "cpu" else ALL_LAYERS


def physical_cores() -> int:
    import psutil

    logical = len(psutil.Process().cpu_affinity())
    physical, total = psutil.cpu_count(logical=False), psutil.cpu_count()
    return max(1, logical * physical // total) if physical and total else logical
