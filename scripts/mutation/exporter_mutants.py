"""Faults in tracing, in the passes over graphs, and in the maps between vocabularies."""

from __future__ import annotations

from .mutant import Mutant

ATTENTION, LINT, LENGTHS = (
    "exporter/tracing/attention.py",
    "exporter/passes/lint.py",
    "exporter/passes/cuda_graphs.py",
)
ROWS, EXACT = "exporter/quantize/for_onnxruntime.py", "exporter/quantize/batch_invariant.py"
NBITS, QDQ, APPLY = (f"exporter/quantize/{name}.py" for name in ("for_onnxruntime", "for_tensorrt", "apply"))
PACKED, PARTED = "exporter/quantize/for_cuda.py", "exporter/quantize/rotary.py"
OF_PACKED = ("tests/exporter/quantize/test_for_cuda.py",)
NBITS_FOR_CUDA = "exporter/quantize/nbits_for_cuda.py"
OF_NBITS_FOR_CUDA = ("tests/exporter/quantize/test_nbits_for_cuda.py",)
VOCABULARY = "exporter/checkpoints/shared_vocabulary.py"
LEFT_OUT, POSITIONS, GENERATION = (
    f"exporter/checkpoints/{name}.py" for name in ("left_out", "config", "generation_config")
)
LEFT_OUT_TESTS, POSITIONS_TESTS, GENERATION_TESTS = (
    (f"tests/exporter/checkpoints/test_{name}.py",) for name in ("left_out", "config", "generation_config")
)
KEYS, ROTARY, TOKENIZER = (f"exporter/checkpoints/gguf_{name}.py" for name in ("keys", "rotary", "tokenizer"))
GGUF = "exporter/checkpoints/gguf.py"
OF_KEYS = ("tests/exporter/checkpoints/test_gguf_keys.py",)
OF_TOKENIZERS = ("tests/exporter/checkpoints/test_gguf_tokenizer.py",)
FAMILIES = ("tests/exporter/test_families.py",)
QUANTIZE = ("tests/exporter/quantize",)

