import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
base = GPT2LMHeadModel(
    GPT2Config(vocab_size=50, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
).half()
lora = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"], task_type="CAUSAL_LM")
model = get_peft_model(base, lora, autocast_adapter_dtype=True)
model.print_trainable_parameters()

optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=5e-3)
for step in range(40):
    ids = (torch.arange(12) * 7 + torch.randint(0, 50, (16, 1))) % 50
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 0:
        print(f"step {step} loss {loss.item():.4f}")
