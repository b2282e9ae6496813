"""Six wordings of the system prompt: the same desk, rules and tools, in other words and another form.

`desk` is the one that rollouts and the paper's pools have. A claim about a model under a system prompt is a claim about
that prompt until others have been tried: each names every tool and argument, and asks for the same one-line calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from envs.toolshed.tools import KIND_NAMES, SYSTEM_PROMPT, TOOLS

_JSON_TYPES: Mapping[str, Mapping[str, object]] = {
    "str": {"type": "string"},
    "float": {"type": "number"},
    "list[str]": {"type": "array", "items": {"type": "string"}},
}


def _stubs() -> str:
    """The tools as Python declarations, the rules after them."""
    lines = ["# Helpers of the Fernhall garden office. There is nothing else to call.", ""]
    for tool in TOOLS.values():
        about = "; ".join(f"{each.name}: {each.about}" for each in tool.parameters)
        lines += [f"def {tool.signature}:", f'    """{tool.about} ({about})"""', ""]
    lines += [
        "def done():",
        '    """Report that the request is dealt with."""',
        "",
        "# A visitor or a colleague writes a request. Reply with the next call to make, alone on one line, with",
        "# keyword arguments and no comment. Dates look like YYYY-MM-DD and times like HH:MM. Call done() at the end.",
    ]
    return "\n".join(lines)


def _schema() -> str:
    """The tools as JSON schemas, one a line."""
    lines = [
        "You are the assistant of a botanical garden called Fernhall. You have access to the following functions:",
        "",
    ]
    for tool in TOOLS.values():
        properties = {
            each.name: {**_JSON_TYPES[each.kind], "description": each.about} for each in tool.parameters
        }
        schema = {
            "type": "object",
            "properties": properties,
            "required": [each.name for each in tool.parameters],
        }
        lines.append(json.dumps({"name": tool.name, "description": tool.about, "parameters": schema}))
    lines += [
        "",
        "Fulfil the request by calling one function per message. Write the call as name(argument='value') on a single",
        "line and add no text. Use YYYY-MM-DD for days and 24-hour HH:MM for times. When nothing is left to do, write",
        "done().",
    ]
    return "\n".join(lines)


def _prose() -> str:
    """Running text, the tools in a numbered list, argument by argument in words."""
    lines = [
        "Welcome to your first day at Fernhall, the botanical garden! People will ask you for things, one at a time, "
        "and you get them done with our office tools. You speak to the tools only: each message of yours is one call, "
        "written on one line with the arguments by name, for instance tool(argument='value'), and nothing around it. "
        "Leave no argument out. We write days as YYYY-MM-DD and times as HH:MM. As soon as you are through, write "
        "done(). These are the tools:",
        "",
    ]
    for number, tool in enumerate(TOOLS.values(), start=1):
        wanted = ", ".join(f"{each.name} ({KIND_NAMES[each.kind]}: {each.about})" for each in tool.parameters)
        lines.append(f"{number}. {tool.name} - {tool.about} It wants {wanted}.")
    return "\n".join(lines)


def _manual() -> str:
    """Headings and bold names in Markdown, a section a tool."""
    lines = [
        "# Fernhall office manual",
        "",
        "## How requests are handled",
        "",
        "A person asks, the office acts: **one action at a time**, each written as a single call such as "
        "`tool(argument='value')`. State every argument by its name and write the call alone, on one line. Days are "
        "`YYYY-MM-DD`, times `HH:MM`. The last action of every request is `done()`.",
        "",
        "## Actions",
    ]
    for tool in TOOLS.values():
        lines += ["", f"### {tool.signature}", "", tool.about, ""]
        lines += [f"- **{each.name}**: {each.about}" for each in tool.parameters]
    return "\n".join(lines)


def _card() -> str:
    """As little text as will do: a line a tool, its arguments after it in brackets."""
    lines = [
        "Botanical garden Fernhall. Write the one call that comes next, on a single line; all arguments, by name. "
        "Days: YYYY-MM-DD. Times: HH:MM. Finished: done().",
    ]
    for tool in TOOLS.values():
        about = "; ".join(f"{each.name} = {each.about}" for each in tool.parameters)
        lines.append(f"{tool.signature} | {tool.about} [{about}]")
    return "\n".join(lines)


SYSTEM_PROMPTS: Mapping[str, str] = {
    "desk": SYSTEM_PROMPT,
    "stubs": _stubs(),
    "schema": _schema(),
    "prose": _prose(),
    "manual": _manual(),
    "card": _card(),
}
