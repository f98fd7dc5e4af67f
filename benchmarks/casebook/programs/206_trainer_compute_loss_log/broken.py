import torch
from transformers import BertConfig, BertForTokenClassification, Trainer, TrainingArguments

torch.manual_seed(0)
WEIGHTS = torch.tensor([0.2, 1.0, 3.0])


class WeightedTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        with torch.autocast("cpu", dtype=torch.float16):
            logits = model(**inputs).logits * 20  # temperature
            logp = (logits.softmax(-1) + 1e-10).log()
        picked = logp.gather(-1, labels[..., None]).squeeze(-1)
        loss = -(picked * WEIGHTS[labels]).mean()
        if self.state.global_step % 5 == 0:
            print(f"step {self.state.global_step}: weighted loss {loss.item():.4f}")
        return loss


cfg = BertConfig(
    vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=20, num_labels=3, initializer_range=0.3, hidden_dropout_prob=0.0,
)
model = BertForTokenClassification(cfg)
ds = []
for _ in range(640):
    ids = torch.randint(0, 60, (10,))
    ds.append({"input_ids": ids, "labels": ids % 3})
args = TrainingArguments(
    "ner", max_steps=60, per_device_train_batch_size=16, learning_rate=3e-3, report_to=[],
    save_strategy="no", logging_steps=1000, disable_tqdm=True, use_cpu=True,
)
WeightedTrainer(model, args, train_dataset=ds).train()
