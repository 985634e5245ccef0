"""New generations of a model folder: complete or absent, whatever happens while they are written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from onefold.model_folder import check_target, generation, new_generation, open_folder
from onefold.model_folder.generation import COMMIT, OWN_NAMES, complete_replacement
from onefold.vocabulary.errors import InputError, ModelError, UntrustedFolder

NAMES = ("model.json", "model.onnx", "weights.safetensors")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(params=["exchanged", "in place"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, home: Path) -> Path:
    """A folder of the first generation; in place if it also holds a file of the user."""
    folder = tmp_path / "deploy"
    write(folder, home, "first")
    if request.param == "in place":
        (folder / "notes.txt").write_text("mine")
    return folder


def write(folder: Path, home: Path, content: str, names: tuple[str, ...] = NAMES) -> None:
    with new_generation(folder, home=home) as new:
        for name in names:
            (new / name).write_text(content)


def contents(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in sorted(os.listdir(folder)) if name in NAMES}  # noqa: PTH208


def test_a_generation_replaces_the_one_before(folder: Path, home: Path) -> None:
    write(folder, home, "second", NAMES[:2])
    assert contents(folder) == dict.fromkeys(NAMES[:2], "second")
    assert open_folder(folder, home=home).is_trusted
    others = {path.name for path in folder.iterdir()} - OWN_NAMES
    assert others <= {"notes.txt"}
    assert {path.name for path in folder.parent.iterdir()} == {"deploy", "home"}


def test_an_update_starts_from_the_present_files(folder: Path, home: Path) -> None:
    (folder / "previous").mkdir()
    (folder / "previous" / "model.json").write_text("older")
    with new_generation(folder, home=home, update=True) as new:
        (new / "model.json").write_text("second")
    assert contents(folder) == {**dict.fromkeys(NAMES, "first"), "model.json": "second"}
    assert (folder / "previous" / "model.json").read_text() == "older"


def test_an_error_changes_nothing(folder: Path, home: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(FileNotFoundError), new_generation(folder, home=home) as new:
        (new / "model.json").write_bytes((folder / "nothing").read_bytes())
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]


def test_the_current_folder_and_files_of_the_user_stay(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("code.py").write_text("mine")
    for content in ("first", "second"):
        write(Path(), home, content)
    assert Path("code.py").read_text() == "mine"  # the shell's current folder is still this one
    assert contents(Path()) == dict.fromkeys(NAMES, "second")


def test_a_symbolic_link_to_a_folder_is_followed(folder: Path, home: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    write(link, home, "second")
    assert link.is_symlink()
    assert contents(folder) == dict.fromkeys(NAMES, "second")


WRITER = """
import sys
from pathlib import Path
from onefold.model_folder import generation, new_generation
folder, home, stop = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
import os, signal, shutil
count = 0
def kill_at(name):
    real = getattr(os, name)
    def call(*args, **kwargs):
        global count
        result = real(*args, **kwargs)
        count += 1
        if count == int(stop):
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(os, name, call)
for name in ("open", "rename", "replace", "unlink", "mkdir", "fsync", "rmdir"):
    kill_at(name)
with new_generation(folder, home=home) as new:
    for name in ("model.json", "model.onnx"):
        (new / name).write_text("second")
