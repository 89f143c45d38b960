"""A chat template sees only plain data: no access to Python's internals, no changes to its input, limited work."""

from __future__ import annotations

import time

import jinja2
import pytest

from lean_ovms.text.template import sandbox
from lean_ovms.text.template.sandbox import LimitExceeded
from tests.text.template.template_cases import TEMPLATES

DEFAULT_RENDER_S = 10.0

ENV = sandbox.ChatEnvironment()


def render(source: str, **variables) -> str:
    return sandbox.render(ENV.from_string(source), variables, DEFAULT_RENDER_S)


# --- what templates are written for --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% if true %}\na\n{% endif %}\nb", "a\nb"),
        ("  {% set x = 1 %}\n{{ x }}", "1"),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "023"),  # noqa: E501
        ("a{% generation %}b{{ 1 }}{% endgeneration %}c", "ab1c"),
        ("{%- generation -%} b {%- endgeneration -%}", "b"),
        ("{{ {'b': 'é<&>', 'a': [1, none, true]} | tojson }}", '{"b": "é<&>", "a": [1, null, true]}'),
        ("{{ {'a': [1]} | tojson(indent=2) }}", '{\n  "a": [\n    1\n  ]\n}'),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":2,"b":1}'),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{{ ('{\"a\": [1]}' | from_json).a[0] }}", "1"),
        ("{{ [1, 2] | join('-') }}{{ 'aXa' | replace('X', 'Y') }}", "1-2aYa"),
        ("{{ [{'k': 1}, {'k': 2}] | join(',', attribute='k') }}", "1,2"),
        ("{{ 'a' * 3 }}{{ 7 % 4 }}{{ 2 ** 3 }}{{ '%s-%03d' % ('x', 5) }}{{ [0] * 2 }}", "aaa38x-005[0, 0]"),
        ("{{ '{}-{:>3}'.format(1, 2) }}{{ '%s' | format('y') }}", "1-  2y"),
        ("{{ 'ab'.ljust(3) }}|{{ 'a' | center(3) }}|{{ 'a\nb' | indent(2) }}", "ab | a |a\n  b"),
        ("{{ 2.567 | round(1) }}{{ [1, 2, 3] | batch(2) | list }}", "2.6[[1, 2], [3]]"),
        ("{% for a, b in {'x': 1}.items() %}{{ a }}{{ b }}{{ loop.last }}{{ loop.length }}{% endfor %}", "x1True1"),
        ("{% for i in [1, 2] if i > 1 %}{{ i }}{% else %}none{% endfor %}", "2"),
        ("{% for i in missing %}{% else %}none{% endfor %}", "none"),
        ("{% for i in [1, [2, [3]]] recursive %}{{ loop(i) if i is iterable else i }}{% endfor %}", "123"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(b=3, a=1) }}", "1213"),
        ("{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{% set x %}block{% endset %}{{ x }}", "12block"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ missing }}{{ none }}{{ dict(a=1).a }}", "None1"),
    ],
)  # fmt: skip
def test_the_dialect(source, text):
    assert render(source) == text


def test_includes_come_from_the_models_directory_only(tmp_path):
    (tmp_path / "part.jinja").write_text("{% for i in x %}{{ i }}{% endfor %}")
    env = sandbox.ChatEnvironment(tmp_path)
    assert sandbox.render(env.from_string("{% include 'part.jinja' %}"), {"x": [1, 2]}, DEFAULT_RENDER_S) == "12"
    for name in ("../secret", "/etc/passwd", "nothing"):
        with pytest.raises(jinja2.TemplateNotFound):
            sandbox.render(env.from_string(f"{{% include '{name}' %}}"), {}, DEFAULT_RENDER_S)
    with pytest.raises(TypeError):
        render("{% include 'part.jinja' %}")


def test_raise_exception_carries_the_templates_words():
    with pytest.raises(sandbox.TemplateRaised, match="only two roles"):
        render("{{ raise_exception('only two roles') }}")


# --- escapes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__.__mro__[1].__subclasses__()",
        "''['__class__']",
        "''|attr('__class__')",
        "()|attr('__cl' ~ 'ass__')|attr('__base__')",
        "cycler.__init__.__globals__.os.popen('id').read()",
        "joiner.__init__.__globals__",
        "namespace.__init__.__globals__",
        "self.__init__.__globals__",
        "self._TemplateReference__context",
        "raise_exception.__globals__",
        "raise_exception.__code__",
        "strftime_now.__globals__",
        "range.__self__",
        "dict.mro()",
        "dict.__subclasses__()",
        "'{0.__class__}'.format(1)",
        "'{0.__class__.__mro__}'.format('')",
        "'{x.__class__}'.format_map({'x': 1})",
        "['{0.__class__}'.format]|map('call', 1)|list",
        "'%s' % (1).__class__",
        "messages.append(1)",
        "messages.clear()",
        "messages[0].update(a=1)",
        "messages[0].pop('role')",
        "messages[0].setdefault('x', 1)",
        "messages|map(attribute='__class__')|list|first|attr('mro')",
        "lipsum.__globals__",
        "(messages|attr('append'))(1)",
        "environment.filters",
        "tojson.__globals__",
    ],
)
def test_t09_known_escapes_fail(expression):
    messages = [{"role": "user"}]
    try:
        text = render(f"{{{{ {expression} }}}}", messages=messages)
    except (jinja2.TemplateError, TypeError, AttributeError, KeyError):
        text = ""
    assert messages == [{"role": "user"}]
    assert "class" not in text
    assert "object at" not in text
    assert "uid" not in text


