"""Names are defined in one place, and docstrings can be understood where they stand."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

import pytest

from tests.conventions.source import ROOT, Function, Source, source

pytestmark = pytest.mark.slow
OF_VLLM = ("PoolingParams", "SamplingParams")
"""Classes with vLLM's names in a program, which are converted to ours with the same names."""


def sources() -> Iterator[tuple[str, Source]]:
    """Yields all files with their names."""
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), source(path)


def test_no_public_class_name_occurs_twice() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file, code in sources():
        for line, name in code.classes:
            if not name.startswith("_"):
                places[name].append(f"{file}:{line}")
    twice = {name: found for name, found in places.items() if len(found) > 1 and name not in OF_VLLM}
    assert twice == {}


MENTIONED = re.compile(r"\b((?:[a-z]\w*\.)+)([A-Z]+[a-z]\w*)\b")
"""Matches the name of a class or type with its module in a docstring."""
TYPE = re.compile(r"^([A-Z]\w*)(?::.+)? = ", re.MULTILINE)
"""Matches the definition of a type at the top of a module."""


def test_types_that_docstrings_name_are_where_they_say() -> None:
    known: defaultdict[str, set[str]] = defaultdict(set)
    for file, code in sources():
        parts = file.removesuffix(".py").removesuffix("/__init__").split("/")
        names = {*TYPE.findall((ROOT / file).read_text("utf-8")), *(name for _, name in code.classes)}
        for first in range(len(parts)):
            known[".".join(parts[first:])] |= names
    assert not [
        f"{file}:{line}: {module}{name}"
        for file, code in sources()
        for line, text in code.strings
        for module, name in MENTIONED.findall(text)
        if module[:-1] in known and name not in known[module[:-1]]
    ]


PLACE = re.compile(
    rf"(?<![\w./-])(?:{'|'.join(sorted(path.name for path in ROOT.iterdir() if path.is_dir()))})(?:\.\w+)+"
)
"""Matches the name of a module of the package in a docstring, with a name in it if there is one."""
FILES = (".css", ".html", ".js", ".json", ".md", ".py", ".txt", ".xml", ".yaml")
"""Suffixes of file names, which contain a dot like the names of modules."""


def test_modules_that_docstrings_name_exist_and_have_what_they_say() -> None:
    files = {file.removesuffix(".py").removesuffix("/__init__").replace("/", "."): file for file, _ in sources()}

    def exists(place: str) -> bool:
        module = max((each for each in accumulate(place.split("."), "{}.{}".format) if each in files), key=len)
        name, _, more = place.removeprefix(module).lstrip(".").partition(".")
        is_module = name.islower() and more and files[module].endswith("__init__.py")
        return not is_module and re.search(rf"\b{name}\b", (ROOT / files[module]).read_text("utf-8")) is not None

    assert not [
        f"{file}:{line}: {place}"
        for file, code in sources()
        for line, text in code.strings
        for place in PLACE.findall(text)
        if not place.endswith(FILES) and not exists(place)
    ]


UNCLEAR = {
    "begins with words that can only be understood together with the name above": r"^(Of|As|It|Its|Also) ",
    "says what a value means in a phrase such as 'None: there is none' in place of a clause": (
        r"""; ?(None|\d+|b?""|empty|negative|True|False): |(^|\. )(None|""): |\bImplements \w+\.\w+"""
    ),
}
"""Patterns that no docstring may match, by what is wrong with it then."""


@pytest.mark.parametrize("fault", UNCLEAR)
def test_docstrings_can_be_understood(fault: str) -> None:
    pattern = re.compile(UNCLEAR[fault])
    assert not [
        f"{file}:{line}: {text[:60]}" for file, code in sources() for line, text in code.strings if pattern.search(text)
    ]


NOUNS = {
    "Arguments", "As", "Bytes", "Characters", "Errors", "Headers", "Ids", "Its", "Lines", "Pass", "Seconds",
    "This",
}  # fmt: skip
"""Words that end like a verb in the third person but are nouns."""


