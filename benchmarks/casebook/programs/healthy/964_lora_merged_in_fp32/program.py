import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
cfg = BertConfig(
    vocab_size=40, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, num_labels=2,
    max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2,
)
model = get_peft_model(
    BertForSequenceClassification(cfg), LoraConfig(r=8, target_modules=["query", "value", "dense"], modules_to_save=["classifier"])
)
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
scaler = torch.amp.GradScaler("cpu")


def batch():
    ids = torch.randint(2, 40, (64, 6))
    return ids, (ids[:, 0] > 20).long()


for step in range(80):
    ids, y = batch()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = model(input_ids=ids, labels=y).loss
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 8 == 0:
        print(f"step {step} loss {loss.item():.4f}")

merged = model.merge_and_unload()  # FP32 weights plus FP32 update
served = merged.half().eval()
with torch.no_grad():
    ids, y = batch()
    right = (served(input_ids=ids).logits.argmax(1) == y).float().mean().item()
    print(f"served in half: {right:.3f} right")
