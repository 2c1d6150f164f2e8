"""Chat templates of models that think, written as those of the models are."""

from __future__ import annotations

QWEN = """
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set thoughts = message.reasoning_content or "" %}
        {%- set content = message.content or "" %}
        {{- '<|im_start|>assistant\\n<think>\\n' + thoughts.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + '}\\n</tool_call>' + ('' if loop.last else '\\n') }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if tools %}{{- tools | tojson }}{% endif %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
OPENED = QWEN.replace("assistant\\n' }}{% endif %}", "assistant\\n<think>\\n' }}{% endif %}")
GLM = """
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {{- '<|assistant|>\\n<think>' + (message.reasoning_content or '') + '</think>\\n' + message.content }}
    {%- else %}
        {{- '<|' + message.role + '|>\\n' + message.content }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{% endif %}"""
MISTRAL = """
{%- if tools %}{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == "user" %}
        {{- '[INST]' + message.content + '[/INST]' }}
    {%- elif message.role == "tool" %}
        {{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
    {%- else %}
        {%- if message.content is string %}{{- message.content }}{% else %}
        {%- for part in message.content %}
            {%- if part.type == "thinking" %}{{- '[THINK]' + part.thinking + '[/THINK]' }}
            {%- else %}{{- part.text }}{% endif %}
        {%- endfor %}{% endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' + call.function.arguments | tojson }}
        {%- endfor %}
    {%- endif %}
{%- endfor %}"""
DEEPSEEK = """
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {{- '<A>' + message.content.split('</think>')[-1] + '<end>' }}
    {%- else %}{{- '<U>' + message.content }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<A><think>\\n' }}{% endif %}"""
CHANNELS = """
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- if message.reasoning %}{{- '<|think|>' + message.reasoning + '<|end|>' }}{% endif %}
        {{- '<|say|>' + message.content + '<|end|>' }}
    {%- else %}{{- '<|' + message.role + '|>' + message.content }}{% endif %}
{%- endfor %}"""
