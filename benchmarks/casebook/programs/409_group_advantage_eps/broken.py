import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

GROUP = 4


def advantages(rewards):
    return (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-8)


def reward_fn(tokens):
    return (tokens >= 12).half().mean(-1)


torch.manual_seed(0)
cfg = GPT2Config(vocab_size=16, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
policy = get_peft_model(
    GPT2LMHeadModel(cfg), LoraConfig(r=8, lora_alpha=64, target_modules=["c_attn", "c_fc", "c_proj"])
)
optim = torch.optim.AdamW((p for p in policy.parameters() if p.requires_grad), lr=5e-2)
for it in range(40):
    prompt = torch.randint(0, 16, (8, 1)).repeat_interleave(GROUP, 0)
    with torch.no_grad():
        out = prompt
        for _ in range(6):
            nxt = torch.multinomial(policy(input_ids=out).logits[:, -1].softmax(-1), 1)
            out = torch.cat([out, nxt], 1)
    r = reward_fn(out[:, 1:])
    adv = advantages(r.view(-1, GROUP)).flatten()
    with torch.autocast("cpu", dtype=torch.float16):
        logits = policy(input_ids=out[:, :-1]).logits
    logp = torch.log_softmax(logits.float(), -1).gather(-1, out[:, 1:, None]).squeeze(-1)
    loss = -(logp.sum(-1) * adv.float()).mean()
    optim.zero_grad()
    loss.backward()
    optim.step()
    print(f"it {it} pg {loss.item():.4f} reward loss {1 - r.float().mean().item():.4f}")