"""


@pytest.mark.parametrize("step", [1, 4, 8, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 28])
def test_a_writer_killed_at_any_step_leaves_one_whole_generation(folder: Path, home: Path, step: int) -> None:
    killed = subprocess.run([sys.executable, "-c", WRITER, folder, home, str(step)], capture_output=True, check=False)
    assert killed.returncode in (0, -signal.SIGKILL), killed.stderr.decode()
    opened = open_folder(folder, home=home)  # completes a replacement in place, and checks the digests
    assert opened.is_trusted
    assert contents(folder) in (dict.fromkeys(NAMES, "first"), dict.fromkeys(NAMES[:2], "second"))
    assert not (folder / COMMIT).exists()
    write(folder, home, "third")  # and the next writer removes what the killed one left
    assert contents(folder) == dict.fromkeys(NAMES, "third")
    assert {path.name for path in folder.iterdir()} - OWN_NAMES <= {"notes.txt"}
    assert {path.name for path in folder.parent.iterdir()} == {"deploy", "home"}


def test_an_interrupted_replacement_in_place_is_completed(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "deploy"
    write(folder, home, "first")
    write(tmp_path / "next", home, "second", NAMES[:2])
    (tmp_path / "next" / "entries").write_text("\n".join((*NAMES[:2], "manifest.json")))
    (tmp_path / "next" / "model.json").rename(folder / "model.json")  # moved before the kill
    (tmp_path / "next").rename(folder / COMMIT)
    complete_replacement(folder)
    assert contents(folder) == dict.fromkeys(NAMES[:2], "second")
    assert open_folder(folder, home=home).is_trusted


def test_a_reader_waits_for_a_replacement_in_place(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "deploy"
    write(folder, home, "first")
    (folder / "notes.txt").write_text("mine")
    (folder / "previous").mkdir()
    opened: list[dict[str, str]] = []
    reader = threading.Thread(target=lambda: opened.append(open_folder(folder, home=home) and contents(folder)))
    sync = generation._sync_entries  # called when the files of the new generation are in their places

    def read_meanwhile(path: Path) -> None:
        if path == folder and not reader.ident:
            reader.start()
            reader.join(0.2)
        sync(path)

    monkeypatch.setattr(generation, "_sync_entries", read_meanwhile)
    with new_generation(folder, home=home, update=True) as new:
        (new / "previous" / "model.json").write_text("older")
    reader.join()
    assert opened == [dict.fromkeys(NAMES, "first")]
    assert (folder / "previous" / "model.json").read_text() == "older"


def test_a_file_in_place_of_a_folder_is_replaced(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "deploy"
    write(folder, home, "first")
    (tmp_path / "victim").write_text("mine")
    (folder / "notes.txt").write_text("mine")
    (folder / "previous").symlink_to(tmp_path / "victim")
    with new_generation(folder, home=home) as new:
        (new / "previous").mkdir()
        (new / "model.json").write_text("second")
    assert open_folder(folder, home=home).is_trusted
    assert (folder / "previous").is_dir()
    assert (tmp_path / "victim").read_text() == "mine"


@pytest.mark.parametrize(
    "mine", ["README.md", "model.onnx", "compressed/notes.txt", "compressed/model.onnx", "previous/model.json/x"]
)
def test_files_of_the_user_are_never_replaced(tmp_path: Path, home: Path, mine: str) -> None:
    file = tmp_path / "project" / mine
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    name = mine.partition("/")[0]
    with pytest.raises(ModelError, match=f"project has {name}, which Onefold did not write and would replace; give an"):
        write(tmp_path / "project", home, "first")
    with pytest.raises(ModelError, match="did not write"):
        check_target(tmp_path / "project")
    assert file.read_text() == "mine"
    assert [path for path in (tmp_path / "project").rglob("*") if path.is_file()] == [file]


def test_a_subfolder_of_the_next_generation_may_not_hold_files_of_the_user(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "deploy"
    write(folder, home, "first")
    write(folder / "compressed", home, "first")
    write(folder, home, "second")
    assert not (folder / "compressed").exists(), "a model of Onefold is replaced as a whole"
    write(folder / "compressed", home, "second")
    (folder / "compressed" / "notes.txt").write_text("mine")
    with pytest.raises(ModelError, match="deploy has compressed, which Onefold did not write"):
        write(folder, home, "third")


def test_a_folder_for_a_model_is_checked_before_the_work(tmp_path: Path) -> None:
    check_target(tmp_path / "new" / "folder", "save")
    assert not list(tmp_path.iterdir()), "nothing is left behind"
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(InputError, match=r"save must be a folder, but .*/file is a file; give another folder"):
            check_target(folder, "save")
    with pytest.raises(InputError, match=r"folder must be a writable folder, but nothing can be written in /proc \("):
        check_target("/proc/new")


class TestOpening:
    """What `open_folder` accepts and trusts."""

    @pytest.fixture
    def plain(self, tmp_path: Path, home: Path) -> Path:
        write(tmp_path / "deploy", home, "first")
        return tmp_path / "deploy"

    def test_only_the_home_that_wrote_a_folder_trusts_it(self, plain: Path, home: Path, tmp_path: Path) -> None:
        assert open_folder(plain, home=home).is_trusted
        stranger = open_folder(plain, home=tmp_path / "other")
        assert not stranger.is_trusted
        with pytest.raises(UntrustedFolder, match=r"the native library kernels\.so would run code .* trust=True"):
            stranger.code("kernels.so")
        assert open_folder(plain, home=tmp_path / "other", trust=True).is_trusted

    def test_a_folder_without_a_manifest_is_not_trusted(self, tmp_path: Path, home: Path) -> None:
        assert not open_folder(tmp_path, home=home).is_trusted

    def test_a_generation_with_files_of_strangers_is_not_recorded(self, tmp_path: Path, home: Path) -> None:
        with new_generation(tmp_path / "deploy", home=home, record=False) as new:
            (new / "model.json").write_text("{}")
        assert not open_folder(tmp_path / "deploy", home=home).is_trusted

    @pytest.mark.parametrize("name", ["weights.pt", "model.npz", "kernels.json", "kernels.before.onnx"])
    def test_a_file_that_was_added_is_refused(self, plain: Path, home: Path, name: str) -> None:
        (plain / name).write_text("added")
        with pytest.raises(ModelError, match=rf"{name} was added .* manifest\.json does not list it; remove it"):
            open_folder(plain, home=home)

    def test_documents_and_other_files_may_be_added(self, plain: Path, home: Path) -> None:
        for name in ("README.md", "retraining.html", "notes.txt"):
            (plain / name).write_text("mine")
        assert open_folder(plain, home=home).is_trusted

    @pytest.mark.parametrize("place", ["nothing", "link", "file", "pipe", "long"])
    def test_what_is_no_complete_generation_is_refused(
        self, plain: Path, home: Path, tmp_path: Path, place: str
    ) -> None:
        commit = plain / COMMIT
        if place == "link":
            commit.symlink_to(tmp_path)
        elif place == "file":
            commit.write_text("model.json")
        else:
            commit.mkdir()
        if place == "pipe":
            os.mkfifo(commit / "entries")
        elif place == "long":
            (commit / "entries").write_text("model.json\n" * 100_000)
        with pytest.raises(ModelError, match=r"\.commit is not a complete model: .*; remove it"):
            open_folder(plain, home=home)
        assert contents(plain) == dict.fromkeys(NAMES, "first")

    @pytest.mark.parametrize("name", NAMES)
    def test_changed_and_missing_files_are_refused(self, plain: Path, home: Path, name: str) -> None:
        (plain / name).write_text("frist")
        with pytest.raises(ModelError, match=f"{name} was changed after it was written"):
            open_folder(plain, home=home)
        (plain / name).unlink()
        with pytest.raises(ModelError, match=f"has no {name}, which its manifest.json lists"):
            open_folder(plain, home=home)

    def test_people_may_edit_documents(self, plain: Path, home: Path) -> None:
        with new_generation(plain, home=home, update=True) as new:
            (new / "README.md").write_text("card")
        (plain / "README.md").write_text("my own words")
        assert open_folder(plain, home=home).is_trusted

    def test_a_library_that_is_not_listed_is_not_code_of_the_folder(self, plain: Path, home: Path) -> None:
        (plain / "planted.so").write_text("planted")
        with pytest.raises(ModelError, match="is not listed in the manifest"):
            open_folder(plain, home=home).code("planted.so")

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"files": 3}', "[" * 99_999, '{"files": {}, "version": 9}'])
    def test_an_invalid_manifest_is_refused(self, plain: Path, home: Path, text: str) -> None:
        (plain / "manifest.json").write_text(text)
        with pytest.raises(ModelError, match=r"manifest\.json (cannot be read|was written by a later version)"):
            open_folder(plain, home=home)

    @pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "sub/../../outside", "link", "pipe", "a\0b"])
    def test_paths_stay_inside(self, plain: Path, home: Path, name: str) -> None:
        (plain.parent / "outside").write_text("secret")
        (plain / "link").symlink_to("../outside")
        os.mkfifo(plain / "pipe")
        with pytest.raises(ModelError, match="is not accepted"):
            open_folder(plain, home=home).file(name)
        manifest = json.loads((plain / "manifest.json").read_text())
        manifest["files"][name] = {"size_bytes": 6, "sha256": "0" * 64}
        (plain / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(ModelError, match="is not accepted"):
            open_folder(plain, home=home)

    def test_no_folder(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="there is no folder"):
            open_folder(tmp_path / "none")


def test_a_file_that_was_changed_is_not_copied_into_the_next_generation(folder: Path, home: Path) -> None:
    (folder / "model.onnx").write_text("evil!")
    with (
        pytest.raises(ModelError, match=r"deploy/model\.onnx was changed after it was written"),
        new_generation(folder, home=home, update=True),
    ):
        pytest.fail("the folder was accepted")
    assert contents(folder) == {**dict.fromkeys(NAMES, "first"), "model.onnx": "evil!"}


def test_a_folder_that_is_replaced_by_a_stranger_while_it_is_updated_is_not_trusted(folder: Path, home: Path) -> None:
    opened = open_folder(folder, home=home)
    write(folder, home.with_name("stranger"), "evil")
    with new_generation(folder, home=home, update=True, record=opened.is_trusted, opened=opened.manifest) as new:
        (new / "model.json").write_text("mine")
    assert not open_folder(folder, home=home).is_trusted


def test_a_folder_that_was_trusted_explicitly_stays_so_when_it_is_updated(folder: Path, home: Path) -> None:
    other = home.with_name("other")
    opened = open_folder(folder, home=other, trust=True)
    with new_generation(folder, home=other, update=True, record=opened.is_trusted, opened=opened.manifest) as new:
        (new / "model.json").write_text("mine")
    assert open_folder(folder, home=other).is_trusted
