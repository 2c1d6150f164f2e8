"""How a model's weights are quantized: statistics of its activations, what is moved between them, and each weight's recipe.

`recipe.py` says what is done to one weight, `integers.py` and `floats.py` do it in numpy. `collect_activations.py`
reads the activations,
`smoothing.py` moves outliers from activations into weights without changing any fp32 answer, `fake_quant.py` is the
quantized model in torch, `search.py` chooses a recipe for a whole model, `texts.py` and `tokens.py` hold what is read
meanwhile. The recipe's keys are the names of the model's parameters.
"""