def test_setting_attributes_of_what_it_is_given_fails():
    with pytest.raises(jinja2.TemplateError):
        render("{% set message.role = 'system' %}", message={"role": "user"})


# --- bounds --------------------------------------------------------------------------------------------------------

NESTED = "{% for a in range(100000) %}{% for b in range(100000) %}{% set x = 1 %}{% endfor %}{% endfor %}"
DOUBLED = "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        NESTED,
        DOUBLED,
        DOUBLED.replace("~", "+"),
        "{% macro m(s) %}{{ m(s ~ s) }}{% endmacro %}{{ m('xxxxxxxxx') }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
        "{% with s = 'x' * 60000000 %}{% with s = s ~ s %}{{ s | length }}{% endwith %}{% endwith %}",
        "{{ 'x' * 10 ** 9 }}",
        "{{ 10 ** 9 * 'x' }}",
        "{{ ([1] * 10 ** 9) | length }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%*d' % (10 ** 9, 1) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ '{:{w}}'.format(1, w=10 ** 9) }}",
        "{{ 'x'.ljust(10 ** 9) }}",
        "{{ 'x'.zfill(10 ** 9) }}",
        "{{ '\t'.expandtabs(10 ** 9) }}",
        "{{ 'x' | center(10 ** 9) }}",
        "{{ 'x\ny' | indent(10 ** 9) }}",
        "{{ 'x\ny' | indent(width=10 ** 9) }}",
        "{{ [1] | batch(10 ** 9, 0) | list }}",
        "{{ [1] | slice(10 ** 9) | list }}",
        "{{ 1 | round(10 ** 9) }}",
        "{{ ('x' * 10000).replace('x', 'y' * 10000) }}",
        "{{ ('x' * 10000) | replace('x', 'y' * 10000) }}",
        "{{ ('x' * 10000).join(['y'] * 10000) }}",
        "{{ (['y'] * 10000) | join('x' * 10000) }}",
        "{{ ('x' * 10000).join('y' * 10000) }}",
        "{{ ('xx ' * 10000) | wordwrap(2, wrapstring='y' * 10000) }}",
        "{{ '\t'.expandtabs(tabsize=10 ** 9) }}",
        "{{ [1] | tojson(indent=10 ** 9) }}",
        "{{ [1] | tojson(indent='x' * 20000) }}",
        "{{ [1, 2] | tojson(separators=('x' * 20000, ':')) }}",
        "{% macro m(s, n) %}{% if n %}{{ m(s=s ~ s, n=n - 1) }}{% endif %}{% endmacro %}{{ m(s='xxxxxxxxx', n=25) }}",
        "{% for i in range(90) %}{{ 'x' * 1000000 }}{% endfor %}",
        "{% for i in range(90) %}{% for j in range(90000) %}{{ j }}{% endfor %}{% endfor %}",
    ],
)
@pytest.mark.slow
def test_a_template_that_would_run_for_ever_or_build_gigabytes_is_stopped(source, monkeypatch):
    """A tenth of the limits takes a tenth of the time; the actual limits end a template after seconds."""
    monkeypatch.setattr(sandbox, "MAX_STEPS", sandbox.MAX_STEPS // 10)
    monkeypatch.setattr(sandbox, "MAX_CHARS", sandbox.MAX_CHARS // 10)
    start = time.process_time()
    with pytest.raises((LimitExceeded, RecursionError)):
        render(source)
    assert time.process_time() - start < 3


@pytest.mark.slow
def test_a_long_conversation_is_far_from_the_bounds():
    source = TEMPLATES["qwen36"].read_text()
    messages = [{"role": role, "content": "words " * 50} for _ in range(2000) for role in ("user", "assistant")]
    render(source, messages=messages, add_generation_prompt=True)
    assert ENV.budgets.now.steps > sandbox.MAX_STEPS * 0.9


def test_jinja2_itself_bounds_range():
    with pytest.raises(OverflowError):
        render("{% for i in range(10 ** 9) %}{% endfor %}")


def test_the_budget_is_for_one_rendering(monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_STEPS", 100)
    template = ENV.from_string("{% for i in x %}.{% endfor %}")
    for _ in range(3):
        assert sandbox.render(template, {"x": range(99)}, DEFAULT_RENDER_S) == "." * 99
    with pytest.raises(LimitExceeded):
        sandbox.render(template, {"x": range(101)}, DEFAULT_RENDER_S)
