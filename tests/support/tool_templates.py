"""Chat templates that know tools, written as those of the models are; CHATML knows none."""

from __future__ import annotations

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN = """
{%- if tools %}<|im_start|>system
# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}For each function call, return JSON within <tool_call></tool_call>:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}{{- '\\n' + message.content }}{% endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function %}{% set tool_call = tool_call.function %}{% endif %}
            {{- '\\n<tool_call>\\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson + '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
HERMES = """
{%- if tools %}{{- '<tools>' }}
{%- for tool in tools %}{% set tool = tool.function %}
{{- tool.name + ' - ' + tool.description }}
{%- for name, value in tool.parameters.properties | items %}{{- name }}{% endfor %}{% endfor %}</tools>
<tool_call>
{"name": <function-name>, "arguments": <args-dict>}
</tool_call><|im_end|>{% endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls is defined %}
        {{- '<|im_start|>assistant' }}
        {%- for tool_call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{ "arguments": ' + tool_call.function.arguments | tojson }}
            {{- ', "name": "' + tool_call.function.name + '"}\\n</tool_call> ' }}
        {%- endfor %}<|im_end|>
    {%- elif message.role == "tool" %}
        {%- if not message.name is defined %}{{- raise_exception("Tool response dicts require a name") }}{% endif %}
        {{- '<|im_start|>tool\\n' + message.name + message.content | tojson + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
LLAMA = """
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools %}{{- 'Respond in the format {"name": function name, "parameters": dictionary}.' }}
{%- for tool in tools %}{{- tool | tojson(indent=4) + '\\n\\n' }}{% endfor %}{% endif %}
{%- for message in messages %}
    {%- if message.role == "tool" %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + {"output": message.content} | tojson + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson + '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
MISTRAL = """
{%- set user_messages = messages | selectattr("role", "equalto", "user") | list %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] " + tools | tojson + "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + message.content + "[/INST]" }}
    {%- elif message.tool_calls is defined %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function | tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id | length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' + (", " if not loop.last else "]" + eos_token) }}
        {%- endfor %}
    {%- elif message.role == "tool" %}
        {%- if message.tool_call_id | length != 9 %}{{- raise_exception("nine!") }}{% endif %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content + ', "call_id": "' + message.tool_call_id }}
        {{- '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- " " + message.content + eos_token }}
    {%- endif %}
{%- endfor %}"""
MINISTRAL = """
{%- if tools %}{{- "[AVAILABLE_TOOLS]" + tools | tojson + "[/AVAILABLE_TOOLS]" }}{% endif %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- "[INST]" + message.content + "[/INST]" }}
    {%- elif message.role == "tool" %}
        {{- "[TOOL_RESULTS]" + message.content + "[/TOOL_RESULTS]" }}
    {%- else %}
        {{- message.content or "" }}
        {%- for tool in message.tool_calls or [] %}
            {{- '[TOOL_CALLS]' + tool['function']['name'] + '[ARGS]' + tool['function']['arguments'] | tojson | safe }}
        {%- endfor %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}"""
PYTHONIC = """
{%- if tools %}{{- tools | tojson }}{% endif %}
{%- for message in messages %}<|{{ message.role }}|>{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<|tool_call_start|>[' + call.function.name + '(' }}
{%- for name, value in call.function.arguments | items %}{{- name ~ '=' ~ value }}{% endfor %}
{{- ')]<|tool_call_end|>' }}{% endfor %}{% endfor %}<|assistant|>"""
