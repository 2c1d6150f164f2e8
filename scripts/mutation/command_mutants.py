"""Faults in the command line and in the integrations."""

from __future__ import annotations

from .mutant import Mutant

CLI, OF_CLI, OF_BENCH = "cli/", ("tests/test_cli.py",), ("tests/test_cli_bench.py",)
OF_GENERATING = ("tests/test_cli_generate.py",)
CHAT, OPERATION = ("tests/test_cli_chat.py",), ("tests/serve/test_operation.py",)
SETTINGS = ("tests/serve/test_settings.py",)
RAY, OF_RAY = "integrations/ray/", ("tests/integrations/test_ray.py",)
TRITON, OF_TRITON = "integrations/triton/", ("tests/integrations/test_triton_models.py",)
REPOSITORY = ("tests/integrations/test_triton_repository.py",)
GENERATE, OF_GENERATE = "integrations/transformers/model.py", ("tests/integrations/test_transformers.py",)

COMMANDS = (
    Mutant(
        "different outputs are a success of bench",
        f"{CLI}bench.py",
        "if not result.passed:",
        "if False:",
        OF_BENCH,
        "bench",
    ),
    Mutant(
        "a failed proof is a success of verify",
        "cli/bundle.py",
        "if not result.passed:",
        "if False:",
        OF_CLI,
        "verify",
    ),
    Mutant(
        "verify follows the policy",
        "cli/bundle.py",
        "load(bundle, **where, policy=False)",
        "load(bundle, **where)",
        OF_CLI,
    ),
    Mutant(
        "bench runs every route",
        f"{CLI}bench.py",
        "choose(requests_of(session, read, chosen.max_new_tokens, skip_invalid), routes, limit)",
        "choose(requests_of(session, read, chosen.max_new_tokens, skip_invalid), (), limit)",
        OF_BENCH,
    ),
    Mutant(
        "bench predicts by costs of another host",
        "calibration/bench/predict.py",
        "{name: one for name, one in known.items() if not stale(one, engine.name, session.threads, engine.device)}",
        "known",
        OF_BENCH,
    ),
    Mutant("a finished benchmark leaves its journal", f"{CLI}bench.py", "kept.remove()", "kept.close()", OF_BENCH),
    Mutant(
        "an interrupt is a failure like any other",
        f"{CLI}group.py",
        "raise SystemExit(130) from None",
        "raise SystemExit(1) from None",
        OF_CLI,
    ),
    Mutant(
        "every host is busy",
        "cli/progress.py",
        "load > cpus + SPARE",
        "load > SPARE",
        ("tests/test_cli_progress.py",),
    ),
    Mutant(
        "a fixed policy is not asked for",
        f"{CLI}calibrate.py",
        '"fixed" if fixed else "adaptive"',
        '"adaptive"',
        ("tests/test_cli_calibrate.py",),
    ),
    Mutant(
        "a calibration that was interrupted is a success",
        f"{CLI}calibrate.py",
        "SystemExit(130)",
        "SystemExit(0)",
        ("tests/test_cli_calibrate.py",),
    ),
    Mutant(
        "an answer that was stopped is a success",
        f"{CLI}generate.py",
        'if finish_reason == "cancelled":',
        "if False:",
        OF_GENERATING,
    ),
    Mutant(
        "a prediction is not passed on",
        f"{CLI}generate.py",
        "SamplingParameters(prediction=None if prediction is None else _text(prediction), **options)",
        "SamplingParameters(**options)",
        OF_GENERATING,
    ),
    Mutant(
        "a template is not passed on",
        f"{CLI}generate.py",
        "load(bundle, chat_template=chat_template, **where)",
        "load(bundle, **where)",
        CHAT,
    ),
    Mutant("half a turn is left out of a long conversation", "cli/chat.py", "messages[2:]", "messages[1:]", CHAT),
    Mutant(
        "a long conversation leaves no room for an answer",
        "cli/chat.py",
        "self._length(messages) + room > capacity",
        "self._length(messages) > capacity",
        CHAT,
    ),
    Mutant(
        "a refused line stays in the conversation",
        "cli/chat.py",
        '[*self.messages, {"role": "user", "content": line}]',
        'self.messages.append({"role": "user", "content": line}) or [*self.messages]',
        CHAT,
    ),
    Mutant(
        "a cache of MiB has as many KiB",
        f"{CLI}serve.py",
        "prompt_cache_mib << 20",
        "prompt_cache_mib << 10",
        SETTINGS,
    ),
    Mutant("the first request waits for the engine", f"{CLI}serve.py", "session.prepare()", "None", OPERATION),
    Mutant(
        "a server that lost answers ends as a success",
        f"{CLI}serve.py",
        "0 if listener.clean else 1",
        "0",
        ("tests/serve/test_shutdown.py",),
    ),
    Mutant(
        "a server listens beyond this machine without a key",
        f"{CLI}serve.py",
        "check_listening(listening.host, settings, no_auth)",
        "None",
        OPERATION,
    ),
    Mutant(
        "a timeout that is not a number is taken",
        f"{CLI}serve.py",
        "if not found <= checks.LONGEST_TIME:",
        "if found > checks.LONGEST_TIME:",
        SETTINGS,
    ),
    Mutant(
        "the access log cannot be turned off",
        f"{CLI}serve.py",
        '{"is_flag": True, "callback": negated if default else None}',
        '{"is_flag": True}',
        OPERATION,
    ),
    Mutant("a token's bias is given twice", "cli/options.py", "if number in biases:", "if False:", OF_CLI),
    Mutant(
        "a wrong option ends as any other error",
        f"{CLI}group.py",
        "exit_code = 2",
        "exit_code = 1",
        OF_CLI,
    ),
    Mutant(
        "messages name parameters, not options",
        f"{CLI}group.py",
        "    for option in options:\n",
        "    for option in ():\n",
        OF_CLI,
    ),
    Mutant(
        "a held-out prompt is trained on",
        "exporter/tuning/options.py",
        "[request for request in by_route if request not in judging]",
        "by_route",
        ("tests/exporter/tuning/test_answers.py",),
    ),
    Mutant(
        "a draft that is no better is written",
        "exporter/tuning/tune.py",
        "force or overall.gain.low > 0",
        "force or overall.gain.low >= 0",
        ("tests/exporter/tuning/test_tune.py",),
    ),
    Mutant(
        "tokens outside of the likeliest have no mass",
        "exporter/tuning/judge.py",
        "others * (rest.clamp_min(-50) - left.log())",
        "0.0",
        ("tests/exporter/tuning/test_judge.py",),
    ),
    Mutant(
        "no stop string is none at all, not the bundle's",
        "cli/options.py",
        "values or None",
        "values",
        OF_GENERATING,
    ),
    Mutant(
        "lines that are no prompts are left out in silence",
        "cli/progress.py",
        "(*broken, *refused)",
        "refused",
        OF_BENCH,
    ),
    Mutant("a bundle on the hub is not inspected", "cli/bundle.py", "local_bundle(bundle)", "bundle", OF_CLI),
    Mutant(
        "a package of the next major version will do",
        "cli/doctor.py",
        "installed < version_numbers(ceiling)",
        "installed <= version_numbers(ceiling)",
        ("tests/test_cli_build_host.py",),
    ),
    Mutant(
        "threads are not passed on",
        f"{CLI}options.py",
        '{"engine": engine, "threads": threads, "device": device}',
        '{"engine": engine, "device": device}',
        SETTINGS,
    ),
    Mutant(
        "no replica is a number of replicas",
        f"{RAY}config.py",
        "if getattr(self, name) < 1:",
        "if getattr(self, name) < 0:",
        OF_RAY,
    ),
    Mutant(
        "a replica finds out that its settings are wrong", f"{RAY}config.py", 'config.settings("check")', "None", OF_RAY
    ),
    Mutant(
        "Ray reserves one core for any number of threads",
        f"{RAY}application.py",
        "config.threads",
        "1",
        OF_RAY,
        "_options",
    ),
    Mutant("Ray's queue has no bound", f"{RAY}application.py", "config.max_queued_requests", "-1", OF_RAY),
    Mutant("every replica loads the first bundle", f"{RAY}config.py", "rank % len(self.paths)", "0", OF_RAY),
    Mutant(
        "a file of keys is not read",
        f"{RAY}config.py",
        'keys_of_host(text, f"api_key_file {self.api_key_file}")',
        "keys_of_host()",
        OF_RAY,
        "Config.keys",
    ),
    Mutant(
        "a lost engine is healthy", "integrations/ray/application.py", "if trouble is not None:", "if False:", OF_RAY
    ),
    Mutant(
        "a replica's cache has bytes for MiB",
        "integrations/ray/application.py",
        "config.prompt_cache_mib << 20",
        "config.prompt_cache_mib",
        OF_RAY,
    ),
    Mutant(
        "Ray's counters count again what they counted",
        "integrations/ray/application.py",
        "self._counted[key] = sample.value",
        "pass",
        OF_RAY,
    ),
    Mutant(
        "Triton keeps requests for ever",
        f"{TRITON}streams.py",
        "sender.send(last, flags=self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)",
        "sender.send(last)",
        OF_TRITON,
    ),
    Mutant(
        "a wrong request is the server's fault", f"{TRITON}streams.py", "codes.INVALID_ARG", "codes.INTERNAL", OF_TRITON
    ),
    Mutant(
        "an error of the model that streams is swallowed",
        "integrations/triton/models.py",
        "if one.has_error():",
        "if False:",
        OF_TRITON,
    ),
    Mutant(
        "every instance runs on the first GPU",
        f"{TRITON}streams.py",
        'int(args["model_instance_device_id"]) if on_gpu else None',
        "0 if on_gpu else None",
        REPOSITORY,
    ),
    Mutant(
        "an instance's cache has bytes for MiB", f"{TRITON}streams.py", "int(budget) << 20", "int(budget)", REPOSITORY
    ),
    Mutant(
        "two instances on one GPU",
        "integrations/triton/repository.py",
        "if len(set(self.gpus)) != len(self.gpus):",
        "if False:",
        REPOSITORY,
    ),
    Mutant(
        "a bundle for the CPU gets GPUs",
        "integrations/triton/repository.py",
        "any(one in ENGINES and ENGINES[one].on_gpu for one in candidates)",
        "any(one in ENGINES for one in candidates)",
        REPOSITORY,
    ),
    Mutant(
        "a hard link to another file system is a traceback",
        f"{TRITON}repository.py",
        "if error.errno != errno.EXDEV:",
        "if error.errno == errno.EXDEV:",
        REPOSITORY,
    ),
    Mutant(
        "transformers' default beats the caller's temperature",
        GENERATE,
        '{"temperature": 1.0, "top_k": TOP_K} | asked',
        'asked | {"temperature": 1.0, "top_k": TOP_K}',
        OF_GENERATE,
    ),
    Mutant(
        "padding is decoded as text",
        GENERATE,
        "if attention_mask is not None and not np.asarray(attention_mask).all():",
        "if False:",
        OF_GENERATE,
    ),
    Mutant("max_length does not count the prompt", GENERATE, "max_length - prompt_tokens", "max_length", OF_GENERATE),
    Mutant("greedy search samples at a temperature", GENERATE, "if not do_sample:", "if False:", OF_GENERATE),
    Mutant(
        "optimum's options are dropped",
        "integrations/optimum/register_specexport.py",
        "*asked.options",
        "*()",
        ("tests/integrations/test_optimum.py",),
    ),
)
