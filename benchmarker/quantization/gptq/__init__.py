"""GPTQ through optimum and gptqmodel: options, quantizing, packing and kernels."""
