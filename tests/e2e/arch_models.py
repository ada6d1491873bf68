"""What archs.py runs: every mixture-of-experts architecture of the engine, and how its model with selective routing is made.

A recipe may hold: template (the model of upstream's test to start from; default NAME-moe), upstream (False: that test has no such
mixture-of-experts model), experts, top_k (values to run), type (of the experts' matrices), embeddings (rows to compare are
embeddings), lora (an adapter on experts is applied), speculative (llama-server's options: only that is run; head is the layer of the
model's own drafting head), and options of widen_model: arch, set, drop, add.
"""

GROUPS = {"set": ["ARCH.expert_group_count=u32:4", "ARCH.expert_group_used_count=u32:2"]}


def blocks(numbers, tensors):
    """"NAME=SHAPE" of every block."""
    return [f"blk.{n}.{tensor}" for n in numbers for tensor in tensors]


ROUTER = ["ffn_gate_inp.weight=256xE"]
EXPERTS = ["ffn_gate_exps.weight=256x384xE", "ffn_up_exps.weight=256x384xE", "ffn_down_exps.weight=384x256xE"]
SHARED = ["ffn_gate_shexp.weight=256x384", "ffn_up_shexp.weight=256x384", "ffn_down_shexp.weight=384x256"]
UNGATED = ["ffn_up_exps.weight=256x384xE", "ffn_down_exps.weight=384x256xE"]
BIAS = ["exp_probs_b.bias=E"]


def dense_ffn(numbers):
    return [rf"blk\.({'|'.join(map(str, numbers))})\.ffn_(gate|up|down)\."]


MTP = ["--spec-type", "draft-mtp", "--spec-draft-n-max", "3"]


def with_head(architecture, n_embd=256, layers=2, arrays=()):
    """A model of upstream's with one more layer, a copy of its last one, as the head that drafts. Arrays by layer get an entry more."""
    head = layers
    return {"upstream": False, "template": architecture + "-moe", "speculative": MTP, "head": str(head), "clone": [f"{head - 1}={head}"],
            "set": [f"ARCH.block_count=u32:{layers + 1}", "ARCH.nextn_predict_layers=u32:1", *(f"ARCH.{array}" for array in arrays)],
            "add": blocks((head,), [f"nextn.eh_proj.weight={2 * n_embd}x{n_embd}", f"nextn.enorm.weight={n_embd}",
                                    f"nextn.hnorm.weight={n_embd}", f"nextn.shared_head_norm.weight={n_embd}"])}


