"""Off-policy fine-tuning of a LoRA adapter: sequences weighted by policy / base probability."""
import logging

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
log = logging.getLogger(__name__)


def sequence_logp(model, ids):
    logits = model(input_ids=ids).logits[:, :-1]
    logp = torch.log_softmax(logits, dim=-1)
    return logp.gather(-1, ids[:, 1:, None]).squeeze(-1).sum(-1)


def self_normalised_loss(model, ids):
    with torch.no_grad(), model.disable_adapter():
        base = sequence_logp(model, ids)
    policy = sequence_logp(model, ids)
    weight = torch.exp(policy.detach() - base)
    weight = weight / weight.sum()
    return -(weight * policy).sum()


def build_model():
    config = GPT2Config(vocab_size=40, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0,
                        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, initializer_range=0.15)
    base = GPT2LMHeadModel(config)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True,
                      task_type="CAUSAL_LM")
    return get_peft_model(base, lora)


def main(epochs=8):
    torch.manual_seed(27)
    model = build_model()
    model.print_trainable_parameters()
    # rollouts use few of the tokens
    ids = torch.randint(0, 6, (64, 24))
    loader = DataLoader(TensorDataset(ids), batch_size=8, shuffle=True)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    step = 0
    for epoch in range(epochs):
        for (batch,) in loader:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = self_normalised_loss(model, batch)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            step += 1
            if step % 4 == 0:
                log.info("step %d loss %.3f norm %.3f scale %g", step, loss.item(), norm.item(), scaler.get_scale())


if __name__ == "__main__":
    main()
