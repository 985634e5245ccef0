"""What a stranger may put into a model folder. Each attack changes a valid folder; code that runs writes a marker."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onefold.model_folder import MANIFEST

SECRET = b"the content of a file outside of the folder: " + bytes(range(256)) * 16
BOMB_BYTES = 6_000_000_000

Attack = Callable[[Path, Path], None]  # the folder; the marker that code would write
ATTACKS: dict[str, Attack] = {}


def attack(change: Attack) -> Attack:
    ATTACKS[change.__name__] = change
    return change


class Payload:
    """Writes the marker when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.write_text, (self.marker, "unpickled")


def outside(folder: Path) -> Path:
    """A file beside the folder that nothing may read or change."""
    path = folder.parent / "secret"
    path.write_bytes(SECRET)
    return path


def unlist(folder: Path) -> None:
    """Remove the manifest, so that its digests do not end the attack first."""
    (folder / MANIFEST).unlink()


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def replace_by_link(folder: Path, name: str) -> None:
    unlist(folder)
    (folder / name).unlink()
    (folder / name).symlink_to(outside(folder))


def replace_by_pipe(folder: Path, name: str) -> None:
    if name != MANIFEST:
        unlist(folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)


FILES = ("model.onnx", "model.npz", "model.json", "weights.safetensors", "deployment.json", "kernels.json")
for _name in FILES:
    ATTACKS[f"link_{_name}"] = lambda folder, _, name=_name: replace_by_link(folder, name)  # type: ignore[misc]
    ATTACKS[f"pipe_{_name}"] = lambda folder, _, name=_name: replace_by_pipe(folder, name)  # type: ignore[misc]
ATTACKS["pipe_manifest"] = lambda folder, _: replace_by_pipe(folder, MANIFEST)


# Pickles.


@attack
def pickled_weights(folder: Path, marker: Path) -> None:
    unlist(folder)
    (folder / "weights.safetensors").unlink()
    (folder / "weights.pt").write_bytes(pickle.dumps({"model": Payload(marker)}))


@attack
def pickle_named_safetensors(folder: Path, marker: Path) -> None:
    unlist(folder)
    (folder / "weights.safetensors").write_bytes(pickle.dumps(Payload(marker)))


@attack
def torch_archive_with_code(folder: Path, marker: Path) -> None:
    unlist(folder)
    (folder / "weights.safetensors").unlink()
    with zipfile.ZipFile(folder / "weights.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Payload(marker)))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")


@attack
def pickled_samples(folder: Path, marker: Path) -> None:
    unlist(folder)
    np.savez(folder / "model.npz", input0=np.array([Payload(marker)], dtype=object))


# Native code.


def library(folder: Path, marker: Path) -> Path:
    """A library that writes the marker when it is loaded."""
    source = folder.parent / "evil.c"
    source.write_text(
        "#include <stdio.h>\n__attribute__((constructor)) static void run(void) "
        f'{{ FILE *file = fopen("{marker}", "w"); if (file) fclose(file); }}\n'
    )
    built = folder.parent / "outside.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, source], check=True)
    return built


@attack
def native_library(folder: Path, marker: Path) -> None:
    unlist(folder)
    shutil.copy(library(folder, marker), folder / "kernels.so")


@attack
def native_library_beside_a_valid_manifest(folder: Path, marker: Path) -> None:
    shutil.copy(library(folder, marker), folder / "kernels.so")


@attack
def library_above_the_folder(folder: Path, marker: Path) -> None:
    unlist(folder)
    library(folder, marker)
    edit(folder / "kernels.json", file="../outside.so")


@attack
def library_by_absolute_path(folder: Path, marker: Path) -> None:
    unlist(folder)
    edit(folder / "kernels.json", file=str(library(folder, marker)))


@attack
def library_by_link(folder: Path, marker: Path) -> None:
    unlist(folder)
    (folder / "kernels.so").unlink(missing_ok=True)
    (folder / "kernels.so").symlink_to(library(folder, marker))


# Python code in the model card.

EVIL = """from pathlib import Path
from onefold.workloads.digits import Digits
Path({marker!r}).write_text("imported")
class W(Digits): pass
"""


def evil_module(folder: Path, marker: Path, place: Path) -> Path:
    place.write_text(EVIL.format(marker=str(marker)))
    return place


def with_workload(folder: Path, reference: str) -> None:
    unlist(folder)
    edit(folder / "model.json", workload=reference)


@attack
def workload_in_the_folder(folder: Path, marker: Path) -> None:
    with_workload(folder, f"{evil_module(folder, marker, folder / 'evil.py')}:W")


@attack
def workload_beside_the_folder(folder: Path, marker: Path) -> None:
    with_workload(folder, f"{evil_module(folder, marker, folder.parent / 'evil.py')}")


@attack
def workload_in_the_current_folder(folder: Path, marker: Path) -> None:
    evil_module(folder, marker, Path("evil_module.py"))
    with_workload(folder, "evil_module:W")


