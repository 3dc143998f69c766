"""What Jinja2, set up as transformers does, makes of every chat template in a folder: JSON on the standard output.

    python chat_templates.py FOLDER [NAME]

Each template is given each conversation below, with and without the header of the next turn. A case ends in a text, in what the
template said to `raise_exception`, or in another failure.
"""

import copy
import datetime
import json
import pathlib
import sys

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 3, 7, 15, 4, 5)


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Raised(TemplateError):
    pass


def raise_exception(message):
    raise Raised(message)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda fmt: NOW.strftime(fmt)
    return env


SYSTEM = {"role": "system", "content": "Answer in one line. Use <b>no</b> markup & keep 'quotes'.\n"}
TURNS = [
    {"role": "user", "content": "  Hello \"there\" — é🙂\n\nsecond line "},
    {"role": "assistant", "content": "Hi!\n"},
    {"role": "user", "content": "What is 2 < 3?"},
]


def function(name, description, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    function(
        "get_weather",
        "The weather <now> & soon, for a \"place\"",
        {
            "city": {"type": "string", "description": "Name of the place"},
            "days": {"type": "integer", "description": "How many", "default": 3},
            "units": {"type": "string", "description": "Of what", "enum": ["celsius", "kelvin"]},
        },
        ["city"],
    ),
    function(
        "book",
        "Books a table",
        {
            "guests": {"type": "array", "items": {"type": "string"}, "description": "Who comes"},
            "at": {
                "type": "object",
                "description": "When and where",
                "properties": {
                    "hour": {"type": "number", "description": "From 0 to 24"},
                    "inside": {"type": "boolean", "description": "Not on the terrace"},
                },
                "required": ["hour"],
            },
        },
        ["guests", "at"],
    ),
]


def call(id, name, arguments):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*made, content="", **more):
    return {"role": "assistant", "content": content, "tool_calls": list(made), **more}


def result(id, name, content):
    return {"role": "tool", "tool_call_id": id, "name": name, "content": content}


WEATHER = call("call00001", "get_weather", {"city": "Oslo é", "days": 2, "exact": True, "scale": 1.0, "none": None})
BOOK = call("call00002", "book", {"guests": ["A", "B \"b\""], "at": {"hour": 19.5, "inside": False}})
ASK = {"role": "user", "content": "Weather in Oslo? Then book."}
ONE_CALL = [ASK, calls(WEATHER), result("call00001", "get_weather", "{\"t\": -3.5}")]
THOUGHT = {"role": "assistant", "content": "It is.", "reasoning_content": "Compare\nthem."}
PARTS = [{"type": "text", "text": "First part."}, {"type": "text", "text": "Second part."}]

CONVERSATIONS = {
    "user": ([TURNS[0]], None, {}),
    "system": ([SYSTEM, TURNS[0]], None, {}),
    "turns": ([SYSTEM, *TURNS], None, {}),
    "turns without system": (TURNS, None, {}),
    "ends with the assistant": ([SYSTEM, *TURNS, THOUGHT], None, {}),
    "tools": ([TURNS[0]], TOOLS, {}),
    "one tool": ([SYSTEM, TURNS[0]], TOOLS[:1], {}),
    "one tool and its result": ([SYSTEM, *ONE_CALL], TOOLS[:1], {}),
    "tools and system": ([SYSTEM, *TURNS], TOOLS, {}),
    "a call": ([SYSTEM, ASK, calls(WEATHER)], TOOLS, {}),
    "a result": ([SYSTEM, *ONE_CALL], TOOLS, {}),
    "a result without system": (ONE_CALL, TOOLS, {}),
    "two calls at once": (
        [
            ASK,
            calls(WEATHER, BOOK, content="Let me see."),
            result("call00001", "get_weather", "cold"),
            result("call00002", "book", "done"),
        ],
        TOOLS,
        {},
    ),
    "an answer after a call": ([*ONE_CALL, {"role": "assistant", "content": "Cold."}, TURNS[2]], TOOLS, {}),
    "a call without tools given": (ONE_CALL, None, {}),
    "no content beside calls": (
        [ASK, calls(WEATHER, content=None), result("call00001", "get_weather", "cold"), TURNS[2]],
        TOOLS,
        {},
    ),
    "thoughts": ([TURNS[0], THOUGHT, TURNS[2]], None, {}),
    "thoughts before a call": (
        [ASK, calls(WEATHER, reasoning_content="I should look."), result("call00001", "get_weather", "cold")],
        TOOLS,
        {},
    ),
    "thinking on": ([SYSTEM, TURNS[0]], None, {"enable_thinking": True}),
    "thinking off": ([SYSTEM, TURNS[0]], None, {"enable_thinking": False}),
    "parts": ([{"role": "user", "content": PARTS}], None, {}),
    "parts everywhere": (
        [
            {"role": "system", "content": PARTS[:1]},
            {"role": "user", "content": PARTS},
            {"role": "assistant", "content": PARTS[1:]},
            {"role": "user", "content": PARTS[:1]},
        ],
        None,
        {},
    ),
    "functions": ([SYSTEM, TURNS[0]], None, {"functions": "[]", "datetime": "1 May", "date_string": "2 May"}),
    "tools without a wrapper": ([SYSTEM, TURNS[0]], [tool["function"] for tool in TOOLS], {}),
    "two users in a row": ([TURNS[0], TURNS[2]], None, {}),
    "nothing": ([], None, {}),
}


def outcome(template, messages, tools, extra):
    try:
        text = template.render(
            messages=copy.deepcopy(messages),
            tools=copy.deepcopy(tools),
            documents=None,
            bos_token="<bos>",
            eos_token="<eos>",
            **extra,
        )
        return {"text": text}
    except Raised as error:
        return {"raised": str(error)}
    except Exception as error:  # Whatever goes wrong in a template is its answer.
        return {"failed": f"{type(error).__name__}: {error}"}


def main():
    folder = pathlib.Path(sys.argv[1])
    out = []
    for path in sorted(folder.glob("*.jinja")):
        if sys.argv[2:] and path.stem not in sys.argv[2:]:
            continue
        try:
            template = environment().from_string(path.read_text())
        except TemplateError as error:
            out.append({"template": path.name, "failed": f"{type(error).__name__}: {error}"})
            continue
        for name, (messages, tools, extra) in CONVERSATIONS.items():
            for prompt in (False, True):
                options = {"add_generation_prompt": prompt, **extra}
                case = {"template": path.name, "name": name, "messages": messages, "tools": tools, "options": options}
                out.append({**case, **outcome(template, messages, tools, options)})
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main()
