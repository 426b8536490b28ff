"""Recording steps as CUDA or HIP graphs, and compiling them with inductor."""
