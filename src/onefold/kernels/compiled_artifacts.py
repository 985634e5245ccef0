"""The results of a compilation and the files that go into the deployment folder of each model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from onefold.device import Device
from onefold.kernels.kernel_library import ARCHIVE, LIBRARY, ORT, LibraryFiles, LibraryManifest, write_library
from onefold.kernels.model_compiler import ModelCompiler
from onefold.kernels.partition import Partition
from onefold.kernels.source_models import SourceModel
from onefold.kernels.targets import Target
from onefold.model_folder import new_generation
from onefold.store.home import Home
from onefold.vocabulary.kernels import CompileOptions, CompileResult

REPORT = "kernels.html"


@dataclass(frozen=True)
class CompiledArtifacts:
    """The files of a compiled model that go into its deployment folder."""

    source: SourceModel
    result: CompileResult
    files: LibraryFiles
    manifest: LibraryManifest


@dataclass(frozen=True)
class ArtifactBuilder:
    """Builds results and manifests for models that are compiled for the same target."""

    device: Device
    target: Target
    options: CompileOptions

    def empty_result(self, source: SourceModel, compiler: ModelCompiler | None) -> CompileResult:
        """Return a result of which only the settings are known."""
        return CompileResult(
            model=source.name,
            device=self.device.name,
            target=self.target.name,
            threads=self.target.cores,
            level=self.options.graph_level if compiler is None else compiler.level,
            strategy=self.options.strategy,
            rounds=(),
            histories=(),
            runtimes=(),
            recommended="",
            why_stopped="",
            error=float("nan"),
        )

    def artifacts(
        self,
        result: CompileResult,
        source: SourceModel,
        library: Path | None,
        parts: Partition | None,
        notes: tuple[str, ...],
        int8: Path | None = None,
    ) -> CompiledArtifacts:
        """Return the result with the files and the manifest of its deployment folder."""
        parts = None if library is None else parts
        manifest = LibraryManifest(
            device=self.device.name,
            target=self.target.name,
            threads=self.target.cores,
            batch_size=self.options.batch_size,
            inputs={name: str(array.dtype) for name, array in zip(source.input_names, source.inputs)},
            runtimes=result.runtimes,
            recommended=result.recommended or ORT,
            file="" if library is None else ARCHIVE if library.suffix == ".tar" else LIBRARY,
            notes=notes,
            model=source.digest,
            part=None if parts is None else parts.tensors,
        )
        before, after = (None, None) if parts is None else (parts.before, parts.after)
        return CompiledArtifacts(source, result, LibraryFiles(library, before, after, int8), manifest)


def write_artifacts(artifacts: CompiledArtifacts, home: Home) -> CompileResult:
    """Write the library and the report into the deployment folder, if the model has one."""
    from onefold.report.kernels import KernelReport

    folder = artifacts.source.folder
    if folder is None:
        return artifacts.result
    source, result = artifacts.source, replace(artifacts.result, folder=str(folder))
    source.create_folder(home.path)
    with new_generation(folder, home=home.path, update=True, record=source.is_trusted, opened=source.manifest) as new:
        write_library(new, artifacts.files, artifacts.manifest)
        (new / REPORT).write_text(KernelReport([result]).as_html(), encoding="utf-8")
    return result
