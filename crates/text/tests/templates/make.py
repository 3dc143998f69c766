"""Renders the templates and conversations below with Jinja2 as transformers sets it up, and writes cases.json.

Run with a Python that has jinja2; the result is committed, so that tests need no Python.
"""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[4] / "tests/oracle"))

from chat_templates import Raised, environment

PLAIN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello <b>you</b> & 'me' \"them\" é🙂\n"},
    {"role": "assistant", "content": "  Hi.  "},
    {"role": "user", "content": "Why?"},
]
PARTS = [
    {"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": "image"}]},
]
CALLS = [
    {"role": "user", "content": "Weather in Oslo?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "weather", "arguments": {"city": "Oslo", "days": 2, "scale": 1.0, "wind": True}},
            }
        ],
    },
    {"role": "tool", "name": "weather", "tool_call_id": "c1", "content": "{\"t\": -3.5}"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather <now> & soon",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": None}},
                "required": ["city"],
            },
        },
    }
]

CHATML = """\
{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
        {{- '<|im_start|>system\\nDefault.<|im_end|>\\n' }}
    {% endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""
TOOL_USE = """\
{%- if tools %}
    {{- '<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' ~ (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\n' }}
    {{- tools | tojson(indent=2) }}
    {{- tools | map(attribute='function.name') | join(', ') }}
{%- endif %}
{%- for message in messages %}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {%- for call in message.tool_calls %}
            {%- if call.function is defined %}{% set call = call.function %}{% endif %}
[{{ call.name }}({% for key, value in call.arguments.items() %}{{ key }}={{ value }}{{ ', ' if not loop.last }}{% endfor %})]
            {{- call.arguments | tojson(separators=(',', ':'), sort_keys=true) }}
        {%- endfor %}
    {%- elif message.content is string %}
{{ message.role.upper() }}: {{ message.content.strip() }}
    {%- endif %}
    {%- if message.content is none %}(nothing){% endif %}
{%- endfor %}
"""
NAMESPACES = """\
{%- set ns = namespace(system='', count=0) %}
{%- for m in messages if m.role != 'tool' %}
    {%- if m.role == 'system' %}{% set ns.system = m.content %}{% continue %}{% endif %}
    {%- set ns.count = ns.count + 1 %}
    {%- if ns.count > 2 %}{% break %}{% endif %}
    {{- ns.count ~ ':' ~ m.role ~ ' ' }}
{%- endfor %}
{{- ns.system }} {{ messages[-1].role }} {{ messages[1:] | length }} {{ messages[::-1][0].role }}
{{ true }} {{ none }} {{ 1.0 }} {{ 7 // 2 }} {{ 7 / 2 }} {{ 2 ** 3 }} {{ [1, 'a', none, true] }} {{ {'k': 'v'} }}
{{ 'a,b,c'.split(',')[-1] }} {{ 'abc'.startswith('ab') }} {{ 'x' in 'xyz' }} {{ 'abc'[1:] }} {{ 'Ab' | lower }} {{ 'a' * 3 }}
{{ undefined_thing }}|{{ undefined_thing | default('d') }}|{{ bos_token }}|{{ eos_token }}|{{ tools is none }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ (messages | first).role }}
{{ "%.2f" | format(1.5) }} {{ ['b', 'a'] | sort | join }} {{ {'b': 1, 'a': 2} | dictsort }}
{{ messages[0].get('missing', 'none here') }} {{ 'missing' in messages[0] }} {{ messages[0]['role'] is in ['user', 'system'] }}
"""
GENERATION = """\
{% for m in messages %}
  {% if m.role == 'assistant' %}
    {%- generation -%}
    {{ m.content }}{{ eos_token }}
    {%- endgeneration -%}
  {% else %}
{{ m.role }}: {{ m.content }}
  {% endif %}
{% generation %}
x
{% endgeneration %}
{% endfor %}
"""
MACROS = """\
{%- macro show(value, depth=0) -%}
    {%- if value is mapping -%}
        {%- for k, v in value | dictsort -%}{{ '  ' * depth }}{{ k }}:{{ '\\n' }}{{ show(v, depth + 1) }}{%- endfor -%}
    {%- elif value is string or value is number or value is boolean or value is none -%}
        {{ '  ' * depth }}{{ value }}{{ '\\n' }}
    {%- else -%}
        {%- for v in value -%}{{ show(v, depth) }}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{{ show(tools) }}
{%- for message in messages -%}
    {%- for part in message.content if part.type == 'text' -%}<text>{{ part.text }}</text>{%- endfor -%}
{%- endfor -%}
Today is {{ strftime_now('%d %b %Y') }} ({{ strftime_now("%A, %-d %B; %H:%M:%S %I %p %j %y") }})
{# a comment #}
{%- filter upper %}shout {{ messages | length }}{% endfilter %}
{%- raw %}{{ not run }}{% endraw %}
"""
TEXTS = """\
{{- '{\\n' | indent(4, first=true) }}|{{ 'a\\n\\nb\\n' | indent }}|{{ 'a\\n\\nb' | indent(2, true, true) }}|{{ 'a\\nb' | indent('> ') }}
{{ none is iterable }} {{ 'x' is iterable }} {{ {} is iterable }} {{ 1 is iterable }} {{ [] is sequence }} {{ {} is sequence }}
{{ 'x' is sequence }} {{ 1 is sequence }} {{ messages[0].tool_calls is defined }} {{ 'tool_calls' in messages[0] }}
{{ {'b': [1, {'a': none}], 'a': 'é<'} | tojson(indent=2) }} {{ 'é' | tojson(ensure_ascii=true) }} {{ {1: 2} | tojson }}
{{ ' a b '.strip().split() }} {{ 'a--b'.split('--', 1) }} {{ 'xay'.replace('a', '') }} {{ 'Ab'.title() }} {{ 'ab'.find('b') }}
{{ {'a': 1} | items | list }} {% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}
{{ [1, 2, 3, 4][1:-1] }} {{ [1, 2, 3][::-1] }} {{ 'abc'[::-1] }} {{ [3, 1, 2] | sort(reverse=true) }} {{ ['a', 'a'] | unique | list }}
{{ '%s-%d' | format('x', 3) }} {{ 'x{}y{}'.format(1, 2) }} {{ [1, none, 2] | select | list }} {{ [{'a': 1}] | map(attribute='a') | list }}
{{ 5 if true else 6 }} {{ not none }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ 7 % 3 }} {{ -7 // 2 }} {{ [1] + [2] }} {{ 'a' in {'a': 1} }}
{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m.role] %}{% endfor %}{{ ns.l }} {{ ns.l | length }}
"""
REFUSES = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}ok"

CASES = [
    ("chatml", CHATML, PLAIN, None, {"add_generation_prompt": True}),
    ("chatml without a prompt", CHATML, PLAIN[1:], None, {}),
    ("tools", TOOL_USE, CALLS, TOOLS, {}),
    ("tools not given", TOOL_USE, CALLS, None, {}),
    ("namespaces and expressions", NAMESPACES, PLAIN, None, {"bos_token": "<s>", "eos_token": "</s>"}),
    ("generation tags", GENERATION, PLAIN, None, {"eos_token": "</s>"}),
    ("macros, parts and time", MACROS, PARTS, TOOLS, {}),
    ("texts, tests and filters", TEXTS, PLAIN, None, {}),
    ("refusal", REFUSES, PLAIN, None, {}),
]


def main():
    out = []
    for name, template, messages, tools, options in CASES:
        case = {"name": name, "template": template, "messages": messages, "tools": tools, **options}
        variables = {"add_generation_prompt": False, **options}
        try:
            rendered = environment().from_string(template).render(
                messages=messages, tools=tools, documents=None, **variables
            )
            case["expected"] = rendered
        except Raised as error:
            case["raised"] = str(error)
        out.append(case)
    path = pathlib.Path(__file__).with_name("cases.json")
    path.write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


main()
