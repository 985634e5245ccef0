"""What a stranger may put into a model folder. Each attack changes a valid folder; code that runs writes a marker.

Each attack has a control: what a careless reader would do with the folder. It returns whether the attack succeeds then,
so that a case in which nothing happens shows a defense and not a blunt attack.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper

from onefold.model_folder import MANIFEST
from onefold.vocabulary.workload_reference import load

SECRET = b"the content of a file outside of the folder: " + bytes(range(256)) * 16
BOMB_BYTES = 6_000_000_000

PICKLE, LIBRARY, CARD, PATH, BOMB, ONNX = (
    "pickle", "native library", "code in a card", "path or replacement", "bomb", "hostile ONNX",
)  # fmt: skip
Change = Callable[[Path, Path], None]  # the folder; the marker that code would write
Control = Callable[[Path, Path], bool]


@dataclass(frozen=True)
class Attack:
    """An attack of one kind: `attack(folder, marker)` prepares the folder."""

    kind: str
    change: Change
    succeeds: Control  # for a careless reader

    def __call__(self, folder: Path, marker: Path) -> None:
        self.change(folder, marker)


ATTACKS: dict[str, Attack] = {}


def attack(kind: str, control: Control) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        ATTACKS[change.__name__] = Attack(kind, change, control)
        return change

    return register


# Controls.


def unpickles(name: str) -> Control:
    """Unpickle a file."""

    def control(folder: Path, marker: Path) -> bool:
        with (folder / name).open("rb") as file:
            pickle.load(file)
        return marker.exists()

    return control


def loads_with_torch(folder: Path, marker: Path) -> bool:
    torch.load(folder / "weights.pt", weights_only=False)
    return marker.exists()


def loads_pickled_array(folder: Path, marker: Path) -> bool:
    with np.load(folder / "model.npz", allow_pickle=True) as arrays:
        list(arrays.values())
    return marker.exists()


def loads_library(folder: Path, marker: Path) -> bool:
    """Load the library that kernels.json names, in another process."""
    named = folder / json.loads((folder / "kernels.json").read_text())["file"]
    subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(named)!r})"], check=True)
    return marker.exists()


def imports_workload(folder: Path, marker: Path) -> bool:
    """Import the workload that the card names, as Onefold does for a folder that is trusted."""
    reference = json.loads((folder / "model.json").read_text())["workload"]
    load(reference)
    return marker.exists()


def reads_outside(name: str) -> Control:
    """Read a file by its name in the folder."""
    return lambda folder, _: (folder / name).read_bytes() == SECRET


def reads_external_data(folder: Path, _: Path) -> bool:
    """Read the weights of a model from where it says they are."""
    (weights,) = onnx.load(str(folder / "model.onnx"), load_external_data=False).graph.initializer
    place = {entry.key: entry.value for entry in weights.external_data}
    path = folder / place["location"]
    if not path.is_file():
        return stat.S_ISFIFO(path.stat().st_mode) or stat.S_ISCHR(path.stat().st_mode)  # has no end
    length = int(place["length"])
    return length > 1000 and path.read_bytes()[:length] == SECRET[:length]


def would_block(name: str) -> Control:
    """Open a pipe for reading: without a writer this never returns."""
    return lambda folder, _: stat.S_ISFIFO((folder / name).stat().st_mode)


def is_larger_than(limit_bytes: int, *names: str) -> Control:
    return lambda folder, _: all((folder / name).stat().st_size > limit_bytes for name in names)


def claims_gigabytes(folder: Path, _: Path) -> bool:
    """Read the header of an array as numpy does before it allocates."""
    with zipfile.ZipFile(folder / "model.npz") as archive, archive.open("input0.npy") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return int(np.prod(shape)) * dtype.itemsize >= BOMB_BYTES - 4 > (folder / "model.npz").stat().st_size


def is_too_deep(folder: Path, _: Path) -> bool:
    try:
        json.loads((folder / "model.json").read_text())
    except RecursionError:
        return True
    return False


def claims_terabytes(folder: Path, _: Path) -> bool:
    content = (folder / "weights.safetensors").read_bytes()
    return int(json.loads(content[8:])["w"]["data_offsets"][1]) > 1000 * len(content)


def cannot_run(folder: Path, _: Path) -> bool:
    try:
        onnxruntime.InferenceSession(str(folder / "model.onnx"))
    except Exception:  # noqa: BLE001 - the runtime has exceptions of its own
        return True
    return False


def differs_from_manifest(folder: Path, _: Path) -> bool:
    files = json.loads((folder / MANIFEST).read_text())["files"]
    return any(sha256((folder / name).read_bytes()).hexdigest() != entry["sha256"] for name, entry in files.items())


def leads_out(*names: str) -> Control:
    return lambda folder, _: all(not (folder / name).resolve().is_relative_to(folder.resolve()) for name in names)


# Links and pipes.


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
    ATTACKS[f"link_{_name}"] = Attack(
        "symbolic link", lambda folder, _, name=_name: replace_by_link(folder, name), reads_outside(_name)
    )  # type: ignore[misc]
for _name in (*FILES, MANIFEST):
    ATTACKS[f"pipe_{_name}"] = Attack(
        "pipe", lambda folder, _, name=_name: replace_by_pipe(folder, name), would_block(_name)
    )  # type: ignore[misc]


# Pickles.


@attack(PICKLE, unpickles("weights.pt"))
def pickled_weights(folder: Path, marker: Path) -> None:
    unlist(folder)
    (folder / "weights.safetensors").unlink()
    (folder / "weights.pt").write_bytes(pickle.dumps({"model": Payload(marker)}))


@attack(PICKLE, unpickles("weights.safetensors"))
def pickle_named_safetensors(folder: Path, marker: Path) -> None:
    unlist(folder)
    (folder / "weights.safetensors").write_bytes(pickle.dumps(Payload(marker)))


@attack(PICKLE, loads_with_torch)
def torch_archive_with_code(folder: Path, marker: Path) -> None:
    unlist(folder)
    (folder / "weights.safetensors").unlink()
    with zipfile.ZipFile(folder / "weights.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Payload(marker)))
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")


@attack(PICKLE, loads_pickled_array)
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


@attack(LIBRARY, loads_library)
def native_library(folder: Path, marker: Path) -> None:
    unlist(folder)
    shutil.copy(library(folder, marker), folder / "kernels.so")


@attack(LIBRARY, loads_library)
def native_library_beside_a_valid_manifest(folder: Path, marker: Path) -> None:
    shutil.copy(library(folder, marker), folder / "kernels.so")


@attack(LIBRARY, loads_library)
def library_above_the_folder(folder: Path, marker: Path) -> None:
    unlist(folder)
    library(folder, marker)
    edit(folder / "kernels.json", file="../outside.so")


@attack(LIBRARY, loads_library)
def library_by_absolute_path(folder: Path, marker: Path) -> None:
    unlist(folder)
    edit(folder / "kernels.json", file=str(library(folder, marker)))


@attack(LIBRARY, loads_library)
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


@attack(CARD, imports_workload)
def workload_in_the_folder(folder: Path, marker: Path) -> None:
    with_workload(folder, f"{evil_module(folder, marker, folder / 'evil.py')}:W")


@attack(CARD, imports_workload)
def workload_beside_the_folder(folder: Path, marker: Path) -> None:
    with_workload(folder, f"{evil_module(folder, marker, folder.parent / 'evil.py')}")


@attack(CARD, imports_workload)
def workload_in_the_current_folder(folder: Path, marker: Path) -> None:
    evil_module(folder, marker, Path("evil_module.py"))
    with_workload(folder, "evil_module:W")


@attack(CARD, imports_workload)
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


@attack(BOMB, claims_gigabytes)
def samples_that_claim_gigabytes(folder: Path, _: Path) -> None:
    unlist(folder)
    zeros_archive(folder / "model.npz", (BOMB_BYTES // 4,))


@attack(BOMB, is_too_deep)
def deeply_nested_json(folder: Path, _: Path) -> None:
    unlist(folder)
    for name in ("model.json", "deployment.json", "kernels.json"):
        (folder / name).write_text("[" * 500_000)


@attack(BOMB, is_larger_than(10**10, "model.json", "deployment.json", "kernels.json", MANIFEST))
def enormous_json(folder: Path, _: Path) -> None:
    unlist(folder)
    for name in ("model.json", "deployment.json", "kernels.json", MANIFEST):
        with (folder / name).open("wb") as file:
            file.truncate(40_000_000_000)  # a sparse file


@attack(BOMB, claims_terabytes)
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


@attack(ONNX, reads_external_data)
def external_data_above_the_folder(folder: Path, _: Path) -> None:
    outside(folder)
    graph_with(folder, "../secret")


@attack(ONNX, reads_external_data)
def external_data_by_absolute_path(folder: Path, _: Path) -> None:
    graph_with(folder, str(outside(folder)))


@attack(ONNX, reads_external_data)
def external_data_by_link(folder: Path, _: Path) -> None:
    (folder / "weights.bin").symlink_to(outside(folder))
    graph_with(folder, "weights.bin")


@attack(ONNX, reads_external_data)
def external_data_by_hard_path(folder: Path, _: Path) -> None:
    (folder / "sub").mkdir()
    outside(folder)
    graph_with(folder, "sub/../../secret")


@attack(ONNX, reads_external_data)
def external_data_from_a_device(folder: Path, _: Path) -> None:
    graph_with(folder, "/dev/zero", 4_000_000_000)


@attack(ONNX, reads_external_data)
def external_data_from_a_pipe(folder: Path, _: Path) -> None:
    os.mkfifo(folder / "weights.bin")
    graph_with(folder, "weights.bin")


@attack(ONNX, cannot_run)
def custom_operator(folder: Path, _: Path) -> None:
    unlist(folder)
    model = onnx.load(str(folder / "model.onnx"))
    model.graph.node.add(op_type="Run", domain="evil", input=["input0"], output=["never"])
    model.opset_import.add(domain="evil", version=1)
    onnx.save(model, str(folder / "model.onnx"))


@attack(ONNX, cannot_run)
def garbage_model(folder: Path, _: Path) -> None:
    unlist(folder)
    (folder / "model.onnx").write_bytes(os.urandom(4096))


# Paths and replacements.


@attack(PATH, reads_outside("../secret"))
def manifest_that_leads_out(folder: Path, _: Path) -> None:
    listed = json.loads((folder / MANIFEST).read_text())
    listed["files"]["../secret"] = {"size_bytes": outside(folder).stat().st_size, "sha256": "0" * 64}
    (folder / MANIFEST).write_text(json.dumps(listed))


@attack(PATH, differs_from_manifest)
def changed_files_with_a_valid_manifest(folder: Path, _: Path) -> None:
    for name in ("model.onnx", "weights.safetensors"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@attack(PATH, leads_out(".commit/previous", ".commit/model.json", "previous"))
def interrupted_replacement_that_leads_out(folder: Path, marker: Path) -> None:
    unlist(folder)
    (folder / ".commit").mkdir()
    (folder / ".commit" / "entries").write_text("previous\n../secret\nmodel.json")
    (folder / ".commit" / "previous").symlink_to(folder.parent)
    (folder / "previous").symlink_to(folder.parent)
    (folder / ".commit" / "model.json").symlink_to(outside(folder))


@attack(PATH, leads_out(".commit"))
def commit_that_is_a_link(folder: Path, _: Path) -> None:
    unlist(folder)
    (folder.parent / "elsewhere").mkdir()
    (folder.parent / "elsewhere" / "entries").write_text("model.json")
    (folder / ".commit").symlink_to(folder.parent / "elsewhere")


@attack(PATH, lambda folder, _: (folder / "model.onnx").is_dir())
def folder_in_place_of_the_model(folder: Path, _: Path) -> None:
    unlist(folder)
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").mkdir()
