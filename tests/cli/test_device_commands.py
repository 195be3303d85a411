"""doctor, targets, and the two arguments that choose a device."""

from __future__ import annotations

import json
import shutil
import warnings
from argparse import Namespace
from pathlib import Path

import pytest

from edge_runtime.cli.device import DeviceDefaults, defaults_of, device_defaults, split_providers
from edge_runtime.cli.main import main
from edge_runtime.errors import InvalidParameterError, TargetError, UnknownTargetError
from edge_runtime.providers.machine import Machine

SERVER = Machine("linux", "x86_64", memory_bytes=16_000_000_000)


@pytest.fixture(autouse=True)
def empty_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGE_RUNTIME_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("onnxruntime", "gguf", "onnx"):
        pytest.importorskip(name)
    from edge_export.pipeline import export_model
    from support.tiny_gguf import write_tiny_gguf

    folder = tmp_path_factory.mktemp("device")
    write_tiny_gguf(folder / "tiny.gguf", kind="Q8_0")
    return export_model(folder / "tiny.gguf", folder / "bundle").bundle_path


def arguments(provider: str | None = None, target: str | None = None) -> Namespace:
    return Namespace(provider=provider, target=target)


def test_doctor_tells_machine_onnxruntime_and_providers(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("machine")
    assert "PROVIDER" in out and "cpu " in out
    assert "MODEL" not in out, "the store is empty"


def test_doctor_as_json_has_the_same(
    capsys: pytest.CaptureFixture[str], bundle: Path, tmp_path: Path
) -> None:
    shutil.copytree(bundle, tmp_path / "home/bundles/tiny-12345678/auto")
    assert main(["doctor", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["onnxruntime"] and plain["machine"]["system"]
    ready = {p["short_name"] for p in plain["providers"] if p["state"] == "ready"}
    assert "cpu" in ready
    (model,) = plain["models"]
    assert model["outlook"]["provider"] == "CPUExecutionProvider"
    assert model["outlook"]["graph"] == "decoder.onnx" and model["outlook"]["reason"]


def test_a_broken_bundle_does_not_stop_doctor(
    capsys: pytest.CaptureFixture[str], bundle: Path, tmp_path: Path
) -> None:
    shutil.copytree(bundle, tmp_path / "home/bundles/tiny-12345678/auto")
    assert main(["list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
    manifest = tmp_path / "home/bundles/tiny-12345678/auto/manifest.json"
    manifest.write_text(manifest.read_text().replace('"graphs"', '"grafs"'))
    assert main(["doctor"]) == 0


def test_targets_lists_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets"]) == 0
    assert "jetson-orin-nano" in capsys.readouterr().out
    assert main(["targets", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert {"name", "this_machine", "providers", "recipe", "chunk"} <= set(plain[0])
    assert sum(target["this_machine"] for target in plain) <= 1


def test_without_either_argument_nothing_is_said() -> None:
    assert device_defaults(arguments()) == DeviceDefaults()


def test_providers_are_split_at_commas() -> None:
    assert device_defaults(arguments("cuda, cpu")).providers == ("cuda", "cpu")
    for wrong in ("", "cuda,", ",cpu"):
        with pytest.raises(InvalidParameterError, match="--provider"):
            split_providers(wrong)


def test_a_target_gives_what_the_command_line_leaves_open() -> None:
    from edge_targets.load import find_target

    given = defaults_of(*find_target("x86-server-small"), SERVER, None)
    assert given.memory_cap_bytes == 9_600_000_000
    assert given.providers[0] == "CPUExecutionProvider"
    filled = given.fill(slots=None, chunk_size=16, memory_cap_bytes=1000, threads=None)
    assert filled == {"slots": 4, "chunk_size": 16, "memory_cap_bytes": 1000}


def test_providers_that_were_asked_for_win_over_the_targets() -> None:
    from edge_targets.load import find_target

    assert defaults_of(*find_target("rtx-laptop"), SERVER, ("cpu",)).providers == ("cpu",)


def test_a_target_bounds_the_threads_and_sets_no_cap_where_none_can_be_kept() -> None:
    from edge_targets.load import find_target

    pi = defaults_of(*find_target("raspberry-pi-5"), Machine("darwin", "aarch64"), None)
    assert pi.threads is not None and 1 <= pi.threads <= 4
    assert pi.memory_cap_bytes is None


def test_an_unknown_target_and_a_bad_profile_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownTargetError):
        device_defaults(arguments(target="nope"))
    (tmp_path / "bad.toml").write_text("title = 3")
    with pytest.raises(TargetError, match="title should be str"):
        device_defaults(arguments(target=str(tmp_path / "bad.toml")))


def run(bundle: Path, *more: str) -> int:
    return main(["run", str(bundle), "--raw", "hello", "--max-tokens", "2", *more])


def test_a_provider_that_is_not_here_is_an_error_alone_and_a_warning_with_the_cpu(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(bundle, "--provider", "directml") == 1
    told = capsys.readouterr()
    assert "error: DmlExecutionProvider is not in this onnxruntime" in told.err
    assert told.out == ""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(bundle, "--provider", "directml,cpu", "--verbose") == 0
    told = capsys.readouterr()
    assert "warning: DmlExecutionProvider" in told.err
    assert "CPUExecutionProvider runs instead" in told.err
    assert "provider  CPUExecutionProvider" in told.err


def test_a_mistyped_provider_is_a_usage_error(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(bundle, "--provider", "cudda") == 2
    assert "did you mean cuda?" in capsys.readouterr().err


def test_a_run_as_a_target_takes_its_rules(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(bundle, "--target", "raspberry-pi-5", "--memory-cap", "2G") == 0
    assert run(bundle, "--target", "rasberry-pi") == 2
    assert "did you mean raspberry-pi-5?" in capsys.readouterr().err


def test_a_target_adds_its_graphs_and_its_recipe_to_an_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxruntime")
    from support.tiny_gguf import write_tiny_gguf

    write_tiny_gguf(tmp_path / "tiny.gguf", kind="Q8_0")
    export = ["export", str(tmp_path / "tiny.gguf"), "-o", str(tmp_path / "made")]
    assert main([*export, "--target", "nope"]) == 2
    assert not (tmp_path / "made").exists()
    capsys.readouterr()
    asked = ["--target", "windows-qnn", "--target", "ios-coreml", "--json"]
    assert main([*export, *asked]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["quantization"]["recipe"] == "int8", "that of the first target"
    made = [
        (g["dialect"], g["precision"], g.get("tokens"), g["providers"])
        for g in plain["graphs"]
        if g["dialect"] == "portable"
    ]
    qnn, coreml = ["QNNExecutionProvider"], ["CoreMLExecutionProvider"]
    assert made == [
        ("portable", "float32", 64, qnn),
        ("portable", "float32", 1, qnn),
        ("portable", "float16", 64, coreml),
        ("portable", "float16", 1, coreml),
    ]
    assert any(told.startswith("CoreML would take") for told in plain["graphs"][3]["usability"])
    assert main([*export, "--force", "--target", "ios-coreml"]) == 0
    out = capsys.readouterr().out
    assert "decoder-portable-float16-64x1024.onnx: portable float16, CoreML" in out
    assert "  CoreML would take" in out
