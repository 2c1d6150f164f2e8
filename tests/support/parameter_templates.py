"""Chat templates whose calls are not Hermes', Llama's or Mistral's, written as those of the models are."""

from __future__ import annotations


def _around(call: str, before: str = "", between: str = "", after: str = "") -> str:
    """call: of `name` and `given`."""
    return (
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}"
        "{% if message.role == 'assistant' %}<A>{{ message.content }}{% if message.tool_calls %}"
        + before
        + "{% for call in message.tool_calls %}{% set name = call.function.name %}"
        "{% set given = call.function.arguments %}"
        + call
        + "{% if not loop.last %}"
        + between
        + "{% endif %}{% endfor %}"
        + after
        + "{% endif %}<end>{% elif message.role == 'tool' %}<R>{{ message.content }}{% else %}<U>{{ message.content }}"
        "{% endif %}{% endfor %}{% if add_generation_prompt %}<A>{% endif %}"
    )


QWEN_CODER = _around(
    "{{ '<tool_call>\\n<function=' + name + '>\\n' }}{% for key, value in given | items %}"
    "{{ '<parameter=' + key + '>\\n' }}{{ value if value is string else value | tojson }}{{ '\\n</parameter>\\n' }}"
    "{% endfor %}{{ '</function>\\n</tool_call>' }}",
    between="{{ '\\n' }}",
)
GLM = _around(
    "{{ '\\n<tool_call>' + name }}{% for key, value in given | items %}"
    "{{ '\\n<arg_key>' + key + '</arg_key>\\n<arg_value>' }}{{ value if value is string else value | tojson }}"
    "</arg_value>{% endfor %}{{ '\\n</tool_call>' }}"
)
LFM = _around(
    "{{ name }}({% for key, value in given | items %}{{ key }}="
    '{{ "\'" + value + "\'" if value is string else value | string }}'
    "{% if not loop.last %}, {% endif %}{% endfor %})",
    before="<|tool_call_start|>[",
    between="{{ ', ' }}",
    after="]<|tool_call_end|>",
)
DSML = _around(
    "{{ '\\n<|DSML|invoke name=\"' + name + '\">\\n' }}{% for key, value in given | items %}"
    "{{ '<|DSML|parameter name=\"' + key + '\" string=\"' + ('true' if value is string else 'false') + '\">' }}"
    "{{ value if value is string else value | tojson }}{{ '</|DSML|parameter>\\n' }}{% endfor %}</|DSML|invoke>",
    before="<|DSML|calls>",
    after="{{ '\\n</|DSML|calls>' }}",
)
DEEPSEEK = _around(
    "<|call_begin|>{{ name }}<|call_sep|>{{ given | tojson }}<|call_end|>",
    before="<|calls_begin|>",
    after="<|calls_end|>",
)
NESTED = _around(
    "<|call>call:{{ name }}{% raw %}{{% endraw %}{% for key, value in given | items %}{{ key }}:"
    "{{ '<q>' + value + '<q>' if value is string else value | string | replace(\"'\", '<q>') }}"
    "{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}<call|>"
)
