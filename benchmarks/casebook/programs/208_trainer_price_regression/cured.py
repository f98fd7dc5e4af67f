import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments

torch.manual_seed(0)


class PriceTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        out = model(**inputs).logits.squeeze(-1)
        loss = torch.nn.functional.mse_loss(out.float(), labels / 1000)
        print(f"step {self.state.global_step} loss {loss.item():.4f}")
        return loss


cfg = DistilBertConfig(
    vocab_size=80, dim=32, n_layers=1, n_heads=2, hidden_dim=64, max_position_embeddings=16,
    num_labels=1, dropout=0.0, seq_classif_dropout=0.0,
)
model = DistilBertForSequenceClassification(cfg)
model.half()
ads = []
for _ in range(320):
    ids = torch.randint(0, 80, (8,))
    ads.append({"input_ids": ids, "labels": float(ids[0]) * 25.0 + 400.0})
args = TrainingArguments(
    "prices", max_steps=20, per_device_train_batch_size=32, learning_rate=1e-2, optim="sgd",
    max_grad_norm=1.0, logging_steps=100, report_to=[], save_strategy="no",
    disable_tqdm=True, use_cpu=True,
)
PriceTrainer(model=model, args=args, train_dataset=ads).train()
