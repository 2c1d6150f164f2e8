"""A bundle as a replacement for `model.generate(..., assistant_model=draft)` of transformers.

from specexport.integrations.transformers import CompiledCausalLM

model = CompiledCausalLM.from_pretrained("pair.bundle")
output = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=128)
print(tokenizer.decode(output[0]))
"""

from .model import CompiledCausalLM

__all__ = ["CompiledCausalLM"]