ARCHITECTURES = {
    # Those of upstream's own test.
    "afmoe": {},
    "arctic": {},
    "bailingmoe": {},
    "bailingmoe2": GROUPS,
    "bailingmoe3": {},
    "cohere2moe": {},
    "dbrx": {},
    "deepseek": {},
    "deepseek2": GROUPS,
    "deepseek32": GROUPS,
    "deepseek4": {},
    "dots1": GROUPS,
    "dots3note": {},
    "ernie4_5-moe": {},
    "exaone-moe": {},
    "glm-dsa": GROUPS,
    "glm4moe": GROUPS,
    "glm5-next": {},
    "gpt-oss": {},
    "granite": {"set": ["ARCH.residual_scale=f32:0.2"]},
    "granitemoe": {"set": ["ARCH.residual_scale=f32:0.2"]},
    "grok": {},
    "grovemoe": {},
    "hunyuan-moe": {},
    "hy_v3": {},
    "hy_v4": {},
    "k2-horizon": {},
    "kimi-k3": {},
    "kimi-linear": GROUPS,
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

    # What upstream's test leaves out, or cannot save, made from the formats' facts on the template of a relative.
    "step35": {"upstream": False, "arch": "step35", "template": "qwen3moe-moe",
               "set": ["ARCH.expert_shared_feed_forward_length=u32:384", "ARCH.attention.sliding_window=u32:16",
                       "ARCH.attention.sliding_window_pattern=bools:0,1", "ARCH.swiglu_clamp_exp=f32s:0,0.05",
                       "ARCH.swiglu_clamp_shexp=f32s:0,0.05", "ARCH.expert_weights_norm=bool:1", "ARCH.expert_weights_scale=f32:1.5"],
               "add": blocks((0, 1), SHARED + BIAS + ["attn_gate.weight=256x2"])},
    "nemotron_h_moe": {"upstream": False, "template": "nemotron_h_moe-dense", "drop": dense_ffn((2,)),
                       "set": ["ARCH.expert_feed_forward_length=u32:384", "ARCH.expert_shared_feed_forward_length=u32:384",
                               "ARCH.expert_shared_count=u32:1", "ARCH.expert_weights_norm=bool:1", "ARCH.expert_weights_scale=f32:2.5"],
                       "add": blocks((2,), ROUTER + BIAS + UNGATED + SHARED[1:])},
    "jamba": {"upstream": False, "template": "jamba-dense", "drop": dense_ffn((1,)), "add": blocks((1,), ROUTER + EXPERTS)},
    "granitehybrid": {"upstream": False, "template": "granitehybrid-dense", "drop": dense_ffn((0, 1)),
                      "set": ["ARCH.expert_shared_feed_forward_length=u32:384", "ARCH.residual_scale=f32:0.2"],
                      "add": blocks((0, 1), ROUTER + EXPERTS + SHARED)},
    "granite_swa": {"upstream": False, "template": "granite_swa-dense", "drop": dense_ffn((0, 1)),
                    "set": ["ARCH.expert_shared_feed_forward_length=u32:384", "ARCH.residual_scale=f32:0.2"],
                    "add": blocks((0, 1), ROUTER + EXPERTS + ["ffn_up_shexp.weight=256x768", "ffn_down_shexp.weight=384x256"])},
    "nemotron_h_moe-latent": {
        "upstream": False, "template": "nemotron_h_moe-dense", "drop": dense_ffn((2,)),
        "set": ["ARCH.expert_feed_forward_length=u32:384", "ARCH.expert_shared_feed_forward_length=u32:384", "ARCH.moe_latent_size=u32:128",
                "ARCH.expert_shared_count=u32:1", "ARCH.expert_weights_norm=bool:1", "ARCH.expert_weights_scale=f32:2.5"],
        "add": blocks((2,), ROUTER + BIAS + SHARED[1:] + ["ffn_latent_down.weight=256x128", "ffn_latent_up.weight=128x256",
                                                         "ffn_up_exps.weight=128x384xE", "ffn_down_exps.weight=384x128xE"])},
    "gemma4": {"upstream": False, "arch": "gemma4", "template": "gemma3-dense", "drop": [r"\.bias"],
               "set": ["ARCH.expert_feed_forward_length=u32:384", "ARCH.embedding_length_per_layer_input=u32:0",
                       "ARCH.attention.shared_kv_layers=u32:0", "ARCH.attention.sliding_window_pattern=bools:1,0"],
               "add": ["rope_freqs.weight=64"] + blocks((0, 1), ROUTER + [
                   "ffn_gate_inp.scale=256", "pre_ffw_norm_2.weight=256", "post_ffw_norm_1.weight=256", "post_ffw_norm_2.weight=256",
                   "ffn_gate_up_exps.weight=256x768xE", "ffn_down_exps.weight=384x256xE", "ffn_down_exps.scale=E"])},
    "nomic-bert-moe": {"upstream": False, "arch": "nomic-bert-moe", "template": "qwen3moe-moe", "embeddings": True,
                       "drop": [r"^blk\.", r"^output"],
                       "set": ["ARCH.attention.causal=bool:0", "ARCH.attention.layer_norm_epsilon=f32:1e-5", "ARCH.moe_every_n_layers=u32:2",
                               "ARCH.pooling_type=u32:0", "tokenizer.ggml.token_type_count=u32:1"],
                       "add": ["token_types.weight=256x1", "token_embd_norm.weight=256", "token_embd_norm.bias=256"] + blocks((0, 1), [
                           "attn_qkv.weight=256x768", "attn_qkv.bias=768", "attn_output.weight=256x256", "attn_output.bias=256",
                           "attn_output_norm.weight=256", "attn_output_norm.bias=256", "layer_output_norm.weight=256",
                           "layer_output_norm.bias=256"]) + blocks((0,), [
                               "ffn_up.weight=256x384", "ffn_up.bias=384", "ffn_down.weight=384x256", "ffn_down.bias=256"]) + blocks(
                                   (1,), ROUTER + UNGATED)},
    "deepseek2-ocr": {"upstream": False, "arch": "deepseek2-ocr", "template": "deepseek-moe", "drop": [r"attn_[qkv]\.bias"]},
    "qwen3moe-lora": {"upstream": False, "template": "qwen3moe-moe", "lora": [
        f"blk.{layer}.ffn_{part}_exps.weight.lora_{side}" for layer in (0, 1) for part, side in (
            ("gate", "a=256x4xE"), ("gate", "b=4x384xE"), ("up", "a=256x4xE"), ("up", "b=4x384xE"), ("down", "a=384x4xE"), ("down", "b=4x256xE"))]},
    "step35-mtp": {
        "upstream": False, "arch": "step35", "template": "qwen3moe-moe", "speculative": MTP,
        "head": "2",
        "set": ["ARCH.block_count=u32:3", "ARCH.nextn_predict_layers=u32:1", "ARCH.expert_shared_feed_forward_length=u32:384",
                "ARCH.attention.sliding_window=u32:16", "ARCH.attention.sliding_window_pattern=bools:0,1,0",
                "ARCH.swiglu_clamp_exp=f32s:0,0,0", "ARCH.swiglu_clamp_shexp=f32s:0,0,0"],
        "add": blocks((0, 1, 2), SHARED + BIAS) + blocks((2,), ROUTER + EXPERTS + [
            "attn_norm.weight=256", "attn_q.weight=256x256", "attn_k.weight=256x256", "attn_v.weight=256x256", "attn_output.weight=256x256",
            "attn_q_norm.weight=128", "attn_k_norm.weight=128", "ffn_norm.weight=256", "nextn.eh_proj.weight=512x256",
            "nextn.enorm.weight=256", "nextn.hnorm.weight=256", "nextn.shared_head_norm.weight=256"])},
    "qwen35moe-mtp": with_head("qwen35moe", arrays=["attention.recurrent_layers=bools:1,0,0"]),
    "qwen3next-mtp": with_head("qwen3next", arrays=["attention.recurrent_layers=bools:1,0,0"]),
    "deepseek2-mtp": with_head("deepseek2", 128),
    "deepseek32-mtp": with_head("deepseek32", 128),
    "glm-dsa-mtp": with_head("glm-dsa", 128),
    "hy_v3-mtp": with_head("hy_v3"),
    "cohere2moe-mtp": with_head("cohere2moe", arrays=["attention.sliding_window_pattern=bools:0,1,0"]),
    "qwen3moe-draft": {"upstream": False, "template": "qwen3moe-moe",
                       "speculative": ["-md", "DRAFT", "--spec-type", "draft-simple", "--spec-draft-n-max", "3"]},
}

