import argparse

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel


def direction_loss(model, anchor):
    """Keep the direction of the update close to an earlier one."""
    total = 0.0
    for name, module in model.named_modules():
        if name.endswith("attn.c_attn"):
            delta = module.lora_B["default"].weight @ module.lora_A["default"].weight
            unit = delta / delta.norm()
            total = total + (1 - (unit * anchor).sum())
    return total


def run(args):
    torch.manual_seed(args.seed)
    config = GPT2Config(vocab_size=40, n_positions=16, n_embd=24, n_layer=1, n_head=2)
    model = get_peft_model(
        GPT2LMHeadModel(config), LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM")
    )
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=args.lr)
    anchor = torch.randn(72, 24)
    anchor = anchor / anchor.norm()
    for step in range(args.steps):
        ids = torch.randint(0, 40, (8, 12))
        loss = model(input_ids=ids, labels=ids).loss + args.weight * direction_loss(model, anchor)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--weight", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    run(parser.parse_args())
