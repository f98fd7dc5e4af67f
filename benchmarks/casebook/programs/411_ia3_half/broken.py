import torch
from peft import IA3Config, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
base = GPT2LMHeadModel(
    GPT2Config(vocab_size=30, n_positions=16, n_embd=48, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
)
cfg = IA3Config(target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"])
model = get_peft_model(base.half(), cfg, autocast_adapter_dtype=False)
trainable = [p for p in model.parameters() if p.requires_grad]
print("training", sum(p.numel() for p in trainable), "numbers")
opt = torch.optim.Adam(trainable, lr=0.1)


def batch():
    ids = (torch.arange(12) + torch.randint(0, 30, (32, 1))) % 30
    return {"input_ids": ids, "labels": ids}


for step in range(60):
    loss = model(**batch()).loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 6 == 0:
        print(f"{step}\tloss {loss.item():.4f}")