def test_docstrings_of_modules_and_classes_are_no_questions() -> None:
    assert not [
        f"{file}:{line}: {text[:60]}"
        for file, code in sources()
        for line, text in [*code.strings[: code.has_docstring], *((line, text) for line, _, text, _ in code.described)]
        if text.startswith(QUESTIONS)
    ]


QUESTIONS = ("How ", "What ", "Where ", "Whether ", "Which ", "Why ")
"""First words of docstrings that are a clause of a question."""


def test_docstrings_of_functions_begin_with_the_verb_of_what_they_do() -> None:
    assert not [
        f"{file}:{function.lineno}: {function.name}: {text[:60]}"
        for file, code in sources()
        for function in code.functions
        if (
            (text := ast.get_docstring(function) or "")
            and not any(ast.unparse(decorator).endswith(PROPERTIES) for decorator in function.decorator_list)
            and (not re.match(r"[A-Z][a-z]*s\b", text) or text.split()[0] in NOUNS)
        )
        or re.fullmatch(r"Raises \w+((, | or | and )\w+)*\.", text)
    ]


PROPERTIES = ("property", "setter")
"""Names in decorators of properties, whose docstrings are noun phrases."""
FEW = 2
"""Functions with more parameters than this must explain them in a section `Args:`."""


def parameters(function: Function) -> list[str]:
    """Returns the names of a function's parameters, without self or cls."""
    found = function.args
    several = [one for one in (found.vararg, found.kwarg) if one is not None]
    names = [one.arg for one in (*found.posonlyargs, *found.args, *found.kwonlyargs, *several)]
    return [name for name in names if name not in ("self", "cls")]


def untold(function: Function) -> list[str]:
    """Returns the parameters that `Args:` lacks, if the function has three or more and the docstring explains some as
    "name: ..."."""
    names, text = parameters(function), ast.get_docstring(function) or ""
    told = re.search(rf"\b({'|'.join(names)})(, \w+)*: ", text) is not None
    if len(names) <= FEW or not told:
        return []
    section = re.search(r"^Args:\n((?: .*\n?|\n)*)", text, re.M)
    lines = set(re.findall(r"^ {4}\**(\w+): ", section[1], re.M)) if section is not None else set()
    return [name for name in names if name not in lines]


def test_docstrings_tell_several_parameters_in_a_section() -> None:
    assert not [
        f"{file}:{function.lineno}: {function.name} does not tell {', '.join(missing)}"
        for file, code in sources()
        for function in code.functions
        if (missing := untold(function))
    ]


def telegrams(code: Source) -> Iterator[str]:
    """Yields the parameters and fields that a docstring explains as "name: ..." after a sentence instead of on their
    own line."""
    for function in code.functions:
        text = (ast.get_docstring(function) or "").partition("Args:\n")[0]
        yield from behind_a_sentence(text, parameters(function), function.name)
    for line, name, text, fields in code.described:
        yield from behind_a_sentence(text.partition("Args:\n")[0], fields, f"{line}: {name}")


def behind_a_sentence(text: str, names: Sequence[str], place: str) -> Iterator[str]:
    """Yields the place with each of these names that the text explains after a sentence."""
    for found in re.findall(r"(?:^|[.,;(]\s+)`?(\w+)`?: ", text):
        if found in names:
            yield f"{place}: {found}"


def test_parameters_and_fields_are_not_told_behind_a_sentence() -> None:
    assert not [f"{file}: {one}" for file, code in sources() for one in telegrams(code)]


def test_lines_of_sections_begin_with_a_capital_letter() -> None:
    assert not [
        f"{file}:{function.lineno}: {function.name}: {line.strip()}"
        for file, code in sources()
        for function in code.functions
        for line in (ast.get_docstring(function) or "").partition("Args:\n")[2].splitlines()
        if re.match(r" {4}\*{0,2}\w+: [a-z]+\b(?![._(`])", line)
    ]


def test_each_field_of_a_record_has_its_own_line() -> None:
    assert not [f"{file}:{line}: {field}" for file, code in sources() for line, field in code.undescribed]
