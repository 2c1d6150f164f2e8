"""The load generator `aiperf`."""

from __future__ import annotations

import json
from pathlib import Path

from harness import MODEL, PLAIN_URL, check, command, expect, main, tokenizer_folder

OUTPUT_TOKENS = 16


def profile(*options: str) -> None:
    """Six streamed requests, two at a time: all of them answered, with as many tokens as asked for."""
    command(
        "aiperf", "profile", "--model", MODEL, "--url", PLAIN_URL, "--endpoint-type", "chat", "--streaming",
        "--tokenizer", tokenizer_folder(), "--use-server-token-count", "--request-count", "6", "--concurrency", "2",
        "--isl", "32", "--osl", str(OUTPUT_TOKENS), "--artifact-dir", "found", *options,
    )  # fmt: skip
    found = json.loads(Path("found/profile_export_aiperf.json").read_text(encoding="utf-8"))
    counts = [found[name]["avg"] for name in ("completed_request_count", "total_output_tokens", "request_error_rate")]
    expect(counts == [6, 6 * OUTPUT_TOKENS, 0], counts)
    scraped = json.loads(Path("found/server_metrics_export.json").read_text(encoding="utf-8"))["summary"][
        "endpoints_successful"
    ]
    expect(scraped == [f"{PLAIN_URL}/metrics"], scraped)


@check
def min_tokens() -> None:
    profile("--extra-inputs", f"min_tokens:{OUTPUT_TOKENS}")


@check
def ignore_eos() -> None:
    profile("--extra-inputs", "ignore_eos:true")


if __name__ == "__main__":
    main()
