"""Functions of the releases of torch_npu and vLLM-Ascend, from their wheels."""
