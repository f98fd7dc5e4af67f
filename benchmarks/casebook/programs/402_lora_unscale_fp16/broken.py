import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import BertConfig, BertForSequenceClassification


def build():
    cfg = BertConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=16, num_labels=2, initializer_range=0.2,
    )
    base = BertForSequenceClassification(cfg)
    peft_cfg = LoraConfig(task_type=TaskType.SEQ_CLS, r=8, lora_alpha=16, target_modules=["query", "value"])
    model = get_peft_model(base, peft_cfg)
    # save memory
    model.to(torch.float16)
    return model


def main():
    torch.manual_seed(0)
    model = build()
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(80):
        ids = torch.randint(2, 60, (64, 5))
        y = ((ids > 30).sum(1) > 2).long()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(input_ids=ids, labels=y).loss
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        if step % 10 == 0:
            print("step", step, "loss", round(loss.item(), 4))


if __name__ == "__main__":
    main()
