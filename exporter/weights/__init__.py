"""How a model's weights are quantized: which integers and scales each becomes. Nothing here says how a graph computes.

`recipe.py` describes one weight, and its number format; `choose.py` chooses for a whole model.
`collect_activations.py` reads what layers get from the calibration texts (`texts.py`, `fidelity.py`). `rotation.py`,
`turning.py` and `smoothing.py` change the model so that its activations have fewer outliers while its logits stay the
same. `gptq.py` chooses integers; `mixing.py` the layers of an int4 model that are int8, by `sensitivity.py`.
`fake_quant.py` runs the quantized model in torch. Recipes are keyed by the names of the model's parameters.
"""