EXPORTER = (
    Mutant(
        "caches are rounded where ONNX Runtime's own operators are to run too",
        "exporter/options.py",
        ' and self.numbers.precision == "fp32" and not self.portable',
        ' and self.numbers.precision == "fp32"',
        ("tests/exporter/test_precision.py", "tests/runtime/test_session_trees.py"),
    ),
    Mutant(
        "a draft for TensorRT before 10.15 is in int4 unasked",
        "exporter/precision.py",
        'dialect_for("tensorrt", version) == "rows"',
        'dialect_for("tensorrt", version) == ""',
        ("tests/exporter/test_precision.py",),
    ),
    Mutant(
        "a window of one row more",
        ATTENTION,
        "return mask & (columns > rows - window) if window else mask",
        "return mask & (columns >= rows - window) if window else mask",
        FAMILIES,
    ),
    Mutant(
        "a row sees the one behind it",
        ATTENTION,
        "mask = columns <= rows",
        "mask = columns <= rows + 1",
        FAMILIES,
    ),
    Mutant(
        "attention without the softcap",
        ATTENTION,
        'attributes["softcap"] = layer.softcap',
        'attributes["softcap"] = 0.0',
        FAMILIES,
    ),
    Mutant(
        "layers that share rows read those of the last layer",
        ATTENTION,
        "layer = [layer, *self.brought, *same][-1]",
        "layer = [layer, *self.brought][-1]",
        ("tests/exporter/test_attention_variants.py",),
    ),
    Mutant(
        "what shares a layer's keys alone shares its rows",
        ATTENTION,
        "if pair[0] is key and pair[1] is value]",
        "if pair[0] is key]",
        ("tests/exporter/test_attention_variants.py",),
    ),
    Mutant(
        "lint passes causal attention",
        LINT,
        'if node.attributes.get_int("is_causal", 0):',
        'if node.attributes.get_int("is_causal", 0) > 1:',
        ("tests/exporter/passes/test_lint.py",),
    ),
    Mutant(
        "lint passes a cache that is another's",
        LINT,
        'return written and names[1] == names[0].replace("past", "present", 1)',
        "return written",
        ("tests/exporter/passes/test_lint.py",),
    ),
    Mutant(
        "lint passes new operators for old versions",
        LINT,
        "if node.domain or node.op_type not in OLD_OPERATORS:",
        "if node.domain:",
        ("tests/exporter/passes/test_lint.py",),
    ),
    Mutant(
        "lengths of the first new token",
        LENGTHS,
        'constant("last", [-1])',
        'constant("last", [0])',
        ("tests/exporter/passes/test_cuda_graphs.py",),
    ),
    Mutant(
        "rows scaled by their largest value, not magnitude",
        ROWS,
        'tape.op("Abs", [values])',
        'tape.op("Relu", [values])',
        QUANTIZE,
    ),
    Mutant(
        "a row alone is multiplied alone",
        EXACT,
        'constant(graph, "exact.one", np.array([1]))',
        'constant(graph, "exact.one", np.array([2]))',
        ("tests/exporter/quantize/test_apply.py",),
    ),
    Mutant(
        "int4 with the halves of a byte swapped",
        NBITS,
        "shifted[:, ::2] | (shifted[:, 1::2] << 4)",
        "shifted[:, 1::2] | (shifted[:, ::2] << 4)",
        QUANTIZE,
    ),
    Mutant(
        "inputs of other scales share their Q/DQ",
        QDQ,
        "key = (linear.input, weight_recipe.format, weight_recipe.input_scale)",
        "key = (linear.input, weight_recipe.format, 0.0)",
        QUANTIZE,
    ),
    Mutant(
        "a weight that stays as it was goes unnoticed",
        APPLY,
        'weight_recipe.format != "float" and value.dtype in FLOATS',
        "False",
        QUANTIZE,
    ),
    Mutant(
        "a mixture's experts on a GPU need no more of the disk than its other weights",
        "exporter/memory.py",
        ' if family == "onnxruntime-cuda" or not stackable',
        " if not stackable",
        ("tests/exporter/test_memory.py",),
    ),
    Mutant(
        "products in fp16 may add up in fp16",
        "exporter/export_model.py",
        "accumulate_in_fp32(graph)",
        "pass",
        ("tests/exporter/test_export_model.py",),
    ),
    Mutant(
        "products of restored integers are no longer recognized by TensorRT",
        "exporter/passes/accumulate.py",
        "and not any(map(_is_dequantized, node.inputs))",
        "",
        ("tests/exporter/passes/test_accumulate.py",),
    ),
    Mutant(
        "weights without a place are left out",
        LEFT_OUT,
        "            wrong.append(name)",
        "            groups[name] += 1",
        LEFT_OUT_TESTS,
    ),
    Mutant(
        "a part of a layer is left out, for its name",
        LEFT_OUT,
        "    return None if within else match",
        "    return match",
        LEFT_OUT_TESTS,
    ),
    Mutant(
        "biases called as old causal masks are left out",
        LEFT_OUT,
        "if same and len(file.get_slice(key).get_shape()) != 1:",
        "if same:",
        LEFT_OUT_TESTS,
    ),
    Mutant(
        "two tables where the config says one",
        LEFT_OUT,
        "    _check_tied(source, model)\n",
        "",
        LEFT_OUT_TESTS,
    ),
    Mutant(
        "a GGUF file is one by its name alone",
        "exporter/checkpoints/source.py",
        "_magic(Path(source).expanduser()) == MAGIC",
        "False",
        ("tests/exporter/checkpoints/test_gguf.py",),
    ),
    Mutant(
        "shards without an index are found when they are loaded",
        "exporter/checkpoints/source.py",
        "    find_weights(source, folder)\n",
        "",
        ("tests/exporter/checkpoints/test_source.py",),
    ),
    Mutant(
        "positions stretched from a length that has the factor",
        POSITIONS,
        '(rope.get("original_max_position_embeddings") or length)',
        "length",
        POSITIONS_TESTS,
    ),
    Mutant(
        "positions of the kind of layer that reaches furthest",
        POSITIONS,
        "min((_reach(rope, length) for rope in rotary(text)), default=length)",
        "max((_reach(rope, length) for rope in rotary(text)), default=length)",
        POSITIONS_TESTS,
    ),
    Mutant(
        "a token that ends the text is a bad word",
        GENERATION,
        "word not in alone",
        "word",
        GENERATION_TESTS,
    ),
    Mutant(
        "settings in config.json are not looked for",
        GENERATION,
        "name in known",
        "name == 'eos_token_id'",
        GENERATION_TESTS,
    ),
    Mutant(
        "a GGUF file's rotary base is dropped",
        ROTARY,
        'every["rope_theta"] = said.get("rope.freq_base", BASE)',
        'every.setdefault("rope_theta", BASE)',
        OF_KEYS,
    ),
    Mutant(
        "all of a key is rotated, whatever a GGUF file says",
        ROTARY,
        'rope["partial_rotary_factor"] = count / length',
        'rope["partial_rotary_factor"] = 1.0',
        OF_KEYS,
    ),
    Mutant(
        "a GGUF file's scaling without a type is dropped",
        ROTARY,
        'kind = said.get("rope.scaling.type", "linear")',
        'kind = said.get("rope.scaling.type", "none")',
        OF_KEYS,
    ),
    Mutant(
        "a key of a GGUF header that nobody knows changes nothing",
        KEYS,
        """    if key not in TAKEN_FOR_GRANTED:
        return False
""",
        """    if key not in TAKEN_FOR_GRANTED:
        return True
""",
        OF_KEYS,
    ),
    Mutant(
        "the loader's value counts, not the GGUF header's",
        KEYS,
        "            setattr(config, name, value)\n",
        "            return True\n",
        OF_KEYS,
    ),
    Mutant(
        "the window of a config's class, where a GGUF file has none",
        KEYS,
        'said.get("attention.sliding_window", 4096 if architecture == "gemma2" else 0)',
        'said.get("attention.sliding_window", config.sliding_window)',
        OF_KEYS,
    ),
    Mutant(
        "key heads of a config's class, where a GGUF file does not say",
        KEYS,
        'usual["attention.head_count_kv"] = stated["attention.head_count"]',
        "pass",
        OF_KEYS,
    ),
    Mutant(
        "a GGUF file's settings of a tokenizer that nobody reads",
        KEYS,
        "not _truth(value)",
        "key",
        OF_KEYS,
    ),
    Mutant(
        "a GGUF header without the epsilon of its norms",
        KEYS,
        "if not any(every.get(key) for key in keys):",
        "if len(keys) == 1 and not any(every.get(key) for key in keys):",
        OF_KEYS,
    ),
    Mutant(
        "a width of heads that the config's class does not declare is refused",
        KEYS,
        'undeclared = ("head_dim",) if key',
        "undeclared = () if key",
        OF_KEYS,
    ),
    Mutant(
        "a GGUF file's weights of another shape than its header says",
        GGUF,
        '        check_shapes(self.source, info, "its header")\n',
        "",
        OF_KEYS,
    ),
    Mutant(
        "a header that does not fit transformers' config is a traceback",
        GGUF,
        "except Exception as error:  # values of another type",
        "except ValueError as error:  # values of another type",
        OF_KEYS,
    ),
    Mutant(
        "digits are split as GPT-2 does",
        TOKENIZER,
        "(_DIGIT, _GPT2)",
        "(_GPT2, _GPT2)",
        OF_TOKENIZERS,
    ),
    Mutant(
        "tokens that are words are merged from their parts",
        TOKENIZER,
        "split.whole_words",
        "False",
        OF_TOKENIZERS,
    ),
    Mutant(
        "user-defined tokens are cut",
        TOKENIZER,
        "kind in (UNKNOWN, CONTROL, USER_DEFINED)",
        "kind in (UNKNOWN, CONTROL)",
        OF_TOKENIZERS,
    ),
    Mutant(
        "BOS only where a GGUF file asks for it",
        TOKENIZER,
        'values.get("tokenizer.ggml.add_bos_token", add_bos)',
        'values.get("tokenizer.ggml.add_bos_token", False)',
        OF_TOKENIZERS,
    ),
    Mutant(
        "SentencePiece without a space in front",
        TOKENIZER,
        "before = [normalizers.Prepend(SPACE)] if prefix else []",
        "before = [normalizers.Prepend(SPACE)] if not prefix else []",
        OF_TOKENIZERS,
    ),
    Mutant(
        "one id of the draft for two of the target",
        VOCABULARY,
        "theirs = (token for token in draft.by_bytes.get(value, ()) if token not in taken)",
        "theirs = iter(draft.by_bytes.get(value, ()))",
        ("tests/exporter/checkpoints/test_shared_vocabulary.py",),
    ),
    Mutant(
        "ids that the draft's model lacks are shared",
        VOCABULARY,
        "ours < target_size and theirs < draft_size",
        "ours < target_size",
        ("tests/exporter/checkpoints/test_shared_vocabulary.py",),
    ),
    Mutant(
        "special tokens are text",
        VOCABULARY,
        "written[token] and token not in self.special",
        "written[token]",
        ("tests/exporter/checkpoints/test_shared_vocabulary.py",),
    ),
    Mutant(
        "queries, keys and values are joined in another order",
        PACKED,
        "[_values(linear) for linear in group]",
        "[_values(linear) for linear in reversed(group)]",
        OF_PACKED,
    ),
    Mutant(
        "keys that another node reads are joined with queries",
        PARTED,
        "[[part for part, _ in parts] for node, _, parts in _apart(model) if _only_used(parts, node)]",
        "[[part for part, _ in parts] for node, _, parts in _apart(model)]",
        OF_PACKED,
    ),
    Mutant(
        "products are joined although one adds a bias of its own",
        PACKED,
        "linear.bias is None and len(linear.weight.uses()) == 1",
        "len(linear.weight.uses()) == 1",
        OF_PACKED,
    ),
    Mutant(
        "a weight that another product has is stored once more",
        PACKED,
        "linear.bias is None and len(linear.weight.uses()) == 1",
        "linear.bias is None",
        OF_PACKED,
    ),
    Mutant(
        "products of different values are joined",
        PACKED,
        "linear.input is first.input and linear.transposed and linear.weight.dtype == first.weight.dtype",
        "linear.transposed and linear.weight.dtype == first.weight.dtype",
        OF_PACKED,
    ),
    Mutant(
        "products whose weights are stored otherwise are joined",
        PACKED,
        "linear.input is first.input and linear.transposed and linear.weight.dtype == first.weight.dtype",
        "linear.input is first.input and linear.weight.dtype == first.weight.dtype",
        OF_PACKED,
    ),
    Mutant(
        "for CUDA, attention does not turn queries and keys by itself",
        PACKED,
        "absorb_rotary(model, capacity)",
        "pass",
        OF_PACKED,
    ),
    Mutant(
        "what the rotary embedding left keeps queries and keys apart",
        PACKED,
        "absorb_rotary(model, capacity)\nCLEAN_UP(model)",
        "absorb_rotary(model, capacity)",
        OF_PACKED,
    ),
    Mutant(
        "for CUDA, int8 weights are a step too high",
        NBITS_FOR_CUDA,
        "MIDDLE = 128",
        "MIDDLE = 127",
        OF_NBITS_FOR_CUDA,
    ),
    Mutant(
        "for CUDA, what attention takes whole stays three products",
        NBITS_FOR_CUDA,
        "[group] if together else",
        "[group] if not together else",
        OF_NBITS_FOR_CUDA,
    ),
    Mutant(
        "for CUDA, a table and the layer that shares it are stored apart",
        NBITS_FOR_CUDA,
        'rows = constant(graph, f"{name}.{form}", _in_bits(values, form))',
        'rows = constant(graph, f"{name}.rows.{form}", _in_bits(values, form))',
        OF_NBITS_FOR_CUDA,
    ),
    Mutant(
        "for CUDA, int8 rounds activations by one scale for all",
        "exporter/weights/choose.py",
        'weight_only=format == "int8"',
        "weight_only=False",
        ("tests/exporter/weights/test_choose.py",),
    ),
    Mutant(
        "an engine beside one that runs the kernels gets their graphs alone",
        "exporter/precision.py",
        "not (kernels_do and ENGINES[engine].kernels)",
        "not kernels_do",
        ("tests/exporter/test_precision.py",),
    ),
    Mutant(
        "chunks are padded for every engine but onnxruntime",
        "exporter/options.py",
        "any(info_of(engine).on_gpu for engine in self.engines)",
        'self.engines != ("onnxruntime",)',
        ("tests/exporter/test_precision.py",),
    ),
    Mutant(
        "graphs of one family go to engines of another",
        "exporter/precision.py",
        "if its != family",
        "if not its",
        ("tests/exporter/test_precision.py",),
    ),
    Mutant(
        "drafts run the kernels of several tokens",
        "engines/onnxruntime/cuda.py",
        'role == "target" and "draft" in manifest.pair',
        '"draft" in manifest.pair',
        ("tests/engines/onnxruntime/test_cuda.py",),
    ),
    Mutant(
        "quantized bundles for GPUs keep a row free",
        "bundle/manifest.py",
        ' and self.contract.precision == "fp32"',
        "",
        ("tests/test_bundle.py",),
    ),
)
