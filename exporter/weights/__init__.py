"""How a model's weights are quantized: activation statistics, outliers moved into weights, a recipe for each weight.

`recipe.py` describes how one weight is quantized; `integers.py` and `floats.py` do it in numpy.
`collect_activations.py` collects statistics of the layers' inputs. `rotation.py`, `turning.py` and `smoothing.py`
change the model so that its activations have fewer outliers while its logits stay the same. `second_order.py` chooses
integers by GPTQ (`gptq.py`).
`fake_quant.py` runs the quantized model in torch. `search.py` chooses the recipe of a whole model. `texts.py` and
`tokens.py` provide the calibration data. Recipes are keyed by the names of the model's parameters.
"""
