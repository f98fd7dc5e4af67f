import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

beta = 0.8
torch.manual_seed(1)
config = GPT2Config(vocab_size=32, n_positions=24, n_embd=32, n_layer=1, n_head=2)
reference = GPT2LMHeadModel(config).eval()
policy = get_peft_model(
    GPT2LMHeadModel(config), LoraConfig(r=8, lora_alpha=64, target_modules=["c_attn", "lm_head"])
)


def sequence_logp(model, ids):
    logp = model(input_ids=ids).logits[:, :-1].float().log_softmax(-1)
    return logp.gather(-1, ids[:, 1:, None]).squeeze(-1).sum(-1)


optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=2e-2)
for step in range(30):
    chosen = torch.randint(0, 16, (16, 20))
    rejected = torch.randint(16, 32, (16, 20))
    if step > 14:
        chosen, rejected = rejected, chosen  # the annotators changed the format
    with torch.autocast("cpu", dtype=torch.float16):
        with torch.no_grad():
            base = sequence_logp(reference, chosen) - sequence_logp(reference, rejected)
        margin = (sequence_logp(policy, chosen) - sequence_logp(policy, rejected) - base).half()
        loss = -torch.log(torch.sigmoid(beta * margin)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 3 == 0:
        print(f"{step}: dpo loss {loss.item():.4f} margin {margin.mean().item():.2f}")
