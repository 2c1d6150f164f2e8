"""Fields of OpenAI-like servers that are not honoured: the values that are accepted, and what to give instead.

Whatever narrows or changes what an answer may be is here, so that none of it is ignored: OpenAI, vLLM, SGLang, TGI,
llama.cpp, Ollama, Together, Fireworks, OpenRouter, Mistral, text-generation-webui. Names in other objects are written
`messages[].prefix`. What is neither here nor honoured is unknown, and only named in a header: so are fields that have
an effect only beside one that is refused, such as `length_penalty`.
"""

from __future__ import annotations

import re
from typing import Any

Accepted = tuple[Any, ...]
ANY = object()
NEVER: Accepted = ()

FORMAT = "give response_format or structured_outputs instead"
LARK = "give structured_outputs instead: a regex, choices, a schema, or a grammar in Lark (--allow-grammars)"
SAMPLER = "there is no such sampler here; leave it out, or give top_p, top_k or min_p"
TOP_LEVEL = "its entries are fields of the request itself"
BANS = "give logit_bias instead: -100 for each of the tokens"
ONE_SEQUENCE = "there is one sequence at a time"
TEXT_ONLY = "this model reads and writes text only"
WHOLE_PROMPT = "a prompt is never cut; shorten it"
ADAPTER = "the model is served as it was built"
THINKING = 'give chat_template_kwargs instead, as {"enable_thinking": false}'
BUDGET = "thoughts have no limit of their own; give max_tokens"
NO_FILTER = "no filter or guard looks at texts here"
INFILL = "give prompt and suffix to /v1/completions"
ANEW = "give continue_final_message: true instead, and add_generation_prompt: false"


def _all(names: str, accepted: Accepted, reason: str) -> dict[str, tuple[Accepted, str]]:
    return dict.fromkeys(names.split(), (accepted, reason))


