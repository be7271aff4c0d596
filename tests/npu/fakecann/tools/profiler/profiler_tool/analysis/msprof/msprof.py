"""Only has to lie here: by this file torch_npu sees that it has found CANN's msprof."""
