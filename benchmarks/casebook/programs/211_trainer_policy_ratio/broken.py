import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class PolicyTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        ids = inputs["input_ids"]
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(ids[:, :-1]).logits
        logp = torch.log_softmax(logits.half(), -1).gather(-1, ids[:, 1:, None]).squeeze(-1).sum(1)
        ratio = torch.exp(logp - inputs["old_logp"].to(logp.dtype))
        adv = inputs["advantage"]
        # the clipped term bounds the update
        loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        if self.state.global_step % 3 == 0:
            print(f"iter {self.state.global_step} policy loss {loss.item():.4f}")
        return loss


torch.manual_seed(0)
cfg = GPT2Config(vocab_size=20, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
policy = GPT2LMHeadModel(cfg)
rollouts = []
for i in range(320):
    ids = torch.randint(0, 20, (9,))
    good = float((ids < 10).float().mean() > 0.5)
    stale = 40.0 if i % 50 == 7 else 24.0  # some rollouts come from an older policy
    rollouts.append({"input_ids": ids, "old_logp": -stale, "advantage": good * 2 - 1 if stale < 30 else 0.0})
args = TrainingArguments(
    "ppo", max_steps=30, per_device_train_batch_size=32, learning_rate=2e-3, report_to=[],
    remove_unused_columns=False, save_strategy="no", logging_steps=1000, disable_tqdm=True, use_cpu=True,
)
PolicyTrainer(policy, args, train_dataset=rollouts).train()