@attack
def workload_in_a_wrapper(folder: Path, marker: Path) -> None:
    with_workload(folder, f"compressed+{evil_module(folder, marker, folder / 'evil.py')}:W")


@attack
def workload_named_like_a_bundled_one(folder: Path, marker: Path) -> None:
    evil_module(folder, marker, Path("digits.py"))
    with_workload(folder, "digits.py")


# Bombs.


def zeros_archive(path: Path, header_of: tuple[int, ...]) -> None:
    """An .npz with an array of zeros: small on the disk, and as large as its header says in memory."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": header_of})
    chunk = bytes(10_000_000)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("input0.npy", "w", force_zip64=True) as entry,
    ):
        entry.write(header.getvalue())
        for _ in range(3):
            entry.write(chunk)


@attack
def samples_that_claim_gigabytes(folder: Path, _: Path) -> None:
    unlist(folder)
    zeros_archive(folder / "model.npz", (BOMB_BYTES // 4,))


@attack
def deeply_nested_json(folder: Path, _: Path) -> None:
    unlist(folder)
    for name in ("model.json", "deployment.json", "kernels.json"):
        (folder / name).write_text("[" * 500_000)


@attack
def enormous_json(folder: Path, _: Path) -> None:
    unlist(folder)
    for name in ("model.json", "deployment.json", "kernels.json", MANIFEST):
        with (folder / name).open("wb") as file:
            file.truncate(40_000_000_000)  # a sparse file


@attack
def safetensors_with_a_lying_header(folder: Path, _: Path) -> None:
    unlist(folder)
    header = json.dumps({"w": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
    (folder / "weights.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


# Hostile ONNX.


def graph_with(folder: Path, location: str, length: int = len(SECRET)) -> None:
    """A model whose weights are external data at a location."""
    unlist(folder)
    count = length // 4
    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[count], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", str(4 * count))):
        weights.external_data.add(key=key, value=value)
    x = helper.make_tensor_value_info("input0", TensorProto.FLOAT, ["batch", count])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", count])
    graph = helper.make_graph([helper.make_node("Add", ["input0", "w"], ["y"])], "g", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "model.npz").unlink()


@attack
def external_data_above_the_folder(folder: Path, _: Path) -> None:
    outside(folder)
    graph_with(folder, "../secret")


@attack
def external_data_by_absolute_path(folder: Path, _: Path) -> None:
    graph_with(folder, str(outside(folder)))


@attack
def external_data_by_link(folder: Path, _: Path) -> None:
    (folder / "weights.bin").symlink_to(outside(folder))
    graph_with(folder, "weights.bin")


@attack
def external_data_by_hard_path(folder: Path, _: Path) -> None:
    (folder / "sub").mkdir()
    outside(folder)
    graph_with(folder, "sub/../../secret")


@attack
def external_data_from_a_device(folder: Path, _: Path) -> None:
    graph_with(folder, "/dev/zero", 4_000_000_000)


@attack
def external_data_from_a_pipe(folder: Path, _: Path) -> None:
    os.mkfifo(folder / "weights.bin")
    graph_with(folder, "weights.bin")


@attack
def custom_operator(folder: Path, _: Path) -> None:
    unlist(folder)
    model = onnx.load(str(folder / "model.onnx"))
    model.graph.node.add(op_type="Run", domain="evil", input=["input0"], output=["never"])
    model.opset_import.add(domain="evil", version=1)
    onnx.save(model, str(folder / "model.onnx"))


@attack
def garbage_model(folder: Path, _: Path) -> None:
    unlist(folder)
    (folder / "model.onnx").write_bytes(os.urandom(4096))


# Paths and replacements.


@attack
def manifest_that_leads_out(folder: Path, _: Path) -> None:
    listed = json.loads((folder / MANIFEST).read_text())
    listed["files"]["../secret"] = {"size_bytes": outside(folder).stat().st_size, "sha256": "0" * 64}
    (folder / MANIFEST).write_text(json.dumps(listed))


@attack
def changed_files_with_a_valid_manifest(folder: Path, _: Path) -> None:
    for name in ("model.onnx", "weights.safetensors"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@attack
def interrupted_replacement_that_leads_out(folder: Path, marker: Path) -> None:
    unlist(folder)
    (folder / ".commit").mkdir()
    (folder / ".commit" / "entries").write_text("previous\n../secret\nmodel.json")
    (folder / ".commit" / "previous").symlink_to(folder.parent)
    (folder / "previous").symlink_to(folder.parent)
    (folder / ".commit" / "model.json").symlink_to(outside(folder))


@attack
def commit_that_is_a_link(folder: Path, _: Path) -> None:
    unlist(folder)
    (folder.parent / "elsewhere").mkdir()
    (folder.parent / "elsewhere" / "entries").write_text("model.json")
    (folder / ".commit").symlink_to(folder.parent / "elsewhere")


@attack
def folder_in_place_of_the_model(folder: Path, _: Path) -> None:
    unlist(folder)
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").mkdir()
