"""Devices by name: the catalog, devices of users, and invalid files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.device.catalog import device, devices, read_devices, save_device
from onefold.device.device import Device
from onefold.vocabulary.errors import DeviceError

BOARD = Device("my-board", "My board", 4, 7.0, 3.5, 10**9, 1.0, 5.0, source="user")
NEEDED = (
    'title = "A"\ncores = 4\ngflops = 7\nbandwidth_gbps = 3.5\nmemory_bytes = 1_000_000_000\nidle_w = 1\nbusy_w = 5\n'
)
untimed = settings(deadline=None, max_examples=40)
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "devices.md"


def written(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_catalog_has_the_documented_devices() -> None:
    assert set(devices()) >= {
        "raspberry-pi-3b-plus",
        "raspberry-pi-4",
        "raspberry-pi-5",
        "jetson-nano",
        "jetson-xavier-nx",
        "intel-nuc-i7-7567u",
        "armv7-board",
        "cloud-vcpu-pair",
    }


@pytest.mark.parametrize("shipped", devices().values(), ids=lambda each: each.name)
def test_catalog_device_is_labeled_as_specification(shipped: Device) -> None:
    assert shipped.source == "catalog"
    assert shipped.note.startswith("specification: ")
    assert "measured" not in shipped.note
    assert shipped.frequency_ghz is not None
    assert shipped.architecture


@pytest.mark.parametrize("shipped", devices().values(), ids=lambda each: each.name)
def test_compute_agrees_with_the_note(shipped: Device) -> None:
    cycle = re.search(r"(\d+) fp32 operations a cycle", shipped.note)
    share = re.search(r"(\d+) % attainable", shipped.note)
    assert cycle
    assert share
    sharing = 2 if "hyper-threads of one server core" in shipped.note else 1
    peak = (shipped.frequency_ghz or 0) * int(cycle[1]) / sharing
    assert shipped.gflops == pytest.approx(peak * int(share[1]) / 100, rel=0.02)


def test_documented_table_is_the_catalog() -> None:
    _, _, below = DOCS.read_text().partition("| name | device |")
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.+) \|$", below, re.MULTILINE)
    expected = {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}
    assert expected == {
        each.name: [
            each.title,
            str(each.cores),
            f"{each.gflops:g}",
            f"{each.bandwidth_gbps:g}",
            f"{each.memory_bytes / 2**30:g}",
            f"{each.idle_w:g} / {each.busy_w:g}",
        ]
        for each in devices().values()
    }


def test_user_device_overrides_the_catalog(tmp_path: Path) -> None:
    save_device(replace(BOARD, name="raspberry-pi-4"), tmp_path)
    assert device("raspberry-pi-4", tmp_path).title == "My board"
    assert device("raspberry-pi-4").title != "My board"
    assert set(devices(tmp_path)) == set(devices())


def test_one_file_may_define_several_devices(tmp_path: Path) -> None:
    written(tmp_path, f"[one]\n{NEEDED}[two]\n{NEEDED}")
    assert {"one", "two"} <= set(devices(tmp_path))
    assert devices(tmp_path)["one"].source == "user"


def test_unknown_device_suggests_the_closest_name(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="unknown device 'rasberry-pi4'; did you mean 'raspberry-pi-4'"):
        device("rasberry-pi4", tmp_path)


def test_missing_folder_adds_no_devices(tmp_path: Path) -> None:
    assert devices(tmp_path / "none") == devices()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"[b]\n{NEEDED}corse = 1\n", "mine.toml: device 'b': unknown field 'corse'; did you mean 'cores'"),
        ('[b]\ntitle = "A"\n', "device 'b' lacks the required fields: cores, gflops"),
        (f"[b]\n{NEEDED}".replace("cores = 4", "cores = 0"), "cores must be an integer of at least 1, got 0"),
        (f"[b]\n{NEEDED}".replace("cores = 4", "cores = true"), "cores must be an integer"),
        (f"[b]\n{NEEDED}".replace("gflops = 7", 'gflops = "fast"'), "gflops must be a number above 0, got 'fast'"),
        (f"[b]\n{NEEDED}".replace("gflops = 7", "gflops = nan"), "gflops must be a number above 0"),
        (f"[b]\n{NEEDED}".replace('title = "A"', "title = 3"), "title must be a string"),
        (f"[b]\n{NEEDED}".replace("busy_w = 5", "busy_w = 0.5"), "busy_w must be at least idle_w"),
        ("cores = 4\n", "'cores' is outside a table"),
        ("[b", "is not valid TOML"),
        ("", "defines no device"),
        (f"[B_1]\n{NEEDED}", "lowercase letters, digits and '-' only, got 'B_1'"),
        (f"[host]\n{NEEDED}", "the name 'host' is reserved"),
    ],
)
def test_invalid_file_is_explained(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(DeviceError, match=re.escape(complaint)):
        read_devices(written(tmp_path, text))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"none\.toml cannot be read"):
        read_devices(tmp_path / "none.toml")


@pytest.mark.parametrize("name", ["../evil", "a/b", "", "Ab", "-x", "a.b"])
def test_name_cannot_escape_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeviceError, match="a name has lowercase letters"):
        save_device(replace(BOARD, name=name), tmp_path / "devices")
    assert not (tmp_path / "devices").exists()


figures = st.floats(min_value=1e-3, max_value=1e6)


@untimed
@given(
    title=st.text(st.characters(exclude_categories=["Cs", "Cc"])),
    gflops=figures,
    idle_w=figures,
    frequency=st.none() | figures,
    memory=st.integers(1, 2**50),
)
def test_saved_device_round_trips(
    tmp_path_factory: pytest.TempPathFactory,
    title: str,
    gflops: float,
    idle_w: float,
    frequency: float | None,
    memory: int,
) -> None:
    folder = tmp_path_factory.mktemp("devices")
    saved = replace(
        BOARD,
        title=title,
        gflops=gflops,
        idle_w=idle_w,
        busy_w=idle_w * 2,
        frequency_ghz=frequency,
        memory_bytes=memory,
        source="probe",
        note='with "quotes", a \\ and\na second line',
    )
    path = save_device(saved, folder)
    assert path == folder / "my-board.toml"
    assert read_devices(path) == [saved]


def test_a_device_may_be_like_another_one_at_another_frequency(tmp_path: Path) -> None:
    text = '[slow-pi]\nlike = "raspberry-pi-4"\nfrequency_ghz = 0.75\nmemory_bytes = 2_000_000_000\n'
    (slow,) = read_devices(written(tmp_path, text))
    pi = device("raspberry-pi-4")
    assert (slow.gflops, slow.memory_bytes, slow.cores) == (pi.gflops / 2, 2_000_000_000, 4)
    assert (slow.source, slow.name) == ("user", "slow-pi")
    assert slow.note.startswith("like raspberry-pi-4 at 0.75 GHz")
    with pytest.raises(DeviceError, match="unknown device 'raspberry-pi-9'"):
        read_devices(written(tmp_path, '[slow]\nlike = "raspberry-pi-9"\n'))


def test_measured_rates_survive_the_file(tmp_path: Path) -> None:
    rates, speeds = (("matmul", 160.5), ("relu", 70.0)), ((1, 1.0), (16, 9.5))
    probed = replace(BOARD, operator_rates=rates, thread_speed=speeds, int8_gops=300.0, call_us=4.5, spread=0.04)
    assert read_devices(save_device(probed, tmp_path)) == [probed]
    assert probed.digest == replace(probed, spread=0.2).digest != BOARD.digest
    with pytest.raises(DeviceError, match="operator_rates must have numbers above 0, got matmul = 'x'"):
        read_devices(written(tmp_path, f'[bad]\n{NEEDED}operator_rates = {{matmul = "x"}}\n'))
