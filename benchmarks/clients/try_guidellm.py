"""The load generator `guidellm`: its synthetic requests say `ignore_eos`, and it exits with 0 even if all fail."""

from __future__ import annotations

import json
from pathlib import Path

from harness import MODEL, PLAIN_URL, check, command, expect, main, tokenizer_folder

OUTPUT_TOKENS = 16


@check
def ignore_eos() -> None:
    """Six requests, two at a time: all of them answered, with as many tokens as asked for."""
    command(
        "guidellm", "run", "--disable-console-interactive", "--output", "kind=json,path=found.json",
        "--backend", f"kind=openai_http,target={PLAIN_URL},model={MODEL}",
        "--tokenizer", f"kind=hf_auto,model={tokenizer_folder()}",
        "--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=6",
        "--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={OUTPUT_TOKENS}",
    )  # fmt: skip
    (found,) = json.loads(Path("found.json").read_text(encoding="utf-8"))["benchmarks"]
    totals, requests = found["metrics"]["request_totals"], found["requests"]
    expect(totals["successful"] == 6 and not totals["errored"], [one["info"]["error"] for one in requests["errored"]])
    tokens = [one["output_metrics"]["text_tokens"] for one in requests["successful"]]
    expect(tokens == [OUTPUT_TOKENS] * 6, tokens)


if __name__ == "__main__":
    main()
