"""Linear attention: gated delta rules, their gates and convolutions (Qwen3-Next and Qwen3.5)."""
