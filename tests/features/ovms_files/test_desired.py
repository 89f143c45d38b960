"""Graphs and configuration files as a list of models, each with its own options."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from lean_ovms.config import Config
from lean_ovms.errors import StartError, WrongOptions
from lean_ovms.features.deployment.desired import DesiredState, ModelSpec, desired_state, server_config
from lean_ovms.repository import model_dir
from tests.features.deployment.test_desired import loading, of, only
from tests.features.ovms_files.graphs import graph, write_config


def by_name(path: Path, **options: Any) -> dict[str, ModelSpec]:
    return {one.name: one for one in desired_state(Config(config_path=str(path), **options)).models}


def test_aliases_are_those_of_one_model(repository: Path, tmp_path: Path) -> None:
    assert of(repository, model_name="b", model_aliases="x y").models[0].config.served_names == ("b", "x", "y")
    with pytest.raises(WrongOptions, match="--model_aliases can only be used with a single model: choose one"):
        of(repository, model_aliases="x")
    entries = [{"name": "one", "model_aliases": "two x"}, {"name": "two"}, {"name": "three", "model_aliases": "x y"}]
    found = by_name(write_config(tmp_path, mediapipe_config_list=entries))
    problems = {name: str(one.problem or "") for name, one in found.items()}
    assert problems == {
        "one": "model_aliases: two is a name of the model two",
        "two": "",
        "three": "model_aliases: x is a name of the model one",
    }


def test_the_models_of_a_config_are_loaded_at_the_start_unless_it_asks_for_less(repository: Path) -> None:
    def of_entries(*extra: dict[str, Any], **options: Any) -> DesiredState:
        names = ["b", "org/a", "a-graph"]
        entries = [{"config": {"name": n, "base_path": n, **more}} for n, more in zip(names, extra, strict=False)]
        idle = {"idle_unload_timeout_seconds": options.pop("idle")} if "idle" in options else {}
        path = write_config(repository, model_config_list=entries, **idle)
        return desired_state(server_config(Config(config_path=str(path), **options)))

    assert loading(of_entries({}, {}, {})) == "sP sP sP"
    assert loading(of_entries({}, {}, load_models="request")) == "r r"
    assert loading(of_entries({}, {}, max_loaded_models=1)) == "r r"
    grouped = of_entries({"group_name": "permanent"}, {"group_name": "g"}, {})
    assert (loading(grouped), grouped.max_loaded) == ("sP r r", 1)
    assert of_entries({"group_name": "g"}, {}, max_loaded_models=3).max_loaded == 3
    assert loading(of_entries({"group_name": "permanent"}, {})) == "sP sP"  # none may be unloaded
    idle = of_entries({}, {"group_name": "permanent"}, idle=30)
    assert (loading(idle), idle.models[0].idle_timeout_s) == ("r sP", 30.0)
    with pytest.raises(StartError, match="idle_unload_timeout_seconds"):
        of_entries({}, idle="soon")


def test_a_graph_that_cannot_be_understood_leaves_the_other_models(repository: Path) -> None:
    (repository / "a-graph" / "graph.pbtxt").write_text("nonsense {")
    assert [(one.name, one.problem is None) for one in of(repository).models] == [
        ("a-graph", False), ("b", True), ("org/a", True)
    ]  # fmt: skip


def test_a_repository_with_a_config_json_is_what_that_says(repository: Path) -> None:
    write_config(repository, model_config_list=[{"config": {"name": "x", "base_path": "b"}}])
    assert [one.name for one in of(repository).models] == ["x"]
    assert only(server_config(Config(model_repository_path=str(repository), model_name="b"))).name == "b"
    assert only(server_config(Config(model_repository_path=str(repository), model_path="/m"))).name == "m"


def test_adapters_are_for_one_model(repository: Path) -> None:
    with pytest.raises(WrongOptions, match="--lora_modules can only be used with a single model: choose one"):
        of(repository, lora_modules="a=x")
    write_config(repository, model_config_list=[])
    with pytest.raises(WrongOptions, match=r"each entry has its own lora_modules"):
        of(repository, lora_modules="a=x")


def served(folder: Path, options: str, **given: Any) -> ModelSpec:
    """Returns the model of a directory whose graph has these options."""
    (folder / "graph.pbtxt").write_text(graph(options))
    return only(Config(model_path=str(folder), **given))


@pytest.mark.parametrize(
    ("options", "given", "expected"),
    [
        ('models_path: "weights"', {"model_name": "m"}, {"model_path": "HERE/weights"}),
        ('models_path: "./" max_num_seqs: 7', {}, {"model_path": "HERE", "max_num_seqs": 7}),
        ('models_path: "/models/m" cache_size: 2', {}, {"model_path": "/models/m", "cache_size": 2}),
        ('models_path: "m-Q4.gguf" device: "GPU"', {}, {"model_path": "HERE/m-Q4.gguf", "target_device": "GPU"}),
        ('models_path: "./" draft_models_path: "org-draft"', {}, {"draft_model_path": "HERE/org-draft"}),
        ('models_path: "./" max_num_seqs: 7', {"max_num_seqs": 9}, {"max_num_seqs": 9}),
    ],
)
def test_a_directory_with_a_graph_is_served_as_the_command_line_and_then_the_graph_say(
    tmp_path: Path, options: str, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    one = served(tmp_path, options, **given)
    assert (one.problem, one.name) == (None, given.get("model_name", tmp_path.name))
    for name, value in expected.items():
        assert one.config.value(name) == (value.replace("HERE", str(tmp_path)) if isinstance(value, str) else value)


def test_with_a_task_the_graph_is_not_read(tmp_path: Path) -> None:  # as in OVMS
    (tmp_path / "graph.pbtxt").write_text("nonsense {")
    one = only(Config(model_path=str(tmp_path), task="text_generation"))
    assert (one.problem, one.config.model_path) == (None, str(tmp_path))


def test_a_graph_that_does_not_parse_is_the_models_problem_with_the_files_name(tmp_path: Path) -> None:
    problem = served(tmp_path, 'models_path: "./" no_such: 1').problem
    assert problem is not None
    assert str(tmp_path / "graph.pbtxt") in str(problem)
    assert "no_such" in str(problem)
    assert str(tmp_path) not in problem.reason


def test_a_value_out_of_bounds_is_the_models_problem(tmp_path: Path) -> None:
    assert "max_num_seqs must be at least 1" in str(served(tmp_path, 'models_path: "./" max_num_seqs: 0').problem)


def test_options_without_effect_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "lean_ovms.models"):
        assert served(tmp_path, 'models_path: "./" chat_template_mode: MINJA').problem is None
    assert "chat_template_mode has no effect: templates are always rendered by Jinja" in caplog.text


def test_a_changed_graph_is_another_configuration_also_when_its_options_are_the_same(tmp_path: Path) -> None:
    config = Config(model_path=str(tmp_path))
    (tmp_path / "graph.pbtxt").write_text(graph())
    before = only(config)
    assert only(config) == before
    (tmp_path / "graph.pbtxt").write_text(graph() + "# edited\n")
    assert only(config) != before


def test_both_styles_of_list_name_models(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "graph.pbtxt").write_text(graph('models_path: "./"'))
    path = write_config(
        tmp_path,
        model_config_list=[
            {"config": {"name": "org/a", "base_path": "a"}},
            {"config": {"name": "b2", "base_path": str(tmp_path / "b"), "graph_path": "graph.pbtxt"}},
        ],
        mediapipe_config_list=[{"name": "c"}],
    )
    found = by_name(path)
    assert {name: Path(one.config.model_path) for name, one in found.items()} == {
        "org/a": tmp_path / "a",
        "b2": tmp_path / "b",
        "c": tmp_path / "c",
    }
    assert all(one.problem is None for one in found.values())


def test_graph_path_is_relative_to_base_path_and_models_path_too(tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "graphs").mkdir(parents=True)
    (base / "graphs" / "g.pbtxt").write_text(graph('models_path: "weights"'))
    path = write_config(
        tmp_path, mediapipe_config_list=[{"name": "m", "base_path": "base", "graph_path": "graphs/g.pbtxt"}]
    )
    assert by_name(path)["m"].config.model_path == str(base / "weights")


def test_a_model_without_a_graph_is_served_with_the_servers_options(tmp_path: Path) -> None:
    path = write_config(tmp_path, model_config_list=[{"config": {"name": "m", "base_path": "m"}}])
    config = by_name(path, max_num_seqs=9, rest_port=1)["m"].config
    assert (config.model_path, config.max_num_seqs, config.rest_port) == (str(tmp_path / "m"), 9, 1)
    assert config.model_list == ""


def test_an_entry_goes_before_its_graph_before_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "graph.pbtxt").write_text(graph('models_path: "./" device: "GPU" max_num_seqs: 7'))
    path = write_config(
        tmp_path,
        model_config_list=[{"config": {"name": "m", "target_device": "NPU", "plugin_config": {"A": {"B": 1}}}}],
    )
    config = by_name(path, target_device="CPU", max_num_seqs=9, plugin_config='{"C": 1}', cache_size=3)["m"].config
    assert (config.target_device, config.plugin_config) == ("NPU", '{"A": {"B": 1}}')
    assert (config.max_num_seqs, config.cache_size) == (7, 3)


def test_one_wrong_model_leaves_the_others(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "graph.pbtxt").write_text("node {")
    path = write_config(
        tmp_path,
        mediapipe_config_list=[
            {"name": "good"},
            {"name": "bad"},
            {"name": "gone", "graph_path": "no.pbtxt"},
            {"name": "odd", "cache_size": -1},
        ],
    )
    found = by_name(path)
    assert found["good"].problem is None
    assert "bad/graph.pbtxt" in str(found["bad"].problem)
    assert "the graph" in str(found["gone"].problem)
    assert "mediapipe_config_list[3]: --cache_size must be at least 0" in str(found["odd"].problem)


def test_options_of_classic_models_are_ignored_with_a_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_config(
        tmp_path,
        model_config_list=[{"config": {"name": "m", "base_path": "m", "nireq": 4, "shape": "auto"}}],
        pipeline_config_list=[{"name": "dag"}],
    )
    with caplog.at_level(logging.WARNING, "lean_ovms.models"):
        assert by_name(path)["m"].problem is None
    assert "model_config_list[0].config: nireq is ignored: it is for models of classical inference" in caplog.text
    assert "pipeline_config_list is ignored" in caplog.text


def test_the_first_of_two_entries_with_one_name_is_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_config(
        tmp_path, mediapipe_config_list=[{"name": "m", "base_path": "a"}, {"name": "m", "base_path": "b"}]
    )
    assert by_name(path)["m"].config.model_path == str(tmp_path / "a")
    assert "an earlier entry already has the name m" in caplog.text


def test_a_directory_stands_for_the_config_json_in_it(tmp_path: Path) -> None:
    write_config(tmp_path, model_config_list=[])
    assert by_name(tmp_path) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ('{"model_config_list": [], "model_config_list": []}', "an object contains the same name twice"),
        ("[]", "must contain a JSON object"),
        ("{}", "has no model_config_list"),
        ('{"model_config_list": {}}', "model_config_list must be a list"),
        ('{"model_config_list": [{"name": "m"}]}', r"model_config_list\[0\].config must be an object"),
        ('{"model_config_list": [{"config": {"base_path": "x"}}]}', r"\[0\].config has no name"),
        ('{"model_config_list": [{"config": {"name": 1}}]}', r"\[0\].config.name must be a string"),
        ('{"mediapipe_config_list": [{"name": "m", "grpah_path": "x"}]}', "'grpah_path' is not an option of a model"),
        ('{"mediapipe_config_list": [{"nmae": "m"}]}', "has no name: did you mean name by 'nmae'?"),
        ('{"mediapipe_config_list": [{"name": "m", "base_pth": "x"}]}', "did you mean base_path?"),
        ('{"mediapipe_config_list": [{"name": "m", "max_num_seq": 1}]}', "did you mean max_num_seqs?"),
        ('{"model_config_lst": []}', "did you mean model_config_list?"),
        ('{"mediapipe_config_list": [{"name": "m", "rest_port": 1}]}', "'rest_port' is not an option of a model"),
        ('{"mediapipe_config_list": [{"name": "m", "cache_size": "1"}]}', "cache_size must be a whole number"),
        ('{"mediapipe_config_list": [{"name": "m", "base_path": "s3://b/m"}]}', "only read from local directories"),
        ('{"model_config_list": [], "models": []}', "'models' is not a key"),
        ('{"model_config_list": [], "monitoring": {}}', "monitoring.metrics must be an object"),
        ('{"model_config_list": [], "monitoring": {"metrics": {}}}', "metrics.enable must be true or false"),
        ('{"model_config_list": [], "monitoring": {"metrics": {"enable": true, "list": []}}}', "'list' is not one of"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(StartError, match=message) as caught:
        by_name(path)
    assert str(path) in str(caught.value)
    assert str(tmp_path) not in caught.value.reason


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="the configuration file"):
        by_name(tmp_path / "no.json")


def test_metrics_are_switched_on_by_the_file_or_otherwise_unless_the_server_has_none(tmp_path: Path) -> None:
    def config(enable: bool, **options: Any) -> Config:
        metrics = {"enable": enable, "metrics_list": ["x"]}
        path = write_config(tmp_path, model_config_list=[], monitoring={"metrics": metrics})
        return server_config(Config(config_path=str(path), **options))

    assert config(True).value("metrics_enable") is True
    assert config(False).value("metrics_enable") is False
    assert config(False, metrics_enable=True).value("metrics_enable") is True
    with pytest.raises(StartError, match="sets metrics_enable, an option of a feature that was left out"):
        config(True, without="metrics")


def test_paths_of_an_entry_are_relative_to_the_file(tmp_path: Path) -> None:
    paths = {"draft_model_path": "d", "cache_dir": "/c", "prefix_cache_path": "p"}
    config = by_name(write_config(tmp_path, mediapipe_config_list=[{"name": "m", **paths}]))["m"].config
    assert (config.value("draft_model_path"), config.cache_dir) == (str(tmp_path / "d"), "/c")
    assert config.value("prefix_cache_path") == str(tmp_path / "p")


def test_a_file_and_a_model_exclude_each_other(tmp_path: Path) -> None:
    path = write_config(tmp_path, model_config_list=[])
    with pytest.raises(StartError, match="--model_path and --model_name cannot be used with it"):
        server_config(Config(config_path=str(path), model_name="m"))


def test_the_example_of_the_documentation_is_understood(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "deployment.md").read_text("utf-8")
    example = page.split("```json\n")[1].split("```")[0]
    (tmp_path / "config.json").write_text(example)
    found = by_name(tmp_path)
    assert list(found) == ["org/a", "b", "c", "d"]
    assert found["b"].config.target_device == "GPU"
    assert "graphs/fast.pbtxt" in str(found["d"].problem)


def test_a_place_that_cannot_be_looked_into_is_no_graph_and_no_end(tmp_path: Path) -> None:
    nowhere = "/" + 5000 * "x"  # like a directory without permission: stat raises an error
    path = write_config(tmp_path, mediapipe_config_list=[{"name": "m", "base_path": nowhere}])
    assert by_name(path)["m"].problem is None
    assert only(Config(model_path=nowhere)).problem is None
    with pytest.raises(StartError, match=r"cannot be read: File name too long"):
        model_dir.read(Config(model_path=nowhere))


@pytest.mark.parametrize("key", ["name", "base_path", "graph_path", "cache_dir"])
@pytest.mark.parametrize("odd", ["a\0b", "a\ud800b"])
def test_text_that_no_file_or_json_can_hold_is_refused(tmp_path: Path, key: str, odd: str) -> None:
    path = write_config(tmp_path, mediapipe_config_list=[{"name": "m", key: odd}])
    try:
        assert by_name(path)["m"].problem is not None
    except StartError as error:
        assert "must be valid UTF-8 text" in str(error)  # noqa: PT017 - either is right: the file is refused, or the model
