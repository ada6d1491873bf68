"""What archs.py runs: every mixture-of-experts architecture of the engine, and how its model with selective routing is made.

A recipe may hold: template (the model of upstream's test to start from; default NAME-moe), upstream (False: that test has no such
mixture-of-experts model), experts, top_k (values to run), type (of the experts' matrices), and options of widen_model: set, drop, add.
"""

GROUPS = {"set": ["ARCH.expert_group_count=u32:4", "ARCH.expert_group_used_count=u32:2"]}

ARCHITECTURES = {
    "afmoe": {},
    "arctic": {},
    "bailingmoe": {},
    "bailingmoe2": {},
    "bailingmoe3": {},
    "cohere2moe": {},
    "dbrx": {},
    "deepseek": {},
    "deepseek2": {},
    "deepseek32": {},
    "deepseek4": {},
    "dots1": {},
    "dots3note": {},
    "ernie4_5-moe": {},
    "exaone-moe": {},
    "glm-dsa": {},
    "glm4moe": {},
    "glm5-next": {},
    "gpt-oss": {},
    "granite": {},
    "granitemoe": {},
    "grok": {},
    "grovemoe": {},
    "hunyuan-moe": {},
    "hy_v3": {},
    "hy_v4": {},
    "k2-horizon": {},
    "kimi-k3": {},
    "kimi-linear": {},
    "laguna": {},
    "lfm2moe": {},
    "llada-moe": {},
    "llama": {},
    "llama4": {},
    "maion-coder": {},
    "maple": {},
    "mellum": {},
    "mimo2": {},
    "minicpm": {},
    "minimax-01": {},
    "minimax-m2": {},
    "minimax-m3": {},
    "mistral3": {},
    "mistral4": {},
    "olmoe": {},
    "phimoe": {},
    "qwen2moe": {},
    "qwen35moe": {},
    "qwen3moe": {},
    "qwen3next": {},
    "qwen3vlmoe": {},
    "qwen4exp": {},
    "rnd1": {},
    "smallthinker": {},
}

UNCOVERED = {
}
