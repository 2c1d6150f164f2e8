"""`schemathesis`: requests generated from /openapi.json. No answer is a 5xx, or other than its schema says."""

from __future__ import annotations

from harness import PLAIN_URL, check, command, main

CHECKS = "not_a_server_error,response_schema_conformance,status_code_conformance,content_type_conformance"


@check
def generated_requests() -> None:
    command(
        "schemathesis", "run", f"{PLAIN_URL}/openapi.json", "--max-examples", "30", "--seed", "1", "--no-color",
        "--phases", "fuzzing", "--checks", CHECKS, "--request-timeout", "60", "--warnings", "off",
    )  # fmt: skip


if __name__ == "__main__":
    main()
