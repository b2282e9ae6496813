"""The command line: every study helps, every option is part of a run's identity or says that it only presents."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mech
import probes
from experiments import cli
from experiments.cli import main
from experiments.commands import COMMANDS, GROUPS
from experiments.run import flags
from experiments.run.run_folder import config_hash
from experiments.run.study import Option, Report, Study, arguments, keyed, to_toml
from mech.errors import InputError
from probes.items.item import dump_items
from tests.fresh_process import printed
from tests.mech_cases import one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, shell  # noqa: F401 - a fixture

ALL: dict[str, Study] = {name: import_module(one.module).STUDY for name, one in COMMANDS.items()}
PRESENTATION = {
    "out",
    "cache",
    "memory",
    "quiet",
    "keep",
    "format",
    "models",
    "plan",
    "with",
    "cluster",
    "metric",
    "within",
    *("executor", "workers", "threads", "address", "shard"),
}
OTHERWISE = {
    ("import", "format"): False,
    ("import", "report"): True,
    ("circuit", "metric"): False,
    ("calibrate", "from"): True,
    ("bench-sandbox", "workers"): False,
}
"""(study, option) → whether it only presents, where that is not so of all options of its name."""


def parse(study: str, *words: str) -> Any:
    return flags.parse(ALL[study], words).config


def other_value(option: Option, folder: Path) -> str:
    """A value that is not the default, as typed."""
    if option.choices:
        return next(choice for choice in option.choices if choice != option.default)
    if option.type is Path:
        (folder / "file").write_text("contents")
        return str(folder / "file")
    if option.name == "memory":
        return "4GiB"
    if option.name in ("one", "other"):
        return "pre,succ"
    if option.name == "k":
        return "3,16"
    if option.name == "shard":
        return "2/3"
    if option.name == "detectors":
        return "3,5,6"
    if option.name == "control-kinds":
        return "random" if "norm" in option.default else "norm"
    if option.name == "how":
        return "zero"
    return str(option.default + 1) if isinstance(option.default, int) else "7"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_option_and_an_example(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    lines, words = shown.splitlines(), " ".join(shown.split())
    assert lines[-1] == f"example: {ALL[name].example}"
    assert max(map(len, lines[:-1])) <= 90
    for option in ALL[name].options:
        assert " ".join(option.help.split()) in words  # no text is read as markup, or as an emoji
        name = option.name.upper()
        written = rf"^ *{name}\b" if option.positional else rf"--{option.name}(?![\w-])"
        assert re.search(written, shown, re.M)
        if not (option.positional or option.switch):
            assert f"--{option.name} {option.word}: " in words


def test_help_says_which_options_take_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    for name, words in (("patch", ["--limit INT:", "--k INT,...:"]), ("ablate", ["--delta FLOAT:"])):
        assert main([name, "--help"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert all(word in shown for word in words)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_is_a_command_the_study_takes(name: str) -> None:
    program, study, *words = shlex.split(ALL[name].example)
    assert (program, study) == ("backfire", name)
    parse(name, *words)


def test_a_study_is_called_what_its_command_is_called() -> None:
    assert {name: study.name for name, study in ALL.items()} == {name: name for name in COMMANDS}


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_the_overview_names_every_study(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    shown = capsys.readouterr()
    lines = [line.split(maxsplit=1) for line in shown.out.splitlines()[2:] if line.startswith("  ")]
    assert {name: said for name, said in lines} == {name: study.summary for name, study in ALL.items()}
    headings = [
        line.split(":")[0] for line in shown.out.splitlines()[2:] if line and not line.startswith(" ")
    ]
    assert headings == list(GROUPS) == list(dict.fromkeys(one.group for one in COMMANDS.values()))
    assert not shown.err


def test_the_overview_and_the_packages_load_no_library() -> None:
    code = "import sys; import mech, probes; from experiments.cli import main; main(['--help']); "
    code += "print(sorted({'torch', 'transformers', 'pandas', 'transformer_lens'} & set(sys.modules)))"
    assert printed(code, 0).endswith("[]")


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"backfire {version('backfire')}\n"


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["items", "--help"]])
def test_a_reader_that_stops_reading_is_no_error(words: list[str]) -> None:
    command = [sys.executable, "-m", "experiments.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.parametrize("package", [mech, probes])
def test_every_public_name_is_there_and_an_unknown_one_is_not(package: ModuleType) -> None:
    for name in package.__all__:
        assert getattr(package, name) is not None and name in dir(package)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018 - the access is the test


def test_an_unknown_study_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prob"]) == 2
    shown = capsys.readouterr()
    assert shown.err.splitlines() == [
        f"backfire: 'prob' is not a command: choose one of {', '.join(COMMANDS)}."
    ]
    assert not shown.out


@pytest.mark.parametrize(
    ("name", "words"),
    [(name, words) for name in COMMANDS for words in (["--colour", "red"], ["--mod", "x"])]
    + [(name, ["stray"]) for name in COMMANDS if not any(one.positional for one in ALL[name].options)],
)
def test_an_unknown_flag_an_abbreviation_and_a_stray_word_are_refused(
    name: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, *words]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"backfire {name}: ") and words[0] in said


@pytest.mark.parametrize(
    ("study", "flag", "value"),
    [
        ("probe", "limit", "0"),
        ("probe", "limit", "some"),
        ("probe", "dtype", "fp8"),
        ("probe", "engine", "fast"),
        ("probe", "env", "nowhere"),
        ("patch", "k", "4,0"),
        ("patch", "k", "4;8"),
        ("patch", "direction", "sideways"),
        ("ablate", "controls", "-1"),
        ("ablate", "how", "median"),
        ("heads", "by", "beauty"),
        ("heads", "seed", "x"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_its_flag(
    study: str, flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([study, f"--{flag}", value]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"backfire {study}: ") and f"--{flag}" in said


@pytest.mark.parametrize("study", ALL)
def test_every_option_changes_the_runs_identity_or_only_presents(study: str, tmp_path: Path) -> None:
    before = ALL[study].settings(parse(study))
    assert ALL[study].options
    for option in ALL[study].options:
        if option.choices is not None and len(option.choices) == 1:
            assert before[option.key] == option.default, option  # there is no other value yet; it is recorded
            continue
        flag = [] if option.positional else [f"--{option.name}"]
        value = [] if option.switch else [other_value(option, tmp_path)]
        after = ALL[study].settings(parse(study, *flag, *value))
        expected = OTHERWISE.get((study, option.name), option.name in PRESENTATION)
        assert option.presentation == expected, option
        assert (config_hash(before) == config_hash(after)) == option.presentation, option
        assert option.presentation or before[option.key] != after[option.key], option


OLD_HASHES = {
    "items": "493dd1a5c5e351ab37149ac9e72b09a7",
    "probe": "44872cdc9f0c29e61aa70fd61a0bde26",
    "decomposition": "3e11988fbed0d9bb166c1078be08e0a6",
    "manipulations": "7cf9dc3a72eebf471b6ebd13074a32f3",
    "scaling": "7b84c4bd12a7fc5fe560ad833f2291b2",
    "compare": "ef88b8ed1af981fd62bdebddd5e51f30",
    "heads": "0ab77bca0350fc6a18ccbf7ee78fb27d",
    "patch": "c63ba6607a86af43879f3e861178fec8",
    "joint": "93124808bf4743bd460b5c6dad788ad3",
    "ablate": "c16290223f87b6233b0edaa296a4a34a",
    "knockout": "909fd5fcb2a5a684b93fc6fdee2a0980",
    "circuit": "d0e4071c3984ecef7e73097fbeebfe0c",
    "attribute": "b34f978632a8584f8cf1c838351cba8a",
    "direct": "fb57feeb01075e5d7a6246c430218e8d",
    "layers": "fb57feeb01075e5d7a6246c430218e8d",
    "path": "262ed957bd11919768d0f6fafe00c49c",
    "agree": "f33bfa67f0a371771c90e6e2df67fe3e",
    "overlap": "86e6cf5a4f088c5479e84da7c656019b",
    "placebo": "21db5d19852432ce61715e8c02acf2fa",
    "mechanism": "19296e57bf0714543046b9f92ee3031d",
    "rollout": "a84b3fd16386cf55631454cf7abf9db8",
    "predict": "a80cc337b059a87e1cc31674a72014f7",
    "doctor": "70efd99c5df4e6518a1b1ccbc6d89722",
    "calibrate": "86caf6c8519fceb981a85ab0d62da8b7",
    "bench": "cee16922ffdc8864c387bce7617a51ba",
    "bench-sandbox": "df589a80c0f10d5d3129d3637c12abc6",
    "probe --seed 3 --limit 4 --ablate top:16 --ablate none --ablate random:16@how=zero "
    "--distractors everywhere --allow-special-in-content "
    "--engine reference --reference-items 12": "e5f3ccae2fab43219855e59fec2a1536",
    "layers --from neut --to fail --dtype float64 --metric margin": "f2355552cfb202910198402a6e8679c9",
    "compare one other --names a=b": "60241cb1d019b5886e14a21ce7238305",
    "calibrate --clusters 8,6 --draws 20": "a4cde358aa412fe6a4e17c07e23a35d0",
    "rollout --detectors 3,5,6 --temperature 0.5 --tokens 30": "9f4bdaf4ff2a7de44d40848ae44668a0",
    "predict --how zero --ablate L0H1": "8823642e27886f6c85992a7b944575ab",
    "scaling --limit 2 --delta 0.25": "3283dc63f78a7f7fbd83e38dba4de2f8",
    "bench --repeats 3 --sweep-id x": "cb5548af2755a88b45766d7dfbb05e14",
    "heads --scores all --by copying --seed -1": "b64a8e19455eb58777428ab99fc715d4",
}
"""Command line → first half of the identity of runs that were made before studies had config classes."""


@pytest.mark.parametrize("line", OLD_HASHES)
def test_a_run_made_before_config_classes_is_resumed(line: str) -> None:
    name, *words = line.split()
    assert config_hash(ALL[name].settings(parse(name, *words)))[:32] == OLD_HASHES[line]


@pytest.mark.parametrize("name", COMMANDS)
def test_settings_written_as_toml_are_read_back(name: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    words = ["--reference-items", "8@some"] if "reference-items" in to_toml(ALL[name], parse(name)) else []
    config = parse(name, *words)
    file.write_text(to_toml(ALL[name], config))
    assert parse(name, "--config", str(file)) == config


def test_a_finished_run_leaves_its_settings_and_another_run_takes_them(shell: Shell) -> None:
    shell.ran("layers", "--limit", "1", "--from", "neut", "--to", "fail")
    file = shell.path("layers-neut-fail.toml")
    assert 'from = "neut"' in file.read_text() and "out =" not in file.read_text()
    assert main(["layers", "--config", str(file), "--out", str(shell.tmp / "again")]) == 0
    assert shell.path("layers.jsonl").read_bytes() == shell.path("layers.jsonl", "again").read_bytes()


def test_a_refused_run_leaves_no_settings(shell: Shell) -> None:
    shell.ran("layers", "--limit", "1")
    before = shell.path("layers.toml").read_bytes()
    shell("layers", "--limit", "2").sentence("other settings")
    shell("layers", "--from", "pre", "--to", "no_such").sentence("no_such")
    assert [one.name for one in shell.path(".").glob("*.toml")] == ["layers.toml"]
    assert shell.path("layers.toml").read_bytes() == before


def test_a_command_that_was_renamed_names_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cut", "--limit", "2"]) == 2
    shown = capsys.readouterr()
    assert shown.err == "backfire: 'cut' is now 'knockout'.\n" and not shown.out


def test_a_flag_wins_over_the_file_and_faults_of_the_file_are_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('limit = 3\nseed = 4\nfrom = "neut"\n')
    config = parse("layers", "--config", str(file), "--limit", "2")
    assert (config.limit, config.seed, config.from_) == (2, 4, "neut")
    file.write_text("limit = 0\ncolour = 1\nsize = 2\nquiet = 3\n")
    with pytest.raises(
        InputError, match="unknown names: colour, size; limit: 0 is less than 1; quiet: 3 is not"
    ):
        parse("layers", "--config", str(file))


def test_a_configuration_file_that_is_missing_or_no_toml_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="^Cannot read the configuration file"):
        parse("layers", "--config", str(tmp_path / "none"))
    (tmp_path / "torn").write_text("limit = ")
    with pytest.raises(InputError, match="is not TOML"):
        parse("layers", "--config", str(tmp_path / "torn"))


def test_the_level_of_the_log_is_one_that_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert flags.parse(ALL["items"], ["--log-level", "debug"]).log_level == "debug"
    assert main(["items", "--log-level", "loud"]) == 2
    assert "--log-level" in capsys.readouterr().err


def test_completion_knows_every_command_and_its_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", "/bin/bash")
    assert main(["--install-completion"]) == 0
    written = Path(capsys.readouterr().out.strip().removeprefix("written to ")).read_text()
    assert all(name in written for name in COMMANDS) and "--reference-items" in written
    monkeypatch.setattr(flags.App, "install_completion", _no_shell)
    assert main(["--install-completion"]) == 2
    assert "Completion could not be installed" in capsys.readouterr().err


def _no_shell(*_: Any, **__: Any) -> None:
    raise flags.ShellDetectionError("no shell")


def test_a_file_option_is_known_by_its_contents(tmp_path: Path) -> None:
    one, same, other = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    for file, text in ((one, "x"), (same, "x"), (other, "y")):
        file.write_text(text)
    hashes = [config_hash(ALL["probe"].settings(parse("probe", "--ids", str(f)))) for f in (one, same, other)]
    assert hashes[0] == hashes[1] != hashes[2]
    with pytest.raises(InputError, match="does not exist"):
        ALL["probe"].settings(parse("probe", "--ids", str(tmp_path / "none")))


def test_sizes_in_any_order_and_twice_are_the_same_sizes() -> None:
    settings = [ALL["ablate"].settings(parse("ablate", "--k", text)) for text in ("8,4,8", "4,8")]
    assert settings[0] == settings[1] and settings[0]["k"] == [4, 8]


@pytest.fixture(scope="module")
def written() -> dict[tuple[str, ...], str]:
    """What a study wrote without the option in question, once for all options."""
    return {}


def differs(
    shell: Shell,
    written: dict[tuple[str, ...], str],
    study: str,
    table: str,
    common: list[str],
    more: list[str],
) -> bool:
    """Whether a table is another when more options are given."""
    key = (study, table, *(word for word in common if not word.startswith(str(shell.tmp))))
    run = shell.ran_for_rows if table.endswith(".jsonl") else shell.ran
    if key not in written:
        run(study, *common, out="one")
        written[key] = shell.path(table, "one").read_text()
    run(study, *common, *more, out="two")
    return shell.path(table, "two").read_text() != written[key]


@pytest.mark.parametrize(
    ("flag", "value", "table"),
    [
        ("model", "OTHER", "scores.jsonl"),
        ("dtype", "float64", "scores.jsonl"),
        ("items", "ITEMS", "scores.jsonl"),
        ("ids", "IDS", "scores.jsonl"),
        ("limit", "1", "scores.jsonl"),
        ("wording", "WORDING", "scores.jsonl"),
        ("conditions", "pre,neut", "scores.jsonl"),
        ("engine", "reference", "scores.jsonl"),
    ],
)
def test_every_option_of_probe_changes_its_rows(
    flag: str, value: str, table: str, shell: Shell, written: dict[Any, str], tiny_folder: Any
) -> None:
    given = shell.tmp / "given"
    if value == "ITEMS":
        dump_items([replace(item, goal="Look after it all.") for item in ITEMS[:3]], given)
    elif value == "IDS":
        given.write_text(json.dumps(["garden-1"]))
    elif value == "WORDING":
        default = Path(cli.__file__).parent.parent / "probes" / "prompts" / "wordings" / "default.json"
        given.write_text(json.dumps({**json.loads(default.read_text()), "observation_prefix": "Answer: "}))
    elif value == "OTHER":
        given = tiny_folder("llama", seed=1)
    word = value if value.islower() or value.isdigit() else str(given)
    assert differs(shell, written, "probe", table, ["--limit", "2"], [f"--{flag}", word])


@pytest.mark.parametrize(
    ("flag", "value"),
    [("seed", "1"), ("n-sequences", "3"), ("length", "20"), ("top", "5"), ("by", "copying")],
)
def test_every_option_of_heads_changes_its_table(
    flag: str, value: str, shell: Shell, written: dict[Any, str]
) -> None:
    assert differs(shell, written, "heads", "heads.csv", ["--top", "4"], [f"--{flag}", value])


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("from", "abstract"), ("to", "fail"), ("direction", "noise"), ("k", "3"), ("seed", "1")),
        *(("site", "q"), ("screen", "attribution:3")),
    ],
)
def test_every_option_of_patch_changes_its_rows(
    flag: str, value: str, shell: Shell, written: dict[Any, str]
) -> None:
    common = ["--k", "2", "--limit", "1"]
    assert differs(shell, written, "patch", "patch.jsonl", common, [f"--{flag}", value])


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("heads", "L0H0,L1H1"),
        ("by", "copying"),
        ("how", "zero"),
        ("k", "1,2"),
        ("controls", "2"),
        ("control-kinds", "random,norm"),
        ("from", "succ"),
        ("to", "fail"),
        ("reference-items", "1"),
        ("seed", "2"),
    ],
)
def test_every_option_of_ablate_changes_its_rows(
    flag: str, value: str, shell: Shell, written: dict[Any, str]
) -> None:
    ids = shell.tmp / "ids"
    ids.write_text('["garden-2"]')  # of the two other items the mean is taken
    common = ["--heads", "top:2", "--controls", "1", "--ids", str(ids), "--control-kinds", "random"]
    assert differs(shell, written, "ablate", "ablate.jsonl", common, [f"--{flag}", value])


@pytest.mark.parametrize("flag", ["delta", "delta-loss"])
def test_the_bounds_of_ablate_change_its_table(flag: str, shell: Shell, written: dict[Any, str]) -> None:
    common = ["--heads", "top:2", "--controls", "1", "--limit", "1", "--control-kinds", "random"]
    assert differs(shell, written, "ablate", "ablate_off_target.csv", common, [f"--{flag}", "7"])


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("top", "3"),
        ("by", "copying"),
        ("how", "zero"),
        ("shuffles", "2"),
        ("controls", "1"),
        ("seed", "1"),
    ],
)
def test_every_option_of_placebo_changes_its_rows(
    flag: str, value: str, shell: Shell, written: dict[Any, str]
) -> None:
    ids = shell.tmp / "ids"
    ids.write_text('["garden-1", "garden-2"]')  # of two tasks

    def placebos(out: str, *more: str) -> str:
        shell.ran_for_rows("placebo", "--ids", ids, "--top", "2", "--shuffles", "1", *more, out=out)
        return shell.path("placebo.jsonl", out).read_text()

    key = ("placebo", "placebo.jsonl")
    if key not in written:
        written[key] = placebos("one")
    assert placebos("two", f"--{flag}", value) != written[key]


def test_what_only_presents_changes_no_row(shell: Shell, written: dict[Any, str]) -> None:
    cache = str(shell.tmp / "cache")
    more = ["--cache", cache, "--keep", "hook_mlp_out"]
    assert not differs(shell, written, "probe", "scores.jsonl", ["--limit", "2"], more)


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (InputError("Give a model."), 2, "backfire probe: Give a model."),
        (FloatingPointError("The logits are not finite."), 1, "backfire probe: The logits are not finite."),
        (KeyboardInterrupt(), 130, "backfire probe: stopped; the same command goes on from here."),
    ],
)
def test_a_study_that_ends_early_ends_in_one_sentence(
    raised: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr("experiments.measure.measuring.score_queries", fails)
    found = shell("probe")
    assert (found.code, [line for line in found.err if line], found.out) == (code, [said], [])


def test_a_report_that_is_not_ok_exits_with_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study = replace(ALL["doctor"], run=lambda config: Report("a check failed", ok=False))
    monkeypatch.setattr("experiments.bench.doctor.STUDY", study)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out == "a check failed\n"


def test_the_demo_gives_each_study_the_options_it_has() -> None:
    for study in (ALL["probe"], ALL["joint"], ALL["ablate"], ALL["heads"], ALL["items"], ALL["doctor"]):
        found = keyed(arguments(study, {"seed": 3, "limit": 2, "unheard_of": 1}))
        expected = keyed(parse(study.name))
        expected.update({key: value for key, value in {"seed": 3, "limit": 2}.items() if key in expected})
        assert found == expected
