"""A placeholder: by this file torch_npu recognises that it has found CANN's msprof."""
