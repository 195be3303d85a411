"""Device profiles: those that ship, those of a user's own, and the one of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from edge_targets.load import MachineTraits, all_targets, find_target, read_target, target_of
from edge_targets.profile import TargetProfile

from edge_runtime.errors import TargetError, UnknownTargetError
from edge_runtime.providers.catalog import load_providers
from edge_runtime.store.names import RECIPES

PROFILE = """
title = "A box"
order = 1
dialect = "fused"
precision = "float32"
static_shapes = false
recipe = "int4"
cache = "float32"
chunk = 64
slots = 2
oldest_onnxruntime = "1.23"
[[providers]]
name = "CPUExecutionProvider"
"""
NAMES = {
    "jetson-orin-nano", "jetson-agx-orin", "jetson-thor", "raspberry-pi-5", "x86-laptop",
    "x86-server-small", "rtx-laptop", "windows-directml", "windows-qnn", "macos-arm",
    "android-qnn", "android-cpu", "ios-coreml", "browser",
}  # fmt: skip


def own(folder: Path, text: str) -> Path:
    file = folder / "box.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_every_promised_device_has_a_profile() -> None:
    assert set(all_targets()) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_profile_names_known_providers_with_the_cpu_among_them(name: str) -> None:
    _, target = find_target(name)
    names = [choice.name for choice in target.providers]
    assert all(load_providers().find(provider).name == provider for provider in names)
    assert "CPUExecutionProvider" in names
    assert target.recipe in RECIPES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_profiles_graph_suits_its_first_provider(name: str) -> None:
    _, target = find_target(name)
    first = load_providers().find(target.providers[0].name)
    assert target.dialect in first.dialects
    assert target.static_shapes == first.static_shapes


@pytest.mark.parametrize(
    "traits, name",
    [
        (("linux", "aarch64", "NVIDIA Jetson Orin Nano Developer Kit", ("nvidia",)), "jetson-orin-nano"),
        (("linux", "aarch64", "NVIDIA Jetson AGX Orin Developer Kit", ("nvidia",)), "jetson-agx-orin"),
        (("linux", "aarch64", "NVIDIA Jetson AGX Thor", ("nvidia",)), "jetson-thor"),
        (("linux", "aarch64", "Raspberry Pi 5 Model B Rev 1.0", ()), "raspberry-pi-5"),
        (("linux", "x86_64", "Legion 5", ("intel", "nvidia")), "rtx-laptop"),
        (("linux", "x86_64", None, ("intel",)), "x86-server-small"),
        (("darwin", "aarch64", None, ("apple",)), "macos-arm"),
        (("windows", "aarch64", None, ()), "windows-qnn"),
        (("windows", "x86_64", None, ()), "windows-directml"),
        (("android", "aarch64", None, ()), "android-cpu"),
    ],
)  # fmt: skip
def test_a_machine_gets_its_own(traits: tuple, name: str) -> None:
    assert target_of(MachineTraits(*traits, battery=False))[0] == name


def test_a_battery_tells_a_laptop_from_a_server() -> None:
    assert target_of(MachineTraits("linux", "x86_64", None, (), True))[0] == "x86-laptop"


def test_a_machine_that_no_profile_is_for_is_told_so() -> None:
    with pytest.raises(UnknownTargetError, match="linux on riscv64") as caught:
        target_of(MachineTraits("linux", "riscv64", None, (), False))
    assert ".toml" in str(caught.value.hint)


def test_an_unknown_name_gets_near_ones() -> None:
    with pytest.raises(UnknownTargetError, match="'rasberry-pi'") as caught:
        find_target("rasberry-pi")
    assert caught.value.hint == "did you mean raspberry-pi-5?"
    with pytest.raises(UnknownTargetError) as caught:
        find_target("")
    assert "known: jetson-orin-nano" in str(caught.value.hint)


def test_a_users_own_file_is_a_target(tmp_path: Path) -> None:
    name, target = find_target(str(own(tmp_path, PROFILE)))
    assert name == "box" and isinstance(target, TargetProfile) and target.slots == 2


@pytest.mark.parametrize(
    "wrong, words",
    [
        ('slots = "two"', "slots should be int, found 'two'"),
        ("slots = 0", "slots is 0; it must be 1 or more"),
        ("slots = true", "slots should be int, found True"),
        ("slots = 2\nmemory_share = 1.5", "memory_share is 1.5"),
        ("", "slots is missing"),
        ("slots = ", "line"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_with_its_place(
    tmp_path: Path, wrong: str, words: str
) -> None:
    file = own(tmp_path, PROFILE.replace("slots = 2", wrong))
    with pytest.raises(TargetError, match=r"box\.toml") as caught:
        read_target(file)
    assert words in caught.value.message and "\n" not in caught.value.message


@pytest.mark.parametrize(
    "old, new, words",
    [
        ('"fused"', '"native"', "dialect is 'native'; it must be fused or portable"),
        ('"int4"', '"int3"', "recipe is 'int3'"),
        ('name = "CPUExecutionProvider"', "name = 3", "providers[0].name should be str"),
        ('"1.23"', '"new"', "oldest_onnxruntime is 'new'"),
    ],
)
def test_choices_are_checked(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(TargetError) as caught:
        read_target(own(tmp_path, PROFILE.replace(old, new)))
    assert words in caught.value.message


def test_a_file_that_is_not_there_or_no_text_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cannot be read"):
        find_target(str(tmp_path / "none.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(TargetError, match=r"bytes\.toml"):
        find_target(str(tmp_path / "bytes.toml"))


def test_options_are_written_as_a_command_line_has_them() -> None:
    _, target = find_target("x86-laptop")
    assert target.provider_texts[-1] == "OpenVINOExecutionProvider:device_type=GPU"