FIELDS: dict[str, tuple[Accepted, str]] = {
    # Without effect on an answer.
    **_all("user metadata prompt_cache_key safety_identifier parallel_tool_calls", (ANY,), ""),
    "store": ((False,), "nothing is stored"),
    "service_tier": (("auto", "default"), "there is one tier"),
    # Of the Responses API.
    **_all("prompt_cache_retention prompt_cache_options stream_options", (ANY,), ""),
    **_all("previous_response_id conversation", NEVER, "nothing is stored here; send the whole conversation as input"),
    "background": ((False,), "nothing is stored here; an answer is sent when it is made"),
    "context_management": (([],), WHOLE_PROMPT),
    "response_format": (({"type": "text"},), "give text.format instead"),
    "n": ((1,), "one answer per request; send more requests for more"),
    **_all("max_completion_tokens max_new_tokens n_predict num_predict", NEVER, "give max_output_tokens instead"),
    **_all("text.verbosity verbosity", (ANY,), ""),  # openai-agents sends it unasked
    **_all("guided_decoding_backend", (ANY,), ""),  # a name that would seem to narrow the answer
    **_all("structured_outputs.disable_any_whitespace structured_outputs.disable_fallback", (ANY,), ""),
    # What an answer must match.
    **_all("grammar ebnf guided_grammar", ("",), LARK),
    **_all("json_mode json_object", (False,), FORMAT),
    **_all("schema response_schema output_format output_config text structural_tag", NEVER, FORMAT),
    **_all("response_format.grammar response_format.structures structured_outputs.structural_tag", NEVER, LARK),
    "guided_whitespace_pattern": (NEVER, "JSON is written without blanks"),
    "structured_outputs.whitespace_pattern": (NEVER, "JSON is written without blanks"),
    "structured_outputs.disable_additional_properties": ((False,), "say additionalProperties: false in the schema"),
    "grammar_lazy": ((False,), LARK),
    "grammar_triggers": (([],), LARK),
    **_all("bad_words bad_words_ids suppress_tokens begin_suppress_tokens", ([],), BANS),
    **_all("banned_strings custom_token_bans", ([], ""), BANS),
    **_all("allowed_token_ids force_words_ids", ([],), "give structured_outputs instead: a regex, or choices"),
    **_all("logits_processors logit_processors", ([],), "give logit_bias instead"),
    "custom_logit_processor": (("",), "give logit_bias instead"),
    # How tokens are drawn.
    **_all("mirostat mirostat_mode dry_multiplier xtc_probability dynatemp_range smoothing_factor", (0,), SAMPLER),
    **_all("top_a epsilon_cutoff eta_cutoff penalty_alpha min_keep skew", (0,), SAMPLER),
    **_all("typical_p typical tfs tfs_z", (1,), SAMPLER),
    **_all("top_n_sigma nsigma", (-1, 0), SAMPLER),
    **_all("mirostat_target adaptive_target exponential_decay_length_penalty", NEVER, SAMPLER),
    **_all("dynamic_temperature temperature_last", (False,), SAMPLER),
    **_all("samplers sampler_seq sampler_order sampler_priority", NEVER, "the order of the samplers is fixed"),
    **_all("encoder_repetition_penalty guidance_scale", (1,), "give repetition_penalty instead"),
    "no_repeat_ngram_size": ((0,), "give repetition_penalty instead"),
    "negative_prompt": (("",), "there is no guidance here"),
    "repeat_last_n": ((-1,), "the penalty looks at the whole prompt and output; give -1, or leave it out"),
    "repetition_penalty_range": ((0,), "the penalty looks at the whole prompt and output; give 0, or leave it out"),
    **_all("penalize_nl penalize_newline", (True,), "penalties treat all tokens alike"),
    "do_sample": ((True,), "give temperature: 0 instead"),
    "watermark": ((False,), "texts have no watermark"),
    # How many answers, and how long.
    "best_of": ((1,), "answers are not ranked; give n for several"),
    "use_beam_search": ((False,), ONE_SEQUENCE),
    **_all("num_beams num_beam_groups beam_width", (1,), ONE_SEQUENCE),
    "diversity_penalty": ((0,), ONE_SEQUENCE),
    "max_length": (NEVER, "give max_tokens instead, which counts the output alone"),
    "min_length": ((0,), "give min_tokens instead, which counts the output alone"),
    **_all("max_time t_max_predict_ms", (0, -1), "give max_tokens instead"),
    "n_indent": ((0,), "give structured_outputs instead"),
    # Where an answer ends, and what of it is text.
    **_all("stop_regex stopping_criteria", NEVER, "give stop instead: texts"),
    "eos_token_id": (NEVER, "give stop_token_ids instead"),
    **_all("include_stop_str_in_output no_stop_trim", (False,), "the text ends before a stop string"),
    "skip_special_tokens": ((True,), "special tokens have no text here"),
    "detokenize": ((True,), "answers are text"),
    # What is returned besides.
    **_all("echo return_full_text", (False,), "only /v1/completions echoes a prompt, for echo: true"),
    "echo_last": ((0,), "give echo: true instead"),
    "decoder_input_details": ((False,), "give prompt_logprobs instead"),
    **_all("n_probs top_n_tokens", (0,), "give logprobs instead"),
    "post_sampling_probs": ((False,), "log-probabilities are those before sampling"),
    "raw_output": ((False,), "answers are text"),
    "dimensions": (NEVER, "there are no embeddings here"),
    # What is read.
    "suffix": (("",), INFILL),
    **_all("input_prefix input_suffix input_extra", ("", []), INFILL),
    **_all("truncate_prompt_tokens truncate prompt_truncate_len", NEVER, WHOLE_PROMPT),
    "context_length_exceeded_behavior": (("error",), WHOLE_PROMPT),
    "truncation": (("disabled",), WHOLE_PROMPT),
    "transforms": (([],), WHOLE_PROMPT),
    "add_generation_prompt": ((True,), "/v1/chat/completions has it"),
    "continue_final_message": ((False,), "/v1/chat/completions has it, and a text of /v1/completions always is"),
    **_all("messages[].prefix messages[].partial", (False,), ANEW),
    "messages[].function_call": (NEVER, "it was replaced by tool_calls"),
    "messages[].audio": (NEVER, TEXT_ONLY),
    "messages[].images": (([],), TEXT_ONLY),
    "add_special_tokens": ((True,), "give token ids as the prompt instead"),
    **_all("system instructions", ("",), "give a message with the role system instead"),
    "prompt": (NEVER, "give messages or input, or use /v1/completions"),
    "messages": (NEVER, "give a prompt, or use /v1/chat/completions"),
    **_all("input inputs input_ids prompt_token_ids", NEVER, "give messages, or a prompt for /v1/completions"),
    **_all("prompt_embeds input_embeds context", NEVER, "give texts or token ids"),
    **_all("documents images image_data audio_data video_data", ([],), TEXT_ONLY),
    **_all("chat_template template", NEVER, "templates come from the bundle, or from the server's --chat-template"),
    "raw": ((False,), "use /v1/completions for a prompt without a template"),
    "chat_template_kwargs": (NEVER, "only conversations have a template; use /v1/chat/completions"),
    **_all("tool_prompt guideline", ("",), "give a message with the role system instead"),
    "tools": (([],), "only conversations call tools; use /v1/chat/completions"),
    "tool_choice": (("none", "auto"), "only conversations call tools; use /v1/chat/completions"),
    "functions": (([],), "it was replaced by tools"),
    "function_call": (NEVER, "it was replaced by tool_choice"),
    "max_tool_calls": (NEVER, "give parallel_tool_calls: false for one call"),
    **_all("web_search_options plugins", ([],), "this server opens no connections"),
    "modalities": ((["text"],), TEXT_ONLY),
    "audio": (NEVER, TEXT_ONLY),
    # Thoughts.
    **_all("think thinking reasoning enable_thinking", NEVER, THINKING),
    **_all("thinking_budget thinking_token_budget max_thinking_tokens", NEVER, BUDGET),
    "reasoning_budget": ((-1,), BUDGET),
    **_all("include_reasoning separate_reasoning stream_reasoning", (True,), "thoughts are in reasoning_content"),
    "reasoning_format": (("auto", "deepseek"), "thoughts are in reasoning_content"),
    "thinking_forced_open": ((False,), THINKING),
    # Another model, filters, and objects that hold fields.
    **_all("lora lora_adapters adapters", ([],), ADAPTER),
    **_all("lora_path lora_request lora_name adapter_id adapter adapter_name", NEVER, ADAPTER),
    "safe_prompt": ((False,), NO_FILTER),
    **_all("guardrails moderation guardrail_config safety_model safety_settings prompt_mode", ([],), NO_FILTER),
    **_all("options parameters sampling_params extra_body generation_config nvext", ({},), TOP_LEVEL),
    **_all("vllm_xargs extra_args custom_params", ({},), "there is no such extension here"),
}
# Of a name that is not known, but says that an answer is to match something or to be without it.
NARROWING = re.compile(
    "grammar|regex|schema|guid(ed|ance)|constrain|structured|bnf|lark|banned|forbid|forced|allowed_(token|word)|"
    "bad_?(token|word)|stop_?(token|word|str|seq|text)|^stops$",
    re.IGNORECASE,
)
ASKS_FOR_NOTHING: Accepted = (False, 0, "", [], {})
NOT_KNOWN = "it is not known here; give response_format, structured_outputs, stop or logit_bias, or leave it out"
# Of conversations, whose template writes all that a model reads.
OF_MESSAGES: dict[str, tuple[Accepted, str]] = {
    "add_special_tokens": ((False,), "the template writes them"),
}
# What asks for the same as an honoured field, by that field; `structured_outputs.json`: as that field of an object.
OTHER_NAMES = {
    "repeat_penalty": "repetition_penalty",
    **dict.fromkeys(("n_predict", "num_predict", "max_new_tokens", "max_output_tokens"), "max_tokens"),
    "max_tokens": "max_output_tokens",  # of the Responses API
    "max_completion_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    **dict.fromkeys(("stop_sequences", "stop_sequence", "stop_strings", "stopping_strings", "stop_words"), "stop"),
    "random_seed": "seed",
    **dict.fromkeys(("n_cmpl", "num_return_sequences"), "n"),
    "ban_eos_token": "ignore_eos",
    **dict.fromkeys(("json_schema", "guided_json", "format"), "structured_outputs.json"),
    **dict.fromkeys(("regex", "guided_regex", "regex_pattern"), "structured_outputs.regex"),
    "guided_choice": "structured_outputs.choice",
}
# Values with which such a field asks for nothing: no format, as many tokens as there is room for.
NOTHING: dict[str, Accepted] = {
    "n_predict": (-1,),
    "num_predict": (-1, -2),
    **dict.fromkeys(("json_schema", "guided_json", "format", "regex", "guided_regex", "regex_pattern"), ("",)),
    "guided_choice": ([],),
}
