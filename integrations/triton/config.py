"""The `config.pbtxt` of both models. Texts are inserted without escaping: names are checked, the rest are numbers."""

from __future__ import annotations

from collections.abc import Mapping

from .layout import INPUTS, OF, OUTPUTS
from .options import RepositoryOptions

MODEL = """\
# Written by `specexport triton-repository`.
name: "{name}"
backend: "python"
max_batch_size: 0  # one request at a time: more instances, never batches
model_transaction_policy {{ decoupled: {decoupled} }}
{tensors}
instance_group [
  {{ count: {count} kind: {kind}{gpus} }}
]
# What waits, for all instances together; queue_full is 503, queue_timeout 400.
dynamic_batching {{
  default_queue_policy {{
    max_queue_size: {queue}
    timeout_action: REJECT
    default_timeout_microseconds: {timeout}
    allow_timeout_override: true
  }}
}}
{parameters}"""


def streaming_config(name: str, options: RepositoryOptions) -> str:
    """The `config.pbtxt` of the model that streams."""
    kept = {"engine": options.engine, "threads": options.threads or None, "prompt_cache_mib": options.prompt_cache_mib}
    parameters = {key: str(value) for key, value in kept.items() if value is not None}
    gpus = f" gpus: [ {', '.join(map(str, options.gpus))} ]" if options.gpus else ""
    count, kind = (1, "KIND_GPU") if options.gpus else (options.instances, "KIND_CPU")
    return _config(name, options, parameters, decoupled="true", count=count, kind=kind, gpus=gpus)


def whole_config(name: str, of: str, options: RepositoryOptions) -> str:
    """The `config.pbtxt` of the model that returns whole answers of the model `of`.

    It has as many instances as the latter, since each waits for one answer; they need neither GPUs nor weights.
    """
    count = len(options.gpus) or options.instances
    return _config(name, options, {OF: of}, decoupled="false", count=count, kind="KIND_CPU", gpus="")


def _config(name: str, options: RepositoryOptions, parameters: Mapping[str, str], **filled: object) -> str:
    inputs = [f'input {{ name: "{one}" data_type: TYPE_STRING dims: [ 1 ] optional: true }}' for one in INPUTS]
    outputs = [f'output {{ name: "{one}" data_type: TYPE_STRING dims: [ 1 ] }}' for one in OUTPUTS]
    lines = [f'parameters {{ key: "{key}" value {{ string_value: "{one}" }} }}\n' for key, one in parameters.items()]
    return MODEL.format(
        name=name,
        tensors="\n".join([*inputs, *outputs]),
        queue=options.queue,
        timeout=round(options.queue_timeout * 1e6),
        parameters="".join(lines),
        **filled,
    )
