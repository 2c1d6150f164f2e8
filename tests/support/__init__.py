"""What tests share: tiny models, doubles of decoders and devices, recorded figures."""