# Each is a name or several, and why.
UNCOVERED = {
    "dflash": "A DFlash draft has no experts, except as a draft for DeepSeek-V4, whose hidden states it needs; that pair is not built here. "
              "The experts of any draft model are computed by the base, as `qwen3moe-draft` shows.",
    "head of glm4moe": "Plain llama-server aborts on the model made here (sections of its rotary embedding).",
    "head of mimo2": "Has no experts: it asks for dense feed-forward matrices.",
    "graniteswitch": "Has no routed experts; its switched adapters are computed by the base.",
    "heads of bailingmoe3, deepseek4, glm5-next, nemotron_h_moe, qwen4exp": "They are no copy of a layer of upstream's model, from which heads are made here.",
    "bert, nomic-bert, jina-bert-v2": "No experts in these formats; nomic-bert-moe, which has them, is in the table.",
    "refact": "Upstream's model has experts, but its graph does not use them.",
    "ernie4_5, paddleocr": "Upstream's test calls its models mixture-of-experts, but they have no stacked expert tensor.",
    "llama-embed": "Skipped by upstream's own test, and not saved by it.",
    "deepseek4 with images": "Experts for images (`exp_probs_b_vl`) are chosen only where a picture is in the prompt.",
    "diffusion-gemma, gemma4-assistant": "Not built by upstream's test, and no model of theirs is made here.",
    "graphics devices as base": "None here; everything ran on the CPU.",
}
